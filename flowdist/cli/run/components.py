"""`flowdist run dist.ddp` and `dist.spmd`: TorchX's builtins with TorchX's options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from flowdist import components
from flowdist.cli.run.console import Shown
from flowdist.cli.run.run import carry_out, needs_linux
from flowdist.cli.shared.common import guarded, show_problems
from flowdist.dsl import Topology
from flowdist.dsl.load import compile_loaded
from flowdist.dsl.oneline import written_on_the_command_line
from flowdist.dsl.problems.places import CLI
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.faults.files import parse_plan

OF_TORCHX = (
    click.option("--script", metavar="FILE", help="The script; its own arguments stand behind --."),
    click.option("-m", "--m", metavar="MODULE", help="Instead of a script: a module."),
    click.option("-j", "--j", metavar="[MIN:]NNODESxNPROC", help="Logical nodes, and processes on each: 2x8, 2:4x8."),
    click.option("--name", default="/", metavar="EXPERIMENT/RUN", help="Both may be left out."),
    click.option("-h", "--h", metavar="SIZE", help="A named size, of flowdist.toml."),
    click.option("--env", "env", multiple=True, metavar="A=1,B=2", help="Variables of the workers."),
    click.option("--max_retries", "--max-retries", type=int, default=0, help="How often a failure restarts the job."),
    click.option("--debug", is_flag=True, help="Variables that make torch and NCCL talk."),
    click.option("--mounts", multiple=True, help="Refused: processes on this machine see its files."),
    click.option("--image", help="Refused, likewise."),
)
OF_DDP = (
    click.option("--cpu", type=float, default=2, help="Cores of a node."),
    click.option("--gpu", type=int, default=0, help="GPUs of a node."),
    click.option("--memMB", "memMB", type=int, default=1024, help="Memory of a node."),
    click.option("--rdzv_port", "--rdzv-port", help="Refused: each generation has a store on a port of its own."),
    click.option("--rdzv_backend", "--rdzv-backend", help="Refused: on one machine there is nothing to choose."),
    click.option("--tee", help="Refused: the terminal shows all output, files have it too."),
)
REFUSED = {
    "rdzv_port": "each generation has a store on a port of its own",
    "rdzv_backend": "on one machine there is nothing to choose",
    "tee": "the terminal shows all output, and files have it too",
}
OF_RUN = (
    click.option("--set", "sets", multiple=True, metavar="[ROLE.]FIELD=VALUE", help="As of flowdist run."),
    click.option("--fail", "fails", multiple=True, metavar="FAULT", help="As of flowdist run."),
    click.option("--scale", "scales", multiple=True, metavar="ROLE=N@WHEN", help="As of flowdist run."),
    click.option("--drain", "drains", multiple=True, metavar="NODE@WHEN", help="As of flowdist run."),
    click.option("--runs", "base", default="runs", metavar="DIR", help="As of flowdist run."),
    click.option("--quiet", "-q", is_flag=True, help="As of flowdist run."),
    click.option("--plain", is_flag=True, help="As of flowdist run."),
    click.option("--detach", "-d", is_flag=True, help="As of flowdist run."),
    click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="As of flowdist run."),
    click.option("--json", "as_json", is_flag=True, help="As of flowdist run."),
    click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGUMENTS]"),
)


def _command(name: str, component: Callable[..., Topology], options: Iterable[Callable[..., Any]]) -> click.Command:
    @guarded
    def run(
        args: tuple[str, ...],
        j: str | None,
        env: tuple[str, ...],
        sets: tuple[str, ...],
        fails: tuple[str, ...],
        scales: tuple[str, ...],
        drains: tuple[str, ...],
        base: str,
        quiet: bool,
        plain: bool,
        detach: bool,
        metrics_port: int | None,
        as_json: bool,
        **others: Any,
    ) -> None:
        needs_linux("run")
        plan = parse_plan(fails, scales, drains=drains)
        try:
            for option, why in REFUSED.items():
                if (value := others.pop(option, None)) is not None:
                    help = "leave it out"
                    raise TopologyProblems([Problem("FD154", f"--{option} {value}: {why}", help, CLI)])
            size = {} if j is None else {"j": j}
            topology = component(*args, env=variables_of(env), **size, **others)
        except TopologyProblems as error:
            problems = [problem._replace(place=CLI) for problem in error.problems]
            raise TopologyProblems(problems, where="on the command line") from None
        loaded = compile_loaded(written_on_the_command_line(topology), sets)
        if not as_json:
            show_problems(loaded.warnings)
        shown = Shown(quiet, as_json, live=not plain)
        carry_out(loaded.graph, plan, Path(base), shown=shown, detach=detach, metrics_port=metrics_port)

    decorated: Any = run
    for option in reversed([*OF_TORCHX, *options, *OF_RUN]):
        decorated = option(decorated)
    text = f"{(component.__doc__ or '').splitlines()[0]}\n\nThe options are TorchX's; see docs/torchx.md."
    return click.command(name=name, help=text, context_settings={"help_option_names": ["--help"]})(decorated)


def variables_of(texts: Iterable[str]) -> dict[str, str]:
    """`A=1,B=2`, as TorchX has it: a comma that no NAME= follows is part of the value.

    Raises:
        TopologyProblems: for what has no `=`.
    """
    values: dict[str, str] = {}
    for text in texts:
        for pair in re.split(r"[,;](?=[A-Za-z_]\w*=)", text):
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise TopologyProblems([Problem("FD154", f"--env {text}: {pair!r} has no value", "write A=1,B=2", CLI)])
            values[name.strip()] = value
    return values


COMMANDS = {
    "dist.ddp": _command("dist.ddp", components.ddp, OF_DDP),
    "dist.spmd": _command("dist.spmd", components.spmd, ()),
}
