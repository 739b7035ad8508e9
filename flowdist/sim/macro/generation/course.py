"""Course of the work of one generation in macro mode: its position at any time, and the time of any position.

The *position* is nominal time since the first step, in ns: work, and what checkpoints block. It is negative while the
generation warms up. It advances with time, slower by the pace of the slowest member, and not at all while the
generation waits for a service:

    position
       ^                       /  as slow as the slowest member
       |                 _____/
       |                /  waits for a service
     0 +---------------/------------------------> time
       |   warms up   /
       |             begun + warm-up

`WorldModel` of the simulator computes the same step by step: tests compare the two.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from flowdist.sim.macro.result import NEVER

EVEN = Fraction(1)  # the pace of a generation in which no member is slow


class Change(NamedTuple):
    """State of a course from one change to the next."""

    since: int  # time of the change, in ns
    base: int  # the position at that time, in ns
    pace: Fraction  # how many times longer than nominal everything takes
    is_stalled: bool  # the position stays as it is

    def position(self, time: int) -> int:
        """Return the position at a time, in ns, if nothing else changes. `time` is not before `since`."""
        if self.is_stalled:
            return self.base
        passed = time - self.since
        if self.pace is EVEN or self.pace == 1:  # the comparison of fractions is slow
            return self.base + passed
        slow, even = self.pace.numerator, self.pace.denominator
        base = self.base
        if base < 0:  # rounded such that the warm-up ends at a whole ns
            warms = -(base * slow // even)
            if passed < warms:
                return base + passed * even // slow
            base, passed = 0, passed - warms
        return base + passed * even // slow

    def time_of(self, position: int) -> int:
        """Return when the position is reached, in ns, if nothing else changes; NEVER if the course is stalled.

        `position` is not before `base`, nor below 0.
        """
        if self.is_stalled:
            return NEVER
        if self.pace is EVEN or self.pace == 1:
            return self.since + position - self.base
        slow, even = self.pace.numerator, self.pace.denominator
        at, base = self.since, self.base
        if base < 0:
            at -= base * slow // even
            base = 0
        return at - (base - position) * slow // even


class Course:
    """Course of one generation.

    Args:
        begun: When the last member had started up, in ns.
        warmup_ns: Nominal time from then to the first step.
        pace: How many times longer than nominal the slowest member takes.
        is_stalled: The generation waits from the first moment on, until `resume`.

    Attributes:
        is_even: The generation has never waited, and no member has become slow or fast: one formula has all positions.
    """

    def __init__(self, begun: int, warmup_ns: int, pace: Fraction, *, is_stalled: bool) -> None:
        self._changes = [Change(begun, -warmup_ns, pace, is_stalled)]
        self.is_even = not is_stalled

    def position(self, time: int) -> int:
        """Return the position at a time, in ns. Before the beginning it is below that of the beginning."""
        for change in reversed(self._changes):
            if change.since <= time:
                return change.position(time)
        first = self._changes[0]
        return first.base + time - first.since

    def time_of(self, position: int) -> int:
        """Return when a position that lies ahead is reached, in ns, if nothing changes; NEVER while it waits."""
        return self._changes[-1].time_of(position)

    def stall(self, now: int) -> None:
        """Stop at the present position until `resume`."""
        self._change(now, is_stalled=True)

    def resume(self, now: int) -> None:
        """Advance again after `stall`."""
        self._change(now, is_stalled=False)

    def set_pace(self, pace: Fraction, now: int) -> None:
        """Advance with this pace from now on. The position is rounded, even if the pace is the same as before."""
        self._change(now, pace=pace)

    def _change(self, now: int, *, is_stalled: bool | None = None, pace: Fraction | None = None) -> None:
        self.is_even, last = False, self._changes[-1]
        pace, is_stalled = pace or last.pace, last.is_stalled if is_stalled is None else is_stalled
        self._changes.append(Change(now, self.position(now), pace, is_stalled))
