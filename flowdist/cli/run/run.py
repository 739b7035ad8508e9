"""`flowdist run`: a topology, or a script, on the processes of this machine."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from flowdist import __version__
from flowdist.cli.run.console import LINES, Console, Shown, finish
from flowdist.cli.shared.common import Named, guarded, load, show_problems, topology_options
from flowdist.dsl.load import DEFAULT_FILE, Loaded, looks_like_topology
from flowdist.errors import FlowdistError
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.faults.rates import entities, expected
from flowdist.faults.unfired import why_it_never_fired
from flowdist.graph import RoleGraph

if TYPE_CHECKING:
    from flowdist.runtime.run_folder.logs import OpenSink
    from flowdist.runtime.supervisor.event_printer import Show
    from flowdist.runtime.supervisor.startup_signals import StartupSignals
    from flowdist.runtime.supervisor.supervisor import Hosting

COMPONENTS = ("dist.ddp", "dist.spmd")
EXIT_CODES = {"succeeded": 0, "failed": 1, "cancelled": 130}


class _Run(click.Command):
    """`run dist.ddp ...` has the options of that component, not those of a topology."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in COMPONENTS:
            from flowdist.cli.run.components import COMMANDS  # not needed for topologies

            return COMMANDS[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(name="run", cls=_Run)
@topology_options
@click.option("--replicas", metavar="[MIN:]MAX[xPROCS]", help="For a script: its replicas, as in a topology.")
@click.option("--max-restarts", type=click.IntRange(min=0), help="For a script: how often it may fail.")
@click.option("--fail", "fails", multiple=True, metavar="FAULT", help="Make it fail: ps/0@20s, node1@30s/60s.")
@click.option("--scale", "scales", multiple=True, metavar="ROLE=N@WHEN", help="Scale a role: trainer=4@60s.")
@click.option("--add", "adds", multiple=True, metavar="NODE@WHEN", help="A node joins, like the first one: node5@90s.")
@click.option("--drain", "drains", multiple=True, metavar="NODE@WHEN", help="Drain a node: node1@2m.")
@click.option("--rate", "rates", multiple=True, metavar="RATE", help="Faults at random: trainer-kill=6/replica-hour.")
@click.option("--seed", type=int, help="Of --rate: another seed, other faults. Default: 0, as in simulate.")
@click.option("--faults", "files", multiple=True, metavar="FILE", help="Faults from a file, one a line, or TOML.")
@click.option("--resume", metavar="RUN", help="Go on with a run that was killed: its folder, or its name under --runs.")
@click.option("--runs", "base", default="runs", metavar="DIR", help="Where the folders of runs are (default: runs).")
@click.option("--listen", metavar="HOST:PORT", help="Let other hosts in, by flowdist join; each is a node.")
@click.option("--id", "job_id", metavar="ID", help="With --listen: the name by which they ask for this job.")
@click.option("--quiet", "-q", is_flag=True, help="Not the workers' output: only what flowdist does.")
@click.option("--plain", is_flag=True, help="Only lines, on a terminal too: no picture that stays at its bottom.")
@click.option("--detach", "-d", is_flag=True, help="Give the shell back once the job has started; see flowdist status.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Metrics for Prometheus, at 127.0.0.1 alone."
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@guarded
def command(
    named: Named,
    replicas: str | None,
    max_restarts: int | None,
    fails: tuple[str, ...],
    scales: tuple[str, ...],
    adds: tuple[str, ...],
    drains: tuple[str, ...],
    rates: tuple[str, ...],
    seed: int | None,
    files: tuple[str, ...],
    resume: str | None,
    base: str,
    listen: str | None,
    job_id: str | None,
    quiet: bool,
    plain: bool,
    detach: bool,
    metrics_port: int | None,
    args: tuple[str, ...],
) -> None:
    """Run a topology, or a script, on this machine, or with --listen on several.

    \b
    flowdist run                                        topology.py of this folder
    flowdist run jobs.py --nodes 4 --fail node2@30s     on 4 logical nodes, one of them lost on the way
    flowdist run train.py --replicas 1:4x2 --max-restarts 3 -- --epochs 5
                                                        a script, as torchrun would; its own arguments after --
    flowdist run dist.ddp -j 2:4x8 --script main.py     a builtin of TorchX; dist.ddp --help has its options
    flowdist run --detach                               in the background: status, logs -f, scale, drain, cancel
    flowdist run --resume latest                        go on where a run was when it was killed
    flowdist run --listen host0:29400                   with the hosts on which flowdist join host0:29400 is typed
    """
    needs_linux("run")
    plan = parse_plan(fails, scales, adds, drains, rates, files)
    if resume is not None and (named.target or named.params or named.sets or named.nodes):
        raise FlowdistError("--resume takes the topology of that run", help=f"write flowdist run --resume {resume}")
    if seed is not None and not plan.rates:
        raise FlowdistError(f"--seed {seed}: there is no --rate", help="nothing else in a run is drawn: leave it out")
    if listen is None and job_id is not None:
        raise FlowdistError("--id goes with --listen", help="write --listen host0:29400, or leave --id out")
    if listen is not None and named.as_json:
        raise FlowdistError("--listen does not go with --json", help="leave one of the two out")
    graph = None if resume is not None else _load(named, replicas, max_restarts, args).graph
    shown = Shown(quiet, named.as_json, live=not plain)
    if listen is not None:
        from flowdist.cli.run.hosts import Here, listen_for_hosts  # it imports this module

        here = Here(Path(base), "", shown, None, detach, metrics_port, resume or "", plan)
        listen_for_hosts(graph, listen, job_id, here)
    carry_out(
        graph,
        plan,
        Path(base),
        resume=resume or "",
        shown=shown,
        detach=detach,
        metrics_port=metrics_port,
        seed=seed or 0,
    )


def needs_linux(verb: str) -> None:
    if platform.system() != "Linux":
        raise FlowdistError(f"{verb} needs Linux", help="check, plan and simulate work here")


def carry_out(
    graph: RoleGraph | None,
    plan: Plan,
    base: Path,
    *,
    resume: str = "",
    shown: Shown = LINES,
    detach: bool = False,
    metrics_port: int | None = None,
    seed: int = 0,
    prefix: str = "",
    opener: Callable[[Path, Show], OpenSink] | None = None,
    hosting: Hosting | None = None,
) -> NoReturn:
    """Run the graph, or the run to resume, and end with its exit code.

    Args:
        base: Where the folders of runs are.
        detach: Go on in the background, and end with 0 once the job has started.
        metrics_port: Where to answer with metrics; 0: any that is free.
        seed: Of the faults at random.
        prefix: What the name of the run's folder begins with, if not with that of the topology.
        opener: Makes, for the folder and the terminal, what says where the workers' output goes.
        hosting: Lets other hosts in; the graph has the node of this one.
    """
    from flowdist.report.static.room import stranding
    from flowdist.runtime.controller.metrics import listen
    from flowdist.runtime.gpus.devices import machine_gpus, settle_cluster  # asyncio and more: not for --help
    from flowdist.runtime.injection.injector import check_faults
    from flowdist.runtime.run_folder.folder import find_run, new_run
    from flowdist.runtime.supervisor.startup_signals import StartupSignals
    from flowdist.runtime.worker_env.secret_values import Mask, check_secrets

    gpus = machine_gpus(os.environ)
    if graph is None:
        run_dir, graph = find_run(base, resume)
        warnings: list[str] = []
    else:
        graph, warnings = settle_cluster(graph, gpus, len(plan.new_nodes)) if hosting is None else (graph, [])
        run_dir = None
    check_faults(plan, graph, has_guests=hosting is not None)
    if hosting is None and (note := stranding(plan, graph)):  # of other hosts nobody knows which will come
        warnings = [*warnings, note]
    mask = Mask(check_secrets(graph, os.environ))
    metrics = listen(metrics_port) if metrics_port is not None else None
    console = Console(shown, mask)
    console.now_ns = lambda: 0  # nothing has begun
    for warning in warnings:
        console.show("warning", warning)
    with StartupSignals() as early:
        run_dir = run_dir or new_run(base, graph, prefix)
        if metrics is not None:
            console.show("event", f"metrics at http://127.0.0.1:{metrics.getsockname()[1]}/metrics")
        fd = metrics.fileno() if metrics is not None else None

        def supervise(console: Console) -> int:
            try:
                told = _supervise(graph, gpus, plan, seed, run_dir, console, mask, opener, fd, hosting, early)
                return EXIT_CODES[told]
            except KeyboardInterrupt:
                if _call_off(graph, run_dir, console, mask):
                    return EXIT_CODES["cancelled"]
                raise

        if detach:
            from flowdist.cli.run.detaching import detached  # as above

            detached(run_dir, base, shown, mask, supervise, early)
        sys.exit(supervise(console))


def _supervise(
    graph: RoleGraph,
    gpus: Sequence[str],
    plan: Plan,
    seed: int,
    run_dir: Path,
    console: Console,
    mask: Callable[[str], str],
    opener: Callable[[Path, Show], OpenSink] | None,
    metrics: int | None,
    hosting: Hosting | None,
    early: StartupSignals,
) -> str:
    """Until the job is over and its summary is written; the outcome."""
    from flowdist.runtime.supervisor.supervisor import Supervisor
    from flowdist.runtime.worker_env.run_environment import write_environment  # as in carry_out

    early.check()
    open_sink = opener(run_dir, console.show) if opener is not None else None
    onlooker = console.onlooker(run_dir.name)
    supervisor = Supervisor(
        graph,
        gpus,
        plan,
        run_dir,
        console.show,
        open_sink,
        hosting,
        onlooker=onlooker,
        metrics=metrics,
        seed=seed,
        early=early,
    )
    console.now_ns = supervisor.now_ns
    try:
        console.show("event", f"run {run_dir}")
        drawn = {"rates": [rate.spec for rate in plan.rates], "seed": seed} if plan.rates else {}
        if drawn:
            nodes = [node.name for node in graph.cluster.nodes] + plan.new_nodes
            rates = "; ".join(expected(rate, len(entities(rate, graph, nodes))) for rate in plan.rates)
            console.show("event", f"faults at random, by --seed {seed}: {rates}")
        write_environment(run_dir, graph, mask, __version__)
        result = asyncio.run(supervisor.run())
    finally:
        console.close()
    for fault in result.unfired:
        why = why_it_never_fired(fault, result.job, result.job.now)
        console.show("warning", f"fault {fault.spec} never fired: {why}")
    finish(result, console.shown.as_json, mask, drawn)
    return result.outcome


def _call_off(graph: RoleGraph, run_dir: Path, console: Console, mask: Callable[[str], str]) -> bool:
    """It was interrupted before it could end in order. That ends it only where nothing of it has happened yet."""
    from flowdist.runtime.run_folder.runs import has_begun, resume_help
    from flowdist.runtime.supervisor.cancelled_before_start import cancelled_before_start  # as in carry_out

    if has_begun(run_dir):
        console.show("warning", f"interrupted before it could end in order; {resume_help(run_dir)}")
        return False
    finish(cancelled_before_start(run_dir, graph), console.shown.as_json, mask)
    return True


def _load(named: Named, replicas: str | None, max_restarts: int | None, args: tuple[str, ...]) -> Loaded:
    """A topology file, or a one-role topology around a script."""
    if named.target in COMPONENTS:
        raise FlowdistError(f"{named.target} has to come first", help=f"write flowdist run {named.target} [options]")
    path = Path((named.target or DEFAULT_FILE).partition(":")[0])
    if (replicas or max_restarts is not None) and not path.is_file():
        raise FlowdistError(f"no script {str(path)!r}", help="--replicas and --max-restarts go with a script")
    if named.target is None or not path.is_file() or looks_like_topology(path):
        given = [name for name, value in (("--replicas", replicas), ("--max-restarts", max_restarts)) if value]
        if given and path.is_file():
            help = f"write --set ROLE.{'replicas' if replicas else 'restart.max_restarts'}=..."
            raise FlowdistError(f"{given[0]} is for scripts, and {path} is a topology", help=help)
        if args:
            raise FlowdistError(f"{' '.join(args)}: a topology takes no arguments", help="pass parameters with -p")
        return load(named, silent=["FD303"])  # what it warns of is refused, when everything else is settled
    if named.params:
        raise FlowdistError("-p is for topologies", help="write the script's own arguments after --")
    from flowdist.dsl.oneline import one_role_graph

    loaded = one_role_graph(
        str(path), args, replicas=replicas or "1", max_restarts=max_restarts or 0, nodes=named.nodes, sets=named.sets
    )
    if not named.as_json:
        show_problems(loaded.warnings)
    return loaded
