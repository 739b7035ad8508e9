"""Engines on the command line: `--on slurm -o partition=gpu`, and what an engine cannot honour of a topology."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from flowdist.cli.shared.options import gathered, repeated
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.engines.interface import Topic
from flowdist.errors import FlowdistError, did_you_mean

if TYPE_CHECKING:
    from flowdist.dsl.load import Loaded

ENGINES = ("slurm", "local", "hand", "jobset")


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
        raise FlowdistError(f"there is no engine {engine.on!r}", help=did_you_mean(engine.on, ENGINES))
    if engine.words and engine.on in ("", "local", "hand"):
        raise FlowdistError(f"-o {engine.words[0]}: no engine reads it", help="write --on slurm, or leave -o out")


def problems_on(engine: EngineOptions, loaded: Loaded) -> list[Problem]:
    """Return what the engine cannot honour of a topology; none without an engine."""
    check_engine(engine)
    topic, words = Topic(loaded.graph, loaded.arguments), engine.words
    match engine.on:
        case "slurm":
            from flowdist.engines.slurm import limits, options  # one engine is needed, if any

            return limits.find_problems(topic, options.read_options(words, [role.name for role in topic.graph.roles]))
        case "jobset":
            from flowdist.engines.jobset import manifests, problems  # as above
            from flowdist.engines.jobset.options import read_options

            asked = read_options(words, topic.graph)
            manifests.template_of(asked)  # refuses one that cannot be honoured
            return problems.problems(topic, asked.name, has_checkpoint_claim=bool(asked.checkpoint_claim))
    return []  # one machine honours everything, and a person chooses the hosts


def refuse_errors(problems: Sequence[Problem], on: str) -> list[Problem]:
    """Return the warnings among the problems."""
    if any(problem.severity == "error" for problem in problems):
        raise TopologyProblems(problems, f"of the topology on {on}")
    return list(problems)
