"""Course of the work of one generation in macro mode: its position at any time, and the time of any position.

The *position* is nominal time since the first step, in ns: work, and what checkpoints block. It is negative while the
generation warms up. It advances with time, slower by the pace of the slowest member.

`WorldModel` of the simulator computes the same one by one: tests compare the two.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

EVEN = Fraction(1)  # the pace of a generation in which no member is slow


class Change(NamedTuple):
    """State of a course from one change to the next."""

    since: int  # time of the change, in ns
    base: int  # the position at that time, in ns
    pace: Fraction  # how many times longer than nominal everything takes

    def position(self, time: int) -> int:
        """Return the position at a time, in ns, if nothing else changes. `time` is not before `since`."""
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
        """Return when the position, which is not before `base` nor below 0, is reached, in ns, if nothing changes."""
        if self.pace is EVEN or self.pace == 1:
            return self.since + position - self.base
        slow, even = self.pace.numerator, self.pace.denominator
        at, base = self.since, self.base
        if base < 0:
            at -= base * slow // even
            base = 0
        return at - (base - position) * slow // even


class Course:
    """Course of a generation whose last member had started up at `begun` (ns), at the pace of the slowest member.

    `warmup_ns` is the nominal time from then to the first step.
    """

    def __init__(self, begun: int, warmup_ns: int, pace: Fraction) -> None:
        self._changes = [Change(begun, -warmup_ns, pace)]

    def position(self, time: int) -> int:
        """Return the position at a time, in ns. Before the beginning it is below that of the beginning."""
        for change in reversed(self._changes):
            if change.since <= time:
                return change.position(time)
        first = self._changes[0]
        return first.base + time - first.since

    def time_of(self, position: int) -> int:
        """Return when a position that lies ahead is reached, in ns, if nothing changes."""
        return self._changes[-1].time_of(position)

    def set_pace(self, pace: Fraction, now: int) -> None:
        """Advance with this pace from now on. The position is rounded, even if the pace is the same as before."""
        self._changes.append(Change(now, self.position(now), pace))
