"""Execution of a role graph on this machine until the job ends, and the options for what is shown meanwhile."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click
import msgspec

from flowdist import __version__
from flowdist.cli.run.console import LINES, Console, Shown, finish
from flowdist.cli.run.detaching import detached
from flowdist.cli.shared.options import gathered
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan
from flowdist.faults.rates import entities, expected
from flowdist.faults.unfired import why_it_never_fired
from flowdist.graph import RoleGraph
from flowdist.report.static.room import stranding
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
    from flowdist.ui.beside import PageBeside

EXIT_CODES = {"succeeded": 0, "failed": 1, "cancelled": 130}


class DisplayOptions(NamedTuple):
    """Options for the output of workers, the picture of the job, the background, the metrics and the page of a run."""

    quiet: bool
    plain: bool
    detach: bool
    metrics_port: int | None
    ui: bool
    ui_port: int | None

    def page(self) -> PageBeside | None:
        """Return the page of the run for the browser, whose port is bound; None if it is not wanted.

        Raises:
            FlowdistError: --ui with --detach; or the port is in use, or may not be used.
        """
        if not self.ui and self.ui_port is None:
            return None
        if self.detach:
            raise FlowdistError("--ui does not go with --detach", help="write flowdist ui when the run has begun")
        from flowdist.ui.beside import PageBeside  # a web server: not needed by most runs

        return PageBeside(self.ui_port or 0)


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
    page: PageBeside | None = None  # for the browser, while the run lasts
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
    """Refuse the verb on systems other than Linux.

    Raises:
        FlowdistError: This system is not Linux.
    """
    if platform.system() != "Linux":
        raise FlowdistError(f"{verb} needs Linux", help="check, plan and simulate work here")


def execute(graph: RoleGraph | None, settings: RunSettings) -> NoReturn:
    """Run the graph, or without one the run to resume, and exit with the exit code of the job.

    With `settings.detach`, exit as soon as the job has started in the background.

    Raises:
        FlowdistError: The run cannot start: a fault does not fit, a secret is missing, or there is no run to resume.
    """
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
    with nullcontext() if settings.detach else QueuedOutput(), StartupSignals() as early:
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
            detached(run_dir, settings.base, settings.shown, mask, run.supervise, early)
        sys.exit(run.supervise(console))


def _take_claims(
    graph: RoleGraph, run_dir: Path | None, settings: RunSettings, console: Console, early: StartupSignals
) -> tuple[OwnerFile, ...]:
    """Take the claims of a new run, whose folder does not exist yet, or of the run that is resumed in `run_dir`.

    Raises:
        FlowdistError: Another run owns what this one needs, or the run to resume still runs.
    """
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

        If Ctrl-C ends the supervisor before the journal has any event, the run counts as cancelled; after that, the
        KeyboardInterrupt is raised again.
        """
        if self.settings.page is not None:
            self.settings.page.begin(self.run_dir)
        try:
            return EXIT_CODES[self._run_job(console)]
        except KeyboardInterrupt:
            if self._cancel_before_start(console):
                return EXIT_CODES["cancelled"]
            raise
        finally:
            if self.settings.page is not None:
                self.settings.page.end()

    def _run_job(self, console: Console) -> str:
        """Run the job, write and show its summary, and return its outcome."""
        self.early.check()
        plan = self.settings.plan
        observer = console.onlooker(self.run_dir.name)
        reporter = self._reporter(console, observer)
        supervisor = self._supervisor(console, reporter or observer)
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
                console.show("event", f"faults at random, by --seed {self.settings.seed}: {self._expected_faults()}")
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
        """Return the observer that reports to Kubeflow Trainer, beside another one; None if nobody asks for that.

        A host that runs workers leaves it to them: their libraries report by themselves.
        """
        if "KUBEFLOW_TRAINER_SERVER_URL" not in os.environ or self.graph.cluster.nodes:
            return None
        from flowdist.engines.jobset.trainer_status import TrainerStatus  # only in the pod of a controller

        return TrainerStatus(os.environ, console.show, observer)

    def _supervisor(self, console: Console, observer: Observer | None) -> Any:
        """Return the supervisor of the run, which has not started yet."""
        opener = self.settings.opener
        open_sink = opener(self.run_dir, console.show) if opener is not None else None
        return Supervisor(
            self.graph,
            self.gpus,
            self.settings.plan,
            self.run_dir,
            console.show,
            open_sink,
            self.settings.hosting,
            onlooker=observer,
            metrics=self.metrics,
            seed=self.settings.seed,
            early=self.early,
        )

    def _expected_faults(self) -> str:
        """Return in words how many random faults each rate leads to expect."""
        plan = self.settings.plan
        nodes = [node.name for node in self.graph.cluster.nodes] + plan.new_nodes
        return "; ".join(expected(rate, len(entities(rate, self.graph, nodes))) for rate in plan.rates)

    def _cancel_before_start(self, console: Console) -> bool:
        """End an interrupted run as cancelled if its journal has no event yet, and return True.

        Else print how to resume the run, and return False.
        """
        if has_begun(self.run_dir):
            console.show("warning", f"interrupted before it could end in order; {resume_help(self.run_dir)}")
            return False
        finish(cancelled_before_start(self.run_dir, self.graph), console.shown.as_json, self.mask)
        return True
