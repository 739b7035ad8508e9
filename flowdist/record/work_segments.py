"""A stretch of work of one generation, as far as a record tells of it: from when all of it runs to when it halts.

Positions are ns of work: time since the stretch began, without what was stalled. What is told are steps and
checkpoints; when the work itself began, and what of it was kept, follows from them:

* The first report comes at the end of the steps before it: those since the step that it resumed from, where that is
  known, else one. Work began so much earlier, by the pace of the two reports that follow each other first.
* Where checkpoints are told, what comes after the last of them is lost when the world halts; where they are not,
  nothing is lost that is not seen to be done again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from flowdist.record.accounts import Bucket

MARKS_MAX = 128


@dataclass(slots=True)
class WorkSegment:
    """`marks` are (position, step) of reports, the most advanced worker's. `resumed` is the step that it began with."""

    begun_ns: int
    resumed: int | None = None  # None: nobody knows
    marks: list[tuple[int, int]] = field(default_factory=list)
    second: tuple[int, int] | None = None  # the report after the first: marks are thinned
    saved: int | None = None  # position of the last checkpoint
    stalled_ns: int = 0
    stalled_since: int | None = None
    moved_ns: int = 0  # when it last showed that it goes on

    def position(self, at: int) -> int:
        """How much was worked by then."""
        if self.stalled_since is not None:
            at = min(at, self.stalled_since)
        return max(0, at - self.begun_ns - self.stalled_ns)

    def reports(self, step: int, now: int) -> None:
        """A worker is at that step."""
        if self.marks and step <= self.marks[-1][1]:
            return
        self.moved_ns = now
        self.marks.append((self.position(now), step))
        if len(self.marks) == 2:
            self.second = self.marks[1]
        if len(self.marks) > MARKS_MAX:
            self.thin(MARKS_MAX // 2)

    def thin(self, most: int) -> None:
        """A journal of days has many reports: the first and the last stay, and of those between as many as may be."""
        while len(self.marks) > most:
            self.marks = [self.marks[0], *self.marks[1:-1:2][1:], self.marks[-1]]

    def saves(self, step: int, now: int) -> None:
        """A checkpoint counts; it holds what was done by that step, where reports tell when that was."""
        position = self.position(now)
        if step and self.marks and self.marks[0][1] <= step < self.marks[-1][1]:
            position = self.when(step)
        self.moved_ns, self.saved = now, max(position, self.saved or 0)

    def stalls(self, since: int) -> None:
        if self.stalled_since is None:
            self.stalled_since = max(since, self.begun_ns, self.moved_ns)

    def goes_on(self, now: int) -> None:
        if self.stalled_since is not None:
            self.stalled_ns += now - self.stalled_since
            self.stalled_since, self.moved_ns = None, now

    def when(self, step: int) -> int:
        """The position at which that step was done: between two reports in proportion, and on after the last."""
        if not self.marks or step < self.marks[0][1]:
            return 0
        for (before, low), (after, high) in pairwise(self.marks):
            if step < high:
                return before + (after - before) * (step - low) // (high - low)
        last, reached = self.marks[-1]
        ns, steps = self.pace() or (0, 1)
        return last + (step - reached) * ns // steps

    def pace(self) -> tuple[int, int] | None:
        """So many ns for so many steps: the time between the first two reports. None before there are two."""
        if self.second is None:
            return None
        (at, step), (then, further) = self.marks[0], self.second
        return then - at, further - step

    def begins_at(self, pace: tuple[int, int] | None) -> int:
        """The position at which work began, and start-up ended. `pace` is that of an earlier stretch, if any."""
        if not self.marks:
            return 0
        first, step = self.marks[0]
        ns, steps = self.pace() or pace or (0, 1)
        before = max(1, step - self.resumed) if self.resumed is not None else 1
        return max(0, first - min(ns, before * ns // steps))


@dataclass(slots=True)
class ClosedSegment:
    """A stretch that has halted: from `start` to `end` it worked, and what was done up to `kept` was of use."""

    stretch: WorkSegment
    start: int
    end: int
    kept: int
    counts: dict[str, int]  # members that halted, by role

    def resumes(self, step: int) -> int:
        """The next generation goes on from that step. How much more was kept than was thought; negative: less."""
        before, self.kept = self.kept, min(max(self.stretch.when(step), self.start), self.end)
        return self.kept - before


def split(start: int, kept: int, end: int, lasted_ns: int) -> dict[Bucket, int]:
    """What a stretch was spent on, in ns: these add up to how long it lasted."""
    return {
        "start-up": start,
        "productive": kept - start,
        "lost work": end - kept,
        "stalled": lasted_ns - end,
    }
