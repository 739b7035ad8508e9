"""Engines on the command line: `--on slurm -o partition=gpu`, and what an engine cannot honour of a topology."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from flowdist.cli.shared.options import gathered, repeated
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.engines import ENGINES, engine_of
from flowdist.engines.interface import Topic, refuse_options
from flowdist.errors import FlowdistError, did_you_mean

if TYPE_CHECKING:
    from flowdist.dsl.load import Loaded


class EngineOptions(NamedTuple):
    """The engine on the command line, empty for none, and its options as text."""

    on: str
    words: tuple[str, ...]


engine_options = gathered(
    "engine",
    EngineOptions,
    click.option("--on", default="", metavar="ENGINE", help="Engine that starts the hosts: slurm, local or hand."),
    repeated("-o", "words", metavar="[ROLE.]NAME=VALUE", help="An option of the engine: docs/slurm.md."),
)


def check_engine(engine: EngineOptions) -> None:
    """Refuse an unknown engine, and options without one."""
    if engine.on and engine.on not in ENGINES:
        help = f"{did_you_mean(engine.on, ENGINES)}; for Kubernetes write flowdist export --to jobset -o image=IMAGE"
        raise FlowdistError(f"there is no engine {engine.on!r}", help=help)
    if engine.words and not engine.on:
        refuse_options(engine.words)


def problems_on(engine: EngineOptions, loaded: Loaded) -> list[Problem]:
    """Return what the engine honours in another way; raise TopologyProblems for what it cannot honour of a topology."""
    check_engine(engine)
    if not engine.on:
        return []
    found = engine_of(engine.on).find_problems(Topic(loaded.graph, loaded.arguments), engine.words)
    if any(problem.severity == "error" for problem in found):
        raise TopologyProblems(found, f"of the topology on {engine.on}")
    return found
