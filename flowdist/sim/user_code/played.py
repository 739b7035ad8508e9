"""The results of user code in a simulation: the steps that count, the state at the end, and the exceptions.

A world that resumes from an earlier step drops the results of the later steps, and does these steps again. What is left
at the end is the history that counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from flowdist.control.protocol.ids import ReplicaId
from flowdist.sim.user_code.answers import raised_by_equal, rounding_text, same


class PlayedStep(NamedTuple):
    """Result of one step: the generation that did it, the samples that all ranks consumed, and what rank 0 logged."""

    generation: int
    samples: tuple[object, ...]
    logged: dict[str, object]


class Resumed(NamedTuple):
    """Record that a generation of a world began its work at a step, at the time `at_ns`."""

    generation: int
    step: int
    at_ns: int


class ModelError(NamedTuple):
    """An exception of user code, for which its worker exits at the time `at_ns`."""

    replica: ReplicaId
    attempt: int
    at_ns: int
    line: str  # the last line of the traceback
    text: str  # the traceback
    place: str = ""  # the file, the line and the method in the user's code; empty if unknown


@dataclass(slots=True)
class Played:
    """All results of user code in one simulation."""

    steps: dict[str, dict[int, PlayedStep]] = field(default_factory=dict)  # by world and number of the step, from 0
    resumed: dict[str, list[Resumed]] = field(default_factory=dict)  # by world
    ends: dict[str, dict[str, object]] = field(default_factory=dict)  # what `state()` returned, by world or service
    clashes: list[str] = field(default_factory=list)  # a line for each value of `state()` that ranks disagree on
    errors: list[ModelError] = field(default_factory=list)
    saves: list[tuple[int, int]] = field(default_factory=list)  # begin and end of each checkpoint of a task, in ns
    calls: int = 0  # steps of worlds that were played, repeated ones included

    def resumes(self, world: str, generation: int, step: int, now: int) -> None:
        """Record that a generation resumes from a step, and drop the results of that step and of later ones."""
        self.resumed.setdefault(world, []).append(Resumed(generation, step, now))
        steps = self.steps.setdefault(world, {})
        for number in [number for number in steps if number >= step]:
            del steps[number]

    def ended(self, name: str, states: list[dict[str, object]]) -> None:
        """Merge what `state()` of the ranks has returned into one dict, the end of the world or service `name`.

        Where ranks differ, the value of the lowest rank is kept, and the difference is added to `clashes`.
        """
        whole: dict[str, object] = {}
        for rank, state in enumerate(states):
            for key, value in state.items():
                if key in whole and not same(whole[key], value):
                    raised, rounded = raised_by_equal(whole[key], value), rounding_text([(whole[key], value)])
                    what = f"{key} of {name} is not the same on all ranks"
                    self.clashes.append(f"{what}: rank {rank} has {value!r}{raised}{rounded}")
                whole.setdefault(key, value)
        self.ends[name] = whole
