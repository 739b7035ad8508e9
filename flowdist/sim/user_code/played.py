"""What user code did in a simulation: each step of the history that counts, how it ended, and what it raised.

A world that resumes from an earlier step takes back what it did since: the history that counts is the one that led to
the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from flowdist.control.protocol.ids import ReplicaId
from flowdist.sim.user_code.answers import same


class PlayedStep(NamedTuple):
    """`samples` of all ranks; `logged` by rank 0."""

    generation: int
    samples: tuple[object, ...]
    logged: dict[str, object]


class Resumed(NamedTuple):
    """A generation of a world began to work, from that step."""

    generation: int
    step: int
    at_ns: int


class ModelError(NamedTuple):
    """What user code raised: an exit of its worker. `text` is its traceback, `line` the last line of it.

    `place` is the file, the line and the method.
    """

    replica: ReplicaId
    attempt: int
    at_ns: int
    line: str
    text: str
    place: str = ""


@dataclass(slots=True)
class Played:
    """By world; of services by replica. `saves` are the times in which something was being saved."""

    steps: dict[str, dict[int, PlayedStep]] = field(default_factory=dict)
    resumed: dict[str, list[Resumed]] = field(default_factory=dict)
    ends: dict[str, dict[str, object]] = field(default_factory=dict)
    clashes: list[str] = field(default_factory=list)  # keys of the state of which ranks have different values
    errors: list[ModelError] = field(default_factory=list)
    saves: list[tuple[int, int]] = field(default_factory=list)
    calls: int = 0  # of `step`: how often user code was asked for one

    def resumes(self, world: str, generation: int, step: int, now: int) -> None:
        """What was done from that step on no longer counts."""
        self.resumed.setdefault(world, []).append(Resumed(generation, step, now))
        steps = self.steps.setdefault(world, {})
        for number in [number for number in steps if number >= step]:
            del steps[number]

    def ended(self, name: str, states: list[dict[str, object]]) -> None:
        """What the ranks of a world say of their state is one state; where they say the same thing, it is the same."""
        whole: dict[str, object] = {}
        for rank, state in enumerate(states):
            for key, value in state.items():
                if key in whole and not same(whole[key], value):
                    self.clashes.append(f"{key} of {name} is not the same on all ranks: rank {rank} has {value!r}")
                whole.setdefault(key, value)
        self.ends[name] = whole
