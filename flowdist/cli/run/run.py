"""`flowdist run`: a topology, or a script, on the processes of this machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from flowdist.cli.run.execution import (
    DisplayOptions,
    cold_option,
    display_options,
    execute,
    interface_option,
    needs_linux,
    with_cold,
)
from flowdist.cli.shared.common import Guarded, load, problems_of_job, show_problems, verb
from flowdist.cli.shared.engines import EngineOptions, check_engine, engine_options, problems_on
from flowdist.cli.shared.options import (
    FaultOptions,
    TopologyOptions,
    fault_options,
    gathered,
    options_with_values,
    runs_option,
    topology_options,
)
from flowdist.cli.shared.runs import complete_run
from flowdist.dsl.load import DEFAULT_FILE, Loaded, check_runnable, looks_like_topology
from flowdist.dsl.oneline import one_role_graph
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan
from flowdist.runtime.run_folder.folder import ENGINE, find_run

COMPONENTS = ("dist.ddp", "dist.spmd")
TORCHRUN = "flowdist torchrun takes torchrun's options"
AFTERWARDS = "a run is predicted when it is over: flowdist report RUN --workload workload.toml"
GONE = {"--predict": AFTERWARDS, "--workload": AFTERWARDS}  # options that `run` once had, each with what does as well


class UnknownOption(click.UsageError):
    """Error for an option that a command does not have, with the help that is printed below the message."""

    def __init__(self, message: str, help: str, ctx: click.Context) -> None:
        super().__init__(message, ctx)
        self.help = help

    def format_message(self) -> str:
        """Return the message for the terminal."""
        return f"{self.message}\nhelp: {self.help}" if self.help else self.message


class ScriptVerb(Guarded):
    """Command of a verb that takes a script; for an option that it does not have, the error says what to write."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        words = list(args)  # click empties the list
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise UnknownOption(error.format_message(), self.help_for(error.option_name, words), ctx) from None

    def help_for(self, option: str, words: Sequence[str]) -> str:
        """Return what the user can write instead of an unknown option; empty if that cannot be said."""
        script = _script_in(words)
        if not script or looks_like_topology(script):
            return ""
        kept, own = _divided(words, script, options_with_values(self))
        again = shlex.join(["flowdist", str(self.name), *kept, "--", *own])
        return f"the script's own arguments come after --: {again}"


class _Run(ScriptVerb):
    """Command `run`; `run dist.ddp ...` has the options of that component instead of those of a topology."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in COMPONENTS:
            from flowdist.cli.run.components import COMMANDS  # not needed for topologies

            return COMMANDS[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def help_for(self, option: str, words: Sequence[str]) -> str:
        """Return how `run` says what an option of torchrun, or one that it once had, has meant."""
        from flowdist.torchrun.options import torchrun_name  # only for a mistake

        if meant := torchrun_name(option):
            size = _replicas(words) if meant in ("--nproc-per-node", "--nnodes") else ""
            script = _script_in(words) or "train.py"
            return f"write flowdist run {script} --replicas {size}; {TORCHRUN}" if size else TORCHRUN
        return "; ".join(filter(None, (GONE.get(option), super().help_for(option, words))))


class ScriptOptions(NamedTuple):
    """Options that go with a script alone, and the script's own arguments."""

    replicas: str | None
    max_restarts: int | None
    args: tuple[str, ...]


class StartOptions(NamedTuple):
    """Options of one run: the seed of its faults, the run that it resumes, its folder, and the hosts that may join."""

    seed: int | None
    resume: str | None
    truncate_at: int | None
    base: str
    listen: str | None
    job_id: str | None
    interface: str
    cold: bool
    dryrun: bool
    in_controller_job: bool


@verb("run", cls=_Run)
@topology_options
@gathered(
    "script",
    ScriptOptions,
    click.option("--replicas", metavar="[MIN:]MAX[xPROCS]", help="For a script: its replicas, as in a topology."),
    click.option("--max-restarts", type=click.IntRange(min=0), help="For a script: how many failures restart it."),
    click.argument("args", nargs=-1, type=click.UNPROCESSED),
)
@fault_options()
@gathered(
    "start",
    StartOptions,
    click.option("--seed", type=int, help="Seed of --rate: another seed draws other faults (default: 0)."),
    click.option(
        "--resume",
        metavar="RUN",
        shell_complete=complete_run,
        help="Resume a run that was killed: its folder, or its name under --runs.",
    ),
    click.option(
        "--truncate-at",
        type=int,
        metavar="N",
        help="With --resume: cut line N of the journal and all later ones off before; a copy is kept.",
    ),
    runs_option,
    click.option("--listen", metavar="HOST:PORT", help="Let other hosts join by flowdist join, each as a node."),
    click.option("--id", "job_id", metavar="ID", help="With --listen: the name by which other hosts ask for this job."),
    interface_option,
    cold_option,
    click.option("--dryrun", is_flag=True, help="With --on: print the scripts of the members, and submit nothing."),
    click.option("--in-controller-job", is_flag=True, hidden=True),
)
@engine_options
@display_options
def command(
    named: TopologyOptions,
    script: ScriptOptions,
    faults: FaultOptions,
    start: StartOptions,
    engine: EngineOptions,
    display: DisplayOptions,
) -> None:
    """Run a topology, or a script, on this machine, or with --listen on several.

    \b
    flowdist run                                        topology.py of this folder
    flowdist run jobs.py --nodes 4 --fail node2@30s     on 4 logical nodes, one of which is lost after 30 s
    flowdist run train.py --replicas 1:4x2 --max-restarts 3 -- --epochs 5
                                                        a script, as torchrun would; its own arguments after --
    flowdist run dist.ddp -j 2:4x8 --script main.py     a builtin of TorchX; dist.ddp --help has its options
    flowdist run --ui                                   with its timeline in the browser, live; the address is printed
    flowdist run --detach                               in the background: status, logs -f, scale, drain, cancel
    flowdist run --resume latest                        continue a run where it was killed
    flowdist run --listen host0:29400                   with each host that runs flowdist join host0:29400
    flowdist run --on slurm --nodes 2:8 -o partition=a  with 2 to 8 hosts, each of them a Slurm job

    Exit code 0 if the job has succeeded, 1 if it has failed, 2 if the run could not start, 70 if flowdist could not
    continue (the run can be resumed then), 130 if the job was cancelled.
    """
    needs_linux("run")
    plan = faults.plan()
    _refuse_mixtures(named, start, plan)
    check_engine(engine)
    _refuse_mixtures_with_engine(named, start, engine)
    more = {"resume": start.resume or "", "seed": start.seed or 0, "truncate_at": start.truncate_at}
    settings = display.settings(start.base, plan, named.as_json, **more)
    if named.target is not None and named.target.endswith(".json"):
        from flowdist.cli.run.hosts import run_compiled  # not needed for topologies

        _refuse_changes(named, script, engine)
        run_compiled(Path(named.target), start.listen, start.job_id, settings)
    graph = None
    if start.resume is None:
        loaded = _load(named, script, by_engine=bool(engine.on))
        graph = with_cold(loaded.graph, start.cold)
        if start.listen is None and not engine.on and not named.as_json:  # which other hosts will join is not known
            show_problems(problems_of_job(loaded, graph, plan))
        show_problems(problems_on(engine, loaded))
    if engine.on or (start.resume is not None and (find_run(Path(start.base), start.resume)[0] / ENGINE).exists()):
        from flowdist.cli.run import on_engine  # not needed on one host

        if start.dryrun and graph is not None:
            on_engine.print_scripts(graph, engine, settings, start.listen)
            return
        on_engine.run_on(graph, engine, start.listen, start.job_id, settings, in_job=start.in_controller_job)
    if start.listen is not None:
        from flowdist.cli.run.hosts import listen_for_hosts  # not needed on one host

        listen_for_hosts(graph, start.listen, start.job_id, settings, start.interface)
    execute(graph, settings)


def _refuse_mixtures(named: TopologyOptions, start: StartOptions, plan: Plan) -> None:
    """Refuse options that do not go together."""
    changes = (named.target, named.params, named.sets, named.nodes, start.cold)
    if start.resume is not None and any(changes):
        help = f"write flowdist run --resume {start.resume}"
        raise FlowdistError("--resume takes the topology of that run", help=help)
    if start.truncate_at is not None and start.resume is None:
        raise FlowdistError("--truncate-at goes with --resume", help="name the run: --resume RUN")
    if start.seed is not None and not plan.rates:
        help = "leave --seed out: nothing else in a run is drawn"
        raise FlowdistError(f"--seed {start.seed}: there is no --rate", help=help)
    if start.listen is None and start.job_id is not None:
        raise FlowdistError("--id goes with --listen", help="write --listen host0:29400, or leave --id out")
    if start.listen is None and start.interface:
        raise FlowdistError("--interface goes with --listen", help="write --listen host0:29400, or leave it out")
    if start.listen is not None and named.as_json:
        raise FlowdistError("--listen does not go with --json", help="leave one of the two out")


def _refuse_mixtures_with_engine(named: TopologyOptions, start: StartOptions, engine: EngineOptions) -> None:
    """Refuse options that do not go with an engine, or only with one."""
    if start.dryrun and (not engine.on or start.resume is not None):
        raise FlowdistError("--dryrun goes with --on and a topology", help="flowdist plan shows what runs here")
    if start.resume is not None and engine.words:
        raise FlowdistError("--resume takes the engine's options of that run", help="leave -o out")
    if engine.on and named.as_json:
        raise FlowdistError("--on does not go with --json", help="leave one of the two out")


def _refuse_changes(named: TopologyOptions, script: ScriptOptions, engine: EngineOptions) -> None:
    """Refuse options that would change a compiled graph, or where it runs."""
    given = (named.params, named.sets, named.nodes, script.replicas, script.max_restarts, script.args, engine.on)
    if any(each not in (None, (), "") for each in given):
        message = f"{named.target} is compiled: parameters, overrides, nodes and engines are for topologies"
        raise FlowdistError(message, help="change the topology, and export it again")


def _load(named: TopologyOptions, script: ScriptOptions, *, by_engine: bool) -> Loaded:
    """Compile a topology file, or a topology with one role for a script."""
    if named.target in COMPONENTS:
        raise FlowdistError(f"{named.target} has to come first", help=f"write flowdist run {named.target} [options]")
    path = Path((named.target or DEFAULT_FILE).partition(":")[0])
    if (script.replicas or script.max_restarts is not None) and not path.is_file():
        raise FlowdistError(f"no script {str(path)!r}", help="--replicas and --max-restarts go with a script")
    if named.target is not None:
        check_runnable(path)
    if named.target is None or not path.is_file() or looks_like_topology(path):
        _refuse_options_of_scripts(path, script)
        # A secret without a value is refused later, when all else is checked.
        return load(named, silent=["FD303"], by_engine=by_engine)
    if named.params:
        raise FlowdistError("-p is for topologies", help="write the script's own arguments after --")
    replicas, max_restarts = script.replicas or "1", script.max_restarts or 0
    loaded = one_role_graph(
        str(path), script.args, replicas=replicas, max_restarts=max_restarts, nodes=named.nodes, sets=named.sets
    )
    if not named.as_json:
        show_problems(loaded.warnings)
    return loaded


def _refuse_options_of_scripts(path: Path, script: ScriptOptions) -> None:
    """Raise if an option or argument for scripts is given with a topology."""
    options = {"--replicas": script.replicas, "--max-restarts": script.max_restarts}
    given = [name for name, value in options.items() if value]
    if given and path.is_file():
        help = f"write --set ROLE.{'replicas' if script.replicas else 'restart.max_restarts'}=..."
        raise FlowdistError(f"{given[0]} is for scripts, and {path} is a topology", help=help)
    if script.args:
        raise FlowdistError(f"{' '.join(script.args)}: a topology takes no arguments", help="pass parameters with -p")


def _script_in(words: Sequence[str]) -> str:
    return next((word for word in _before_dashes(words) if word.endswith(".py")), "")


def _before_dashes(words: Sequence[str]) -> Sequence[str]:
    return words[: words.index("--")] if "--" in words else words


def _replicas(words: Sequence[str]) -> str:
    """Return the value of --replicas for the --nnodes and --nproc-per-node among the words; empty if there is none."""
    from flowdist.torchrun.options import value_of  # as above

    nodes = value_of("--nnodes", words) or "1"
    procs = value_of("--nproc-per-node", words) or "1"
    return f"{nodes}x{procs}" if nodes.replace(":", "", 1).isdecimal() and procs.isdecimal() else ""


def _divided(words: Sequence[str], script: str, known: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Divide a command line into the words that `flowdist run` reads, and the script's own arguments."""
    before = _before_dashes(words)
    kept: list[str] = []
    own: list[str] = []
    part, values = kept, 0  # where the next word goes that is no option; how many values the last option still takes
    for word in before:
        name, equals, _ = word.partition("=")
        if values:
            values -= 1
        elif word == script:
            part = kept
        elif word.startswith("--") or word[:2] in known:
            is_known = name in known or not word.startswith("--")
            part = kept if is_known else own
            values = int(is_known and not equals and known.get(name, False))
        elif word.startswith("-"):
            part = own
        part.append(word)
    return kept, [*own, *words[len(before) + 1 :]]
