"""`flowdist run dist.ddp` and `dist.spmd`: the builtin components of TorchX, with the options of TorchX."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from flowdist import components
from flowdist.cli.run.execution import DisplayOptions, display_options, execute, needs_linux
from flowdist.cli.shared.common import paint, show_problems, verb
from flowdist.cli.shared.options import FaultOptions, fault_options, json_option, runs_option, set_option
from flowdist.dsl import Topology
from flowdist.dsl.load import compile_loaded
from flowdist.dsl.oneline import written_on_the_command_line
from flowdist.dsl.problems.places import CLI
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.torchrun.conf import DEAD_TIMERS, entries_of, pair_of, unquoted
from flowdist.torchrun.variables import idle_variables

TORCHX_OPTIONS = (
    click.option("--script", metavar="FILE", help="The script; its own arguments stand after --."),
    click.option("-m", "--m", metavar="MODULE", help="A module, instead of a script."),
    click.option("-j", "--j", metavar="[MIN:]NNODESxNPROC", help="Logical nodes, and processes on each: 2x8, 2:4x8."),
    click.option("--name", default="/", metavar="EXPERIMENT/RUN", help="Both parts may be left out."),
    click.option("-h", "--h", metavar="SIZE", help="A named size of flowdist.toml."),
    click.option("--env", "env", multiple=True, metavar="A=1,B=2", help="Environment variables of the workers."),
    click.option("--max_retries", "--max-retries", type=int, default=0, help="Restarts of the job (default: 0)."),
    click.option("--debug", is_flag=True, help="Set the variables that make torch and NCCL log more."),
    click.option("--mounts", multiple=True, help="Refused: the processes see the files of this machine."),
    click.option("--image", help="Refused: the processes run on this machine, in no container."),
    click.option("--metadata", help="Refused: no scheduler gets it."),
    click.option("--gpu", type=int, default=0, help="GPUs of a node (default: 0)."),
)
# One NAME=VALUE: up to a comma or semicolon before the next NAME=, but not to one inside quotation marks.
PAIR = re.compile(r"""(?:=\s*"[^"]*"|=\s*'[^']*'|(?![,;]\s*[A-Za-z_]\w*=).)+""", re.DOTALL)
REFUSED = {
    "rdzv_port": "each generation has a store on a port of its own",
    "tee": "the terminal shows all output, and files have it too",
}
DDP_OPTIONS = (
    click.option("--cpu", type=float, default=2, help="Cores of a node (default: 2)."),
    click.option("--memMB", "memMB", type=int, default=1024, help="Memory of a node in MB (default: 1024)."),
    click.option(
        "--rdzv_conf", "--rdzv-conf", metavar="A=1,B=2", help="join_timeout and last_call_timeout, in seconds."
    ),
    click.option("--rdzv_port", "--rdzv-port", help=f"Refused: {REFUSED['rdzv_port']}."),
    click.option("--rdzv_backend", "--rdzv-backend", default="c10d", help="c10d or static, which are the same here."),
    click.option("--tee", help=f"Refused: {REFUSED['tee']}."),
)
RUN_OPTIONS = (
    set_option,
    fault_options("fails", "scales", "drains"),
    runs_option,
    display_options,
    json_option,
    click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGUMENTS]"),
)


def _command(name: str, component: Callable[..., Topology], options: Iterable[Callable[..., Any]]) -> click.Command:
    """Return the command `run NAME`, which makes a topology by the component and runs it."""

    def run(
        args: tuple[str, ...],
        sets: tuple[str, ...],
        faults: FaultOptions,
        base: str,
        display: DisplayOptions,
        as_json: bool,
        **of_component: Any,
    ) -> None:
        needs_linux("run")
        plan = faults.plan()
        topology = _topology(component, args, of_component)
        loaded = compile_loaded(written_on_the_command_line(topology), sets)
        if not as_json:
            show_problems(loaded.warnings)
            for note in _notes(topology, of_component, os.environ):
                paint(f"flowdist: {note}", fg="yellow", err=True)
        execute(loaded.graph, display.settings(base, plan, as_json))

    decorated: Any = run
    for option in reversed([*TORCHX_OPTIONS, *options, *RUN_OPTIONS]):
        decorated = option(decorated)
    text = f"{(component.__doc__ or '').splitlines()[0]}\n\nThe options are TorchX's; see docs/torchx.md."
    return verb(name, help=text, context_settings={"help_option_names": ["--help"]})(decorated)


def _topology(component: Callable[..., Topology], args: tuple[str, ...], options: dict[str, Any]) -> Topology:
    """Call the component with the options of the command line, and return its topology."""
    try:
        for option, why in REFUSED.items():
            if (value := options.pop(option, None)) is not None:
                raise TopologyProblems([Problem("FD154", f"--{option} {value}: {why}", "leave it out", CLI)])
        options["env"] = variables_of(options["env"])
        if options["metadata"] is not None:
            options["metadata"] = variables_of([options["metadata"]])
        if options["j"] is None:
            del options["j"]  # the default of the component
        return component(*args, **options)
    except TopologyProblems as error:
        problems = [problem._replace(place=CLI) for problem in error.problems]
        raise TopologyProblems(problems, where="on the command line") from None


def _notes(topology: Topology, options: Mapping[str, Any], env: Mapping[str, str]) -> list[str]:
    """Return what the user should know about: a name that is changed, and what has no effect."""
    notes: list[str] = []
    name = options["name"]
    run = name.partition("/")[2] if "/" in name else name
    if run not in ("", topology.name):
        changed = f"folders and messages call the run {topology.name}: they take lower-case letters, digits, - and _"
        notes.append(f"{changed}; TORCHX_TRACKING_RUN_NAME is {run}")
    entries = [entry for entry in entries_of(options.get("rdzv_conf") or "") if pair_of(entry)[0] in DEAD_TIMERS]
    idle = [f"{entry} of --rdzv_conf" for entry in entries] + idle_variables(env, "TORCHX_")
    if idle:
        notes.append(f"these change nothing here: {', '.join(idle)} (docs/torchx.md says why)")
    return notes


def variables_of(texts: Iterable[str]) -> dict[str, str]:
    """Return the variables of `A=1,B=2`, read as TorchX does: a comma without a NAME= after it is part of the value."""
    values: dict[str, str] = {}
    for text in texts:
        for pair in PAIR.findall(text):
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise TopologyProblems([Problem("FD154", f"--env {text}: {pair!r} has no value", "write A=1,B=2", CLI)])
            values[name.strip()] = unquoted(value)
    return values


COMMANDS = {
    "dist.ddp": _command("dist.ddp", components.ddp, DDP_OPTIONS),
    "dist.spmd": _command("dist.spmd", components.spmd, ()),
}
