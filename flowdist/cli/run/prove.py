"""`flowdist prove`: kill a script at every point that matters, and compare with a run without a kill."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import click

from flowdist.cli.run.execution import needs_linux
from flowdist.cli.run.prove_corpus import Corpus
from flowdist.cli.run.run import ScriptVerb
from flowdist.cli.shared.common import load, ns_of, print_json, progress_bar, verb
from flowdist.cli.shared.options import TopologyOptions, gathered, topology_options
from flowdist.dsl.load import DEFAULT_FILE, check_runnable, looks_like_topology
from flowdist.errors import FlowdistError
from flowdist.prove import words
from flowdist.prove.chain import LONGEST
from flowdist.prove.lane import RUNS
from flowdist.prove.points import AND, Point, joined, seeded
from flowdist.prove.proving import Proof, Prover, Tried
from flowdist.prove.watched import ALL_END, Roles
from flowdist.report.record.summary import in_seconds

CHECKPOINTS = "checkpoints"  # in the folder of the run, if the script uses flowdist.worker
TERMINATED = 143  # exit code after SIGTERM, as a shell gives it
FOUND = 3  # exit code, as of a simulation that breaks a property
RESTARTS = 10**9  # each run ends with one


class ProveOptions(NamedTuple):
    """Options of a proof: what is proved, and how long that may take."""

    procs: str = "2"
    role: str | None = None
    budget: str | None = None
    seed: int | None = None
    within: str | None = None
    only: tuple[str, ...] = ()
    jobs: int | None = None
    alone: bool = False
    tolerance: float = 0.0
    power: bool = False
    corpus: str | None = None
    fail_fast: bool = False
    lists: bool = False
    keep: str | None = None

    @property
    def workers(self) -> tuple[int, int]:
        """Return the smallest and the usual number of workers of a script."""
        least, _, most = self.procs.rpartition(":")
        if not most.isdecimal() or (least and not least.isdecimal()) or not 1 <= int(least or most) <= int(most) <= 64:
            raise FlowdistError(
                f"--procs {self.procs}: not a number of workers", help="write 2, or 1:3 if it may change"
            )
        return int(least or most), int(most)

    @property
    def budget_s(self) -> float:
        """Return the seconds that trying points may take."""
        ns = ns_of("--budget", self.budget)
        return float("inf") if ns is None else ns / 1e9


@verb("prove", cls=ScriptVerb)
@topology_options
@gathered(
    "options",
    ProveOptions,
    click.option("--procs", default="2", metavar="[MIN:]N", help="For a script: workers, and how few it bears."),
    click.option("--role", metavar="ROLE", help="For a topology: kill workers of this role alone."),
    click.option("--budget", metavar="TIME", help="Try the most telling points first, and stop after this time."),
    click.option("--seed", type=int, metavar="N", help="With --budget: another seed takes other points (default: 0)."),
    click.option("--within", metavar="TIME", help="A run hangs if nothing happens for so long (default: 20s or more)."),
    click.option("--only", multiple=True, metavar="POINT", help="Try this point alone; a finding names it."),
    click.option(
        "--jobs", type=click.IntRange(1, 64), metavar="N", help="Points at once (default: as the CPUs allow)."
    ),
    click.option("--alone", is_flag=True, help="Give each point a run of its own, which takes twice as long."),
    click.option(
        "--tolerance",
        type=click.FloatRange(0, 1),
        default=0.0,
        metavar="R",
        help="Let losses differ by this part of their value; compare no gradients and no saved files.",
    ),
    click.option("--power", is_flag=True, help="Try also that the machine loses its power, as ext4 would leave files."),
    click.option("--corpus", metavar="FILE", help="Keep points that show something in this file; try them first."),
    click.option("--fail-fast", is_flag=True, help="Stop at the first finding."),
    click.option("--list", "lists", is_flag=True, help="Print the points, and try none."),
    click.option("--keep", metavar="DIR", help="Keep the folder of the runs and their logs here."),
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(named: TopologyOptions, options: ProveOptions, args: tuple[str, ...]) -> None:
    """Kill a script at every point that matters, and compare with a run without a kill.

    \b
    flowdist prove train.py                     2 workers, as under torchrun; its own arguments after --
    flowdist prove train.py --budget 5m         the most telling points first
    flowdist prove train.py --only save2:trainer.0:rename:ckpt/last.pt:before
    flowdist prove topology.py                  a topology, with its services and gates

    No line of the script changes. It runs in a copy of the current folder, whose files are not touched: twice without
    a fault, and then once for each point: killed in a save, before and after each call that changes a file, in a
    restore, between saves, at the last step, twice in a row. Each run goes on until it ends. It must use the same
    samples, have the same losses and weights, and leave the same checkpoint. docs/prove.md says how.

    Exit code 0 if nothing was found, 3 if something was, 2 if the script cannot be proved.
    """
    needs_linux("prove")
    if options.seed is not None and options.budget is None:
        raise FlowdistError("--seed changes nothing: without --budget all points are tried", help="leave it out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    path = Path((named.target or DEFAULT_FILE).partition(":")[0])
    check_runnable(path, "prove train.py")
    users = Path.cwd()
    if not path.resolve().is_relative_to(users):
        raise FlowdistError(f"{path} is not below the current folder", help="change to the folder of the script first")
    with _own_folder(options.keep) as own:
        launch = (_topology if looks_like_topology(path) else _script)(path, named, options, args, own)
        proof = _proved(launch, users, own, named, options)
    if named.as_json:
        print_json("proof", **words.as_dict(proof, lambda point: _again(launch, named, options, point)))
    sys.exit(FOUND if proof.found else 0)


@contextlib.contextmanager
def _own_folder(keep: str | None) -> Any:
    """Yield the folder of the runs: the one to keep, which must be new, or a temporary one."""
    if keep is not None:
        folder = Path(keep).absolute()
        if folder.exists() and any(folder.iterdir()):
            raise FlowdistError(f"--keep {keep}: the folder is not empty", help="name another one, or remove it")
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="flowdist-prove-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


class _Launch(NamedTuple):
    """The command of the job, its roles, and the script's own arguments."""

    script: str
    command: list[str]
    roles: Roles = ALL_END
    args: tuple[str, ...] = ()


def _script(path: Path, named: TopologyOptions, options: ProveOptions, args: tuple[str, ...], own: Path) -> _Launch:
    if named.words():
        raise FlowdistError(f"{named.words()[0]} is for topologies", help="the script's own arguments come after --")
    if options.role is not None:
        raise FlowdistError("--role is for topologies", help="leave it out")
    least, usual = options.workers
    replicas = f"1x{usual}" if least == usual else f"{least}:{usual}"
    command = [sys.executable, "-m", "flowdist", "run", str(path), "--replicas", replicas]
    command += ["--max-restarts", str(RESTARTS), "--set", "trainer.restart.backoff=0s", *_run_options(own)]
    sizes = {"trainer": (least, usual)} if least < usual else {}
    return _Launch(str(path), [*command, "--", *args], Roles(sizes=sizes), args)


def _topology(path: Path, named: TopologyOptions, options: ProveOptions, args: tuple[str, ...], own: Path) -> _Launch:
    if args:
        raise FlowdistError(f"{' '.join(args)}: a topology takes no arguments", help="pass parameters with -p")
    if options.procs != ProveOptions().procs:
        raise FlowdistError("--procs is for scripts", help="a topology says replicas= and procs= itself")
    graph = load(named).graph
    if options.role is not None and options.role not in [role.name for role in graph.roles]:
        names = ", ".join(role.name for role in graph.roles)
        raise FlowdistError(f"--role {options.role}: {path} has no such role", help=f"it has {names}")
    command = [sys.executable, "-m", "flowdist", "run", str(named.target or path), *named.words()]
    for role in graph.roles:
        command += ["--set", f"{role.name}.restart.max_restarts={RESTARTS}", "--set", f"{role.name}.restart.backoff=0s"]
    command += ["--set", "min_uptime=1ms"]  # else many restarts in a row that nobody pays end the job (R8)
    ending = [role for role in graph.roles if role.kind == "task" and role.primary]
    sizes = {role.name: (role.min_replicas, role.max_replicas) for role in ending if role.gang}
    loners = {role.name: role.max_replicas for role in graph.roles if not role.gang}
    tasks = frozenset(role.name for role in ending)
    return _Launch(str(named.target or path), command + _run_options(own), Roles(tasks, loners, sizes))


def _run_options(own: Path) -> list[str]:
    """Return options by which a run leaves its logs elsewhere, and its checkpoints in the folder that is reset."""
    return ["--runs", str(own / RUNS), "--plain", "--set", f"checkpoint_dir={CHECKPOINTS}"]


def _proved(launch: _Launch, users: Path, own: Path, named: TopologyOptions, options: ProveOptions) -> Proof:
    """Watch the script, try its points, and show what is found."""
    is_quiet, budget_s = named.as_json, options.budget_s
    corpus = Corpus(Path(options.corpus) if options.corpus is not None else None, launch.script)
    prover = Prover(
        *(launch.command, launch.script, users, own),
        roles=launch.roles,
        role=options.role,
        power=options.power,
        within_s=in_seconds(ns_of("--within", options.within)),
        longest=1 if options.alone else LONGEST,
        tolerance=options.tolerance,
    )
    try:
        with _Shown(quiet=is_quiet) as shown:
            proof = prover.watch(shown.watching)
            if options.budget is not None:
                proof.seed = options.seed or 0
                proof.points = seeded(proof.points, proof.seed)
            chosen = corpus.first(_chosen(proof.points, options.only))
            if not is_quiet:
                for line in (words.opening(proof), *words.notes(proof)):
                    shown.print(line)
            if options.lists:
                for point in () if is_quiet else chosen:
                    shown.print(f"  {point.name}")
                return proof
            until = time.monotonic() + budget_s

            def goes_on(tried: Tried | None) -> bool:
                if tried is not None:
                    corpus.keep(tried.point.name, [finding.kind for finding in tried.findings])
                    shown.tried(proof, tried, _again(launch, named, options, tried.point.name), len(chosen))
                is_over = options.fail_fast and tried is not None and tried.findings
                return not is_over and time.monotonic() < until

            prover.play(proof, chosen, goes_on, lanes=options.jobs or max(1, (os.cpu_count() or 1) // proof.workers))
        if not is_quiet:
            for line in filter(
                None, (*words.unsteady(proof), words.fine(proof), words.rounding(proof), words.verdict(proof))
            ):
                click.echo(f"  {line}" if line.startswith("ok") else line)
        return proof
    finally:
        prover.close()


def _chosen(points: list[Point], only: tuple[str, ...]) -> list[Point]:
    known = {point.name: point for point in points}
    chosen = [[name] if name in known else name.split(AND) for name in only]
    if unknown := [name for names in chosen for name in names if name not in known]:
        raise FlowdistError(f"--only {unknown[0]}: there is no such point", help="--list prints them all")
    some = [joined([known[name] for name in names]) if names[1:] else known[names[0]] for names in chosen]
    return some if only else points


def _again(launch: _Launch, named: TopologyOptions, options: ProveOptions, point: str) -> str:
    """Return the command that shows what was found at a point again."""
    parts = ["flowdist", "prove", launch.script, *named.words()]
    if options.procs != ProveOptions().procs:
        parts += ["--procs", options.procs]
    parts += ["--tolerance", str(options.tolerance)] if options.tolerance else []
    parts += ["--power"] if options.power else []
    return shlex.join([*parts, "--only", point, *(["--", *launch.args] if launch.args else [])])


class _Shown:
    """Findings as they come, and on a terminal a bar with the time that is left."""

    def __init__(self, *, quiet: bool) -> None:
        self._bar = progress_bar("{task.description}", quiet=quiet)
        self._task = self._bar.add_task("starting", total=None)
        self._quiet = quiet
        self._count = self._total = 0  # points that were tried, and all
        self._known: set[tuple[str, str]] = set()

    def __enter__(self) -> _Shown:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if kind is KeyboardInterrupt and self._total:
            click.echo(f"interrupted after {self._count} of {self._total} points", err=True)

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.refresh()
        click.echo(line)

    def watching(self, text: str) -> None:
        """Show which of the first runs is on."""
        self._bar.update(self._task, description=text)

    def tried(self, proof: Proof, tried: Tried, again: str, total: int) -> None:
        """Show that a point was tried, and what is new of what it has shown."""
        self._count, self._total = len(proof.tried), total
        self._bar.update(self._task, description="proving", completed=self._count, total=total)
        for finding in tried.findings:
            if (finding.kind, finding.place) not in self._known and not self._quiet:
                self._known.add((finding.kind, finding.place))
                for line in words.of_finding(finding, again):
                    self.print(f"  {line}")
