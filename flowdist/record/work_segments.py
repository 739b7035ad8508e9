"""Work segment: the work of one generation of a world, from when all members run until the world halts.

A position is the work done in nanoseconds: the time since the segment began, without stalls. The record reports steps
and checkpoints. From these follows when the steps began, and how much work was kept:

* The first report comes at the end of the steps since the step that the generation resumed from, or of one step if that
  is unknown. The steps began so much earlier, by the pace between the first two reports.
* If checkpoints are reported, the work after the last of them is lost when the world halts. If they are not, only work
  is lost that the record shows to be done again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from flowdist.record.accounts import Bucket

MARKS_MAX = 128


@dataclass(slots=True)
class WorkSegment:
    """Work of one generation. `marks` are the (position, step) of the most advanced worker's reports."""

    begun_ns: int
    resumed: int | None = None  # the step that it began with; None: unknown
    marks: list[tuple[int, int]] = field(default_factory=list)
    second: tuple[int, int] | None = None  # the report after the first: marks are thinned
    saved: int | None = None  # position of the last checkpoint
    stalled_ns: int = 0
    stalled_since: int | None = None
    moved_ns: int = 0  # when it last showed progress

    def position(self, at: int) -> int:
        """Return the position at that time: how much work was done."""
        if self.stalled_since is not None:
            at = min(at, self.stalled_since)
        return max(0, at - self.begun_ns - self.stalled_ns)

    def report(self, step: int, now: int) -> None:
        """Note that a worker has reported a step."""
        if self.marks and step <= self.marks[-1][1]:
            return
        self.moved_ns = now
        self.marks.append((self.position(now), step))
        if len(self.marks) == 2:
            self.second = self.marks[1]
        if len(self.marks) > MARKS_MAX:
            self.thin(MARKS_MAX // 2)

    def thin(self, most: int) -> None:
        """Keep `most` marks at most, the first and the last among them: the journal of a day has a million reports."""
        while len(self.marks) > most:
            self.marks = [self.marks[0], *self.marks[1:-1:2][1:], self.marks[-1]]

    def save(self, step: int, now: int) -> None:
        """Note an accepted checkpoint. It holds the work up to that step, or up to now if that step has no report."""
        position = self.position(now)
        if step and self.marks and self.marks[0][1] <= step < self.marks[-1][1]:
            position = self.when(step)
        self.moved_ns, self.saved = now, max(position, self.saved or 0)

    def stall(self, since: int) -> None:
        if self.stalled_since is None:
            self.stalled_since = max(since, self.begun_ns, self.moved_ns)

    def revive(self, now: int) -> None:
        if self.stalled_since is not None:
            self.stalled_ns += now - self.stalled_since
            self.stalled_since, self.moved_ns = None, now

    def when(self, step: int) -> int:
        """Return the position at which a step was done: interpolated between reports, extrapolated after the last."""
        if not self.marks or step < self.marks[0][1]:
            return 0
        for (before, low), (after, high) in pairwise(self.marks):
            if step < high:
                return before + (after - before) * (step - low) // (high - low)
        last, reached = self.marks[-1]
        ns, steps = self.pace() or (0, 1)
        return last + (step - reached) * ns // steps

    def pace(self) -> tuple[int, int] | None:
        """Return the nanoseconds and the number of steps between the first two reports; None before the second."""
        if self.second is None:
            return None
        (at, step), (then, further) = self.marks[0], self.second
        return then - at, further - step

    def begins_at(self, pace: tuple[int, int] | None) -> int:
        """Return the position at which the steps began, and start-up ended.

        Args:
            pace: The pace of an earlier segment, for a segment with one report only.
        """
        if not self.marks:
            return 0
        first, step = self.marks[0]
        ns, steps = self.pace() or pace or (0, 1)
        before = max(1, step - self.resumed) if self.resumed is not None else 1
        return max(0, first - min(ns, before * ns // steps))


@dataclass(slots=True)
class ClosedSegment:
    """Segment that has ended: its steps lasted from position `start` to `end`, and the work up to `kept` was kept."""

    segment: WorkSegment
    start: int
    end: int
    kept: int
    counts: dict[str, int]  # number of members, by role

    def resume_from(self, step: int) -> int:
        """Note the step from which the next generation continues.

        Returns:
            How many nanoseconds more were kept than was assumed; negative for fewer.
        """
        before, self.kept = self.kept, min(max(self.segment.when(step), self.start), self.end)
        return self.kept - before


def split(start: int, kept: int, end: int, lasted_ns: int) -> dict[Bucket, int]:
    """Return what a segment of that length was spent on, in nanoseconds by bucket."""
    return {"start-up": start, "productive": kept - start, "lost work": end - kept, "stalled": lasted_ns - end}
