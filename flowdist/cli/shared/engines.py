"""Engines on the command line: `--on slurm -o partition=gpu`, and what an engine cannot honour of a topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from flowdist.cli.shared.options import gathered, repeated
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.engines.interface import Topic
from flowdist.errors import FlowdistError, did_you_mean

if TYPE_CHECKING:
    from flowdist.dsl.load import Loaded

F = TypeVar("F", bound=Callable[..., object])


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
    """Refuse an unknown engine, and options without one.

    Raises:
        FlowdistError: The engine is unknown, or options are given that no engine reads.
    """
    if engine.on and engine.on not in _PROBLEMS:
        raise FlowdistError(f"there is no engine {engine.on!r}", help=did_you_mean(engine.on, _PROBLEMS))
    if engine.words and engine.on in ("", "local", "hand"):
        raise FlowdistError(f"-o {engine.words[0]}: no engine reads it", help="write --on slurm, or leave -o out")


def problems_on(engine: EngineOptions, loaded: Loaded) -> list[Problem]:
    """Return what the engine cannot honour of a topology; none without an engine.

    Raises:
        FlowdistError: The engine is unknown, or its options are wrong.
    """
    check_engine(engine)
    return _PROBLEMS[engine.on](engine.words, Topic(loaded.graph, loaded.arguments)) if engine.on else []


def refuse_errors(problems: Sequence[Problem], on: str) -> list[Problem]:
    """Return the warnings among the problems.

    Raises:
        TopologyProblems: Some of the problems are errors; the exception has all of them.
    """
    if any(problem.severity == "error" for problem in problems):
        raise TopologyProblems(problems, f"of the topology on {on}")
    return list(problems)


def _on_slurm(words: Sequence[str], topic: Topic) -> list[Problem]:
    from flowdist.engines.slurm.limits import find_problems  # one engine is needed, if any
    from flowdist.engines.slurm.options import read_options

    return find_problems(topic, read_options(words, [role.name for role in topic.graph.roles]))


def _on_local(words: Sequence[str], topic: Topic) -> list[Problem]:
    from flowdist.engines.local import LocalProcesses  # as above

    return LocalProcesses(Path()).problems(topic)


def _on_hand(words: Sequence[str], topic: Topic) -> list[Problem]:
    from flowdist.engines.by_hand import ByHand  # as above

    return ByHand(print).problems(topic)


def _on_jobset(words: Sequence[str], topic: Topic) -> list[Problem]:
    from flowdist.engines.jobset.manifests import template_of  # as above
    from flowdist.engines.jobset.options import read_options
    from flowdist.engines.jobset.problems import problems

    options = read_options(words, topic.graph)
    template_of(options)  # refuses one that cannot be honoured
    return problems(topic, options.name, has_checkpoint_claim=bool(options.checkpoint_claim))


_PROBLEMS = {"slurm": _on_slurm, "local": _on_local, "hand": _on_hand, "jobset": _on_jobset}
