"""The results of user code in a simulation: each step of the history that counts, how it ended, and what it raised.

A world that resumes from an earlier step takes back the steps after it. The history that counts is the one that led to
the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from flowdist.control.protocol.ids import ReplicaId
from flowdist.sim.user_code.answers import same


class PlayedStep(NamedTuple):
    """A step: `samples` are those of all ranks, `logged` the values that rank 0 logged."""

    generation: int
    samples: tuple[object, ...]
    logged: dict[str, object]


class Resumed(NamedTuple):
    """A generation of a world that began to work from a step."""

    generation: int
    step: int
    at_ns: int


class ModelError(NamedTuple):
    """An exception of user code, which is an exit of its worker.

    `text` is the traceback, `line` its last line, and `place` the file, the line and the method.
    """

    replica: ReplicaId
    attempt: int
    at_ns: int
    line: str
    text: str
    place: str = ""


@dataclass(slots=True)
class Played:
    """Results by world, and of services by replica. `saves` are the times in which something was being saved."""

    steps: dict[str, dict[int, PlayedStep]] = field(default_factory=dict)
    resumed: dict[str, list[Resumed]] = field(default_factory=dict)
    ends: dict[str, dict[str, object]] = field(default_factory=dict)
    clashes: list[str] = field(default_factory=list)  # values of the state that differ between ranks
    errors: list[ModelError] = field(default_factory=list)
    saves: list[tuple[int, int]] = field(default_factory=list)
    calls: int = 0  # of `step()`

    def resumes(self, world: str, generation: int, step: int, now: int) -> None:
        """Note that a generation resumes from a step: steps from there on do not count any more."""
        self.resumed.setdefault(world, []).append(Resumed(generation, step, now))
        steps = self.steps.setdefault(world, {})
        for number in [number for number in steps if number >= step]:
            del steps[number]

    def ended(self, name: str, states: list[dict[str, object]]) -> None:
        """Merge what the ranks of a world say of their state at the end; where they differ, note the clash."""
        whole: dict[str, object] = {}
        for rank, state in enumerate(states):
            for key, value in state.items():
                if key in whole and not same(whole[key], value):
                    self.clashes.append(f"{key} of {name} is not the same on all ranks: rank {rank} has {value!r}")
                whole.setdefault(key, value)
        self.ends[name] = whole
