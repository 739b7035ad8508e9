"""JobSet behind `--on`: it checks a topology. `flowdist export` writes the JobSet, and Kubernetes starts its pods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from flowdist.dsl.problems.problem import Problem
from flowdist.engines.interface import Engine, Topic
from flowdist.engines.jobset.manifests import template_of
from flowdist.engines.jobset.options import read_options
from flowdist.engines.jobset.problems import problems
from flowdist.errors import FlowdistError


class JobSet(Engine):
    """The engine of flowdist that only checks."""

    @classmethod
    def find_problems(cls, topic: Topic, words: Sequence[str]) -> list[Problem]:
        """Return what a JobSet with these options cannot honour of a topology."""
        asked = read_options(words, topic.graph)
        template_of(asked)  # refuses one that cannot be honoured
        return problems(topic, asked.name, has_checkpoint_claim=bool(asked.checkpoint_claim))

    @classmethod
    def employ(cls, words: Sequence[str], roles: Sequence[str], folder: str) -> NoReturn:
        """Raise FlowdistError: there is nothing to employ."""
        help = "write flowdist export --to jobset -o image=IMAGE | kubectl apply --server-side -f -"
        raise FlowdistError("run does not start jobs on Kubernetes", help=help)
