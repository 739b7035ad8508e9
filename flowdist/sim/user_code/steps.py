"""Steps and checkpoints of one generation of a world, on the axis of nominal time that begins with its first step."""

from __future__ import annotations

from typing import NamedTuple

from flowdist.graph import WorkloadSpec


class Done(NamedTuple):
    """Steps `first` + 1 to `last`, which a generation did, with the number of members of each role that did them."""

    first: int
    last: int
    by: dict[str, int]
    step_ns: int  # the time of one of them


class Steps(NamedTuple):
    """Steps of a generation: how long each takes, and which of them is done at a *position*.

    A position is a nominal time in ns since the first step: work, and what checkpoints block, as the workload says.
    """

    load: WorkloadSpec
    first: int  # the step from which the generation began
    ns: int  # the time of a step in its size

    def position_of(self, step: int) -> int:
        """Return the position at which so many steps of the task are done."""
        work = (step - self.first) * self.ns
        return work + max(0, work - 1) // self.load.checkpoint_every_ns * self.load.blocking_ns

    @property
    def end(self) -> int:
        """Return the position at which all steps of the task are done."""
        return self.position_of(self.load.steps)

    def at(self, position: int) -> int:
        """Return how many steps of the task are done at a position; below 0 it is as many as at 0."""
        cycles, rest = divmod(max(0, position), self.load.cycle_ns)
        worked = cycles * self.load.checkpoint_every_ns + min(rest, self.load.checkpoint_every_ns)
        return min(self.load.steps, self.first + worked // self.ns)

    def of_checkpoint(self, number: int) -> int:
        """Return how many steps checkpoint `number` (from 1) of the generation has."""
        return min(self.load.steps, self.first + number * self.load.checkpoint_every_ns // self.ns)
