"""Execution of a role graph on this machine until the job ends, and the options for what is shown meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click
import msgspec

from flowdist import __version__
from flowdist.cli.run.console import LINES, Console, Shown, finish
from flowdist.cli.shared.common import print_json
from flowdist.cli.shared.options import gathered
from flowdist.control.job.state import JobState, ReplicaPhase
from flowdist.control.membership.waiting import held_up_by
from flowdist.errors import FlowdistError, JobFailed
from flowdist.faults.grammar import Plan
from flowdist.faults.milestones import why_it_never_fired
from flowdist.faults.rates import entities, expected
from flowdist.graph import SECOND, RoleGraph
from flowdist.record.journal import Record
from flowdist.report.static.plan_faults import stranding
from flowdist.runtime.controller.metrics import listen
from flowdist.runtime.gpus.devices import machine_gpus, settle_cluster
from flowdist.runtime.injection.injector import check_faults
from flowdist.runtime.run_folder.folder import find_run, lock_run, new_run
from flowdist.runtime.run_folder.resume import last_epoch, truncate_journal
from flowdist.runtime.run_folder.runs import has_begun, resume_help
from flowdist.runtime.supervisor.host_process import RunResult, cancelled_before_start
from flowdist.runtime.supervisor.owner_keeper import take_claims
from flowdist.runtime.supervisor.startup_signals import StartupSignals
from flowdist.runtime.supervisor.supervisor import Hosting, Observer, Supervisor
from flowdist.runtime.umask import take_umask_of
from flowdist.runtime.worker_env.run_environment import write_environment
from flowdist.runtime.worker_env.secret_values import Mask, check_secrets
from flowdist.text.queued_output import QueuedOutput

if TYPE_CHECKING:
    from flowdist.engines.jobset.trainer_status import TrainerStatus
    from flowdist.runtime.run_folder.logs import OpenSink
    from flowdist.runtime.run_folder.owner_file import OwnerFile
    from flowdist.runtime.supervisor.event_printer import Show
    from flowdist.ui.server import RunServer

EXIT_CODES = {"succeeded": 0, "failed": 1, "cancelled": 130}
LOG = "supervisor.log"
IDLE_NS = 3 * SECOND  # after this time without a start, the job is reported as waiting
STARTED: tuple[ReplicaPhase, ...] = ("running", "ready", "succeeded")


class DisplayOptions(NamedTuple):
    """Options for the output of workers, the picture of the job, the background, the metrics and the page of a run."""

    quiet: bool
    plain: bool
    detach: bool
    metrics_port: int | None
    ui: bool
    ui_port: int | None

    def page(self) -> RunServer | None:
        """Return the page of the run for the browser, whose port is bound; None if it is not wanted."""
        if not self.ui and self.ui_port is None:
            return None
        if self.detach:
            raise FlowdistError("--ui does not go with --detach", help="write flowdist ui when the run has begun")
        from flowdist.ui.server import RunServer  # a web server: not needed by most runs

        return RunServer(None, self.ui_port or 0)

    def settings(self, base: str, plan: Plan, as_json: bool, **more: Any) -> RunSettings:
        """Return the settings of a run that is shown so, in this folder of all runs; `more` are other settings."""
        shown = Shown(self.quiet, as_json, live=not self.plain)
        settings = RunSettings(Path(base), plan, "", shown, self.detach, self.metrics_port, self.page())
        return settings._replace(**more)


quiet_option = click.option("--quiet", "-q", is_flag=True, help="Show events of flowdist, but no output of workers.")
display_options = gathered(
    "display",
    DisplayOptions,
    quiet_option,
    click.option("--plain", is_flag=True, help="Print lines alone; on a terminal, draw no picture of the job."),
    click.option("--detach", "-d", is_flag=True, help="Run in the background after the start; see flowdist status."),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve metrics for Prometheus at this port of 127.0.0.1; 0: any free port.",
    ),
    click.option("--ui", is_flag=True, help="Show the run in the browser, as flowdist ui does, until it ends."),
    click.option(
        "--ui-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="As --ui, at this port of 127.0.0.1 (default: any free port).",
    ),
)
cold_option = click.option(
    "--cold", is_flag=True, help="Start each worker in an interpreter of its own: docs/warm_starts.md."
)
interface_option = click.option(
    "--interface", default="", metavar="NAME", help="Network interface at which the other hosts reach this one: eth1."
)


class RunSettings(NamedTuple):
    """Settings of one run: faults, folder, terminal, background, metrics and other hosts."""

    base: Path  # folder with the folders of runs
    plan: Plan = Plan(())
    resume: str = ""  # the run to resume; empty: a new one
    shown: Shown = LINES
    detach: bool = False  # run in the background, and exit with 0 once the job has started
    metrics_port: int | None = None  # port for Prometheus; 0: any free one; None: no metrics
    page: RunServer | None = None  # for the browser, while the run lasts
    seed: int = 0  # of the faults at random
    prefix: str = ""  # first part of the name of the run's folder; empty: the name of the topology
    opener: Callable[[Path, Show], OpenSink] | None = None  # decides where the output of workers goes
    hosting: Hosting | None = None  # lets other hosts join; the graph then has the node of this host alone
    truncate_at: int | None = None  # the first line of the resumed journal that is cut off before; None: none


def with_cold(graph: RoleGraph, cold: bool) -> RoleGraph:
    """Return the graph; with --cold the workers of all its roles start cold."""
    if not cold:
        return graph
    roles = tuple(msgspec.structs.replace(role, warm=False) for role in graph.roles)
    return msgspec.structs.replace(graph, roles=roles)


def needs_linux(verb: str) -> None:
    """Refuse the verb on systems other than Linux."""
    if platform.system() != "Linux":
        raise FlowdistError(f"{verb} needs Linux", help="check, plan and simulate work here")


def execute(graph: RoleGraph | None, settings: RunSettings) -> NoReturn:
    """Run the graph, or without one the run to resume; exit with its exit code, or with `detach` once it runs."""
    plan, hosting = settings.plan, settings.hosting
    gpus = machine_gpus(os.environ)
    run_dir, warnings = None, list[str]()
    if graph is None:
        run_dir, graph = find_run(settings.base, settings.resume)
    elif hosting is None:
        graph, warnings = settle_cluster(graph, gpus, len(plan.new_nodes))
    check_faults(plan, graph, has_guests=hosting is not None)
    if hosting is None and (note := stranding(plan, graph)):  # which other hosts will join is not known
        warnings = [*warnings, note]
    runs_workers = hosting is None or bool(graph.cluster.nodes)  # else all of them are on other hosts, which check
    mask = Mask(check_secrets(graph, os.environ) if runs_workers else ())
    if run_dir is not None and settings.truncate_at is not None:
        warnings = [*warnings, truncate_journal(run_dir, settings.truncate_at)]
    metrics = listen(settings.metrics_port) if settings.metrics_port is not None else None
    console = Console(settings.shown, mask)
    console.now_ns = lambda: 0  # the job has not begun
    # the process in the background is forked, which a process with threads must not be, and it writes to a file
    with contextlib.nullcontext() if settings.detach else QueuedOutput(), StartupSignals() as early:
        for warning in warnings:
            console.show("warning", warning)
        claims = _take_claims(graph, run_dir, settings, console, early)
        run_dir = run_dir or new_run(settings.base, graph, settings.prefix)
        for claim in claims:
            claim.renew(run_dir.name)
        take_umask_of(run_dir)
        if metrics is not None:
            console.show("event", f"metrics at http://127.0.0.1:{metrics.getsockname()[1]}/metrics")
        port = None if metrics is None else metrics.fileno()
        run = _Run(graph, gpus, run_dir, settings, mask, port, early, claims)
        if settings.detach:
            _detach(run)
        sys.exit(run.supervise(console))


def _take_claims(
    graph: RoleGraph, run_dir: Path | None, settings: RunSettings, console: Console, early: StartupSignals
) -> tuple[OwnerFile, ...]:
    """Take the claims of a new run, whose folder does not exist yet, or of the run that is resumed in `run_dir`."""
    name, epoch = "", 1
    if run_dir is not None:
        os.close(lock_run(run_dir))  # else this would take the claims of the run that still runs
        name, epoch = run_dir.name, last_epoch(run_dir) + 1
    job = settings.hosting.listening.door.job if settings.hosting is not None else ""
    return take_claims(graph, settings.base, job, name, epoch, console.show, early.check)


class _Run(NamedTuple):
    """Run whose folder exists, and whose job has not started."""

    graph: RoleGraph
    gpus: Sequence[str]
    run_dir: Path
    settings: RunSettings
    mask: Mask
    metrics: int | None  # file descriptor of the listening socket
    early: StartupSignals
    claims: Sequence[OwnerFile]

    def supervise(self, console: Console) -> int:
        """Run the job to its end and return its exit code.

        If Ctrl-C ends the supervisor before the journal has any event, the run counts as cancelled.
        """
        if self.settings.page is not None:
            self.settings.page.begin(self.run_dir)
        try:
            return EXIT_CODES[self._run_job(console)]
        except KeyboardInterrupt:
            if has_begun(self.run_dir):
                console.show("warning", f"interrupted before it could end in order; {resume_help(self.run_dir)}")
                raise
            finish(cancelled_before_start(self.run_dir, self.graph), console.shown.as_json, self.mask)
            return EXIT_CODES["cancelled"]
        finally:
            if self.settings.page is not None:
                self.settings.page.end()

    def _run_job(self, console: Console) -> str:
        """Run the job, write and show its summary, and return its outcome."""
        self.early.check()
        plan, opener = self.settings.plan, self.settings.opener
        observer = console.onlooker(self.run_dir.name)
        reporter = self._reporter(console, observer)
        supervisor = Supervisor(
            self.graph,
            self.gpus,
            plan,
            self.run_dir,
            console.show,
            opener(self.run_dir, console.show) if opener is not None else None,
            self.settings.hosting,
            onlooker=reporter or observer,
            metrics=self.metrics,
            seed=self.settings.seed,
            early=self.early,
        )
        supervisor.own(self.claims)
        console.now_ns = supervisor.now_ns
        if self.settings.hosting is not None:
            own = self.graph.cluster.nodes  # none if an engine starts all hosts
            console.host = own[0].name if own else socket.gethostname().partition(".")[0]
        try:
            console.show("event", f"run {self.run_dir}")
            if self.settings.page is not None:
                console.show("event", f"in the browser, until the run ends: {self.settings.page.url}")
            if plan.rates:
                nodes = [node.name for node in self.graph.cluster.nodes] + plan.new_nodes
                many = "; ".join(expected(rate, len(entities(rate, self.graph, nodes))) for rate in plan.rates)
                console.show("event", f"faults at random, by --seed {self.settings.seed}: {many}")
            write_environment(self.run_dir, self.graph, self.mask, __version__)
            result: RunResult = asyncio.run(supervisor.run())
            if reporter is not None:
                reporter.close(result.job)
        finally:
            console.close()
        for fault in result.unfired:
            why = why_it_never_fired(fault, result.job, result.job.now)
            console.show("warning", f"fault {fault.spec} never fired: {why}")
        drawn = {"rates": [rate.spec for rate in plan.rates], "seed": self.settings.seed} if plan.rates else {}
        finish(result, console.shown.as_json, self.mask, drawn)
        return result.outcome

    def _reporter(self, console: Console, observer: Observer | None) -> TrainerStatus | None:
        """Return the observer that reports to Kubeflow Trainer; None if nobody asks for that.

        A host that runs workers leaves it to them: their libraries report by themselves.
        """
        if "KUBEFLOW_TRAINER_SERVER_URL" not in os.environ or self.graph.cluster.nodes:
            return None
        from flowdist.engines.jobset.trainer_status import TrainerStatus  # only in the pod of a controller

        return TrainerStatus(os.environ, console.show, observer)


class _Starting(Console):
    """Console and observer that reports to the parent, once, that the first replica runs or what the job waits for."""

    def __init__(self, shown: Shown, mask: Callable[[str], str], tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(shown, mask)
        self._tell = tell
        self._idle_since_ns: int | None = None

    def onlooker(self, run_id: str) -> Observer:
        """Return this console: in the background there is no picture."""
        return self

    def hear(self, record: Record) -> None:
        pass  # `look` reports by the state of the job alone

    def look(self, job: JobState, now: int) -> None:
        """Report that a replica runs, or what the job waits for if for `IDLE_NS` none has begun to start."""
        if any(role.count(phase) for role in job.roles.values() for phase in STARTED):
            self._tell({"started": True})
        elif not job.nodes or any(role.count("starting") for role in job.roles.values()):
            self._idle_since_ns = None  # there is no node yet, or a replica is starting
        elif self._idle_since_ns is None:
            self._idle_since_ns = now
        elif now - self._idle_since_ns > IDLE_NS and (waits := held_up_by(job)):
            self._tell({"waits_for": waits[0]})


def _detach(run: _Run) -> NoReturn:
    """Run the job in a background process, which writes to supervisor.log, and exit when it has started or could not.

    This process, which has one thread and no event loop yet, forks. The exit code is 0 if the job has started or waits;
    that of the job if it is over already; 130 for an interrupt.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    before_fork = run.early.count
    if os.fork() == 0:
        os.close(reading)
        _be_supervisor(run, writing)
    os.close(writing)
    try:
        run.early.end()
        if run.early.count > before_fork:
            raise KeyboardInterrupt
        with os.fdopen(reading) as pipe:
            message = json.loads(pipe.readline() or "{}")
    except KeyboardInterrupt:
        click.echo(f"\nthe run goes on in the background; flowdist cancel {run.run_dir.name} ends it", err=True)
        sys.exit(130)
    if "error" in message:
        failed = FlowdistError(message["error"], help=message["help"])
        failed.exit_code = message["exit_code"]
        raise failed
    if not message:
        raise JobFailed("the supervisor died before the job had started", help=f"see {run.run_dir / LOG}")
    _show_detached(run.run_dir, run.settings, message)
    sys.exit(message.get("exit_code", 0))


def _be_supervisor(run: _Run, writing: int) -> NoReturn:
    """Run the job as the child, report to the parent by the pipe `writing`, and end the process: never return."""
    code = 1
    try:
        _leave_terminal(run.run_dir / LOG)
        pipe = os.fdopen(writing, "w")

        def tell(what: dict[str, Any]) -> None:
            if not pipe.closed:
                with contextlib.suppress(BrokenPipeError):  # the parent was interrupted and has gone
                    json.dump(what, pipe)
                    pipe.close()

        try:
            code = run.supervise(_Starting(Shown(quiet=True), run.mask, tell))
            tell({"ended": True, "exit_code": code})
        except FlowdistError as error:
            code = error.exit_code
            click.echo(f"error: {error.message}", err=True)
            tell({"error": error.message, "help": error.help, "exit_code": code})
        except KeyboardInterrupt:
            code = 130
            tell({"error": "the run was interrupted before it had started", "help": "", "exit_code": code})
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _leave_terminal(log: Path) -> None:
    """Start a session of its own, so that signals of the terminal do not reach this process, and write to the log."""
    os.setsid()
    null, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)


def _show_detached(run_dir: Path, settings: RunSettings, message: dict[str, Any]) -> None:
    """Print the name of the run on stdout, for scripts, and the verbs that take it on stderr."""
    name = run_dir.name
    if settings.shown.as_json:
        waits = message.get("waits_for")
        print_json("detached", run=name, run_dir=str(run_dir), ended="ended" in message, waits_for=waits)
        return
    click.echo(name)
    more = "" if settings.base == Path("runs") else f" --runs {settings.base}"
    if "ended" in message:
        click.echo(f"the run is over already: flowdist report {name}{more}", err=True)
        return
    verbs = (("status", f"{name}{more}"), ("logs -f", f"--run {name}{more}"), ("cancel", f"{name}{more}"))
    waits = f", and waits for {message['waits_for']}" if "waits_for" in message else ""
    click.echo(f"the run is in the background{waits}:", err=True)
    for verb, arguments in verbs:
        click.echo(f"  flowdist {verb} {arguments}", err=True)
