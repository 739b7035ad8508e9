"""Work segment: the work of one generation of a world, from when all members run until the world halts.

A position in a segment is the work done so far, in ns: the time since it began, without stalls. Steps and checkpoints
show where steps began, and how much was kept; without checkpoints only what is seen to be done again is lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from flowdist.control.protocol.ids import Activity, ReplicaId
from flowdist.record.accounts import Bucket

MARKS_MAX = 128
Unkept = Literal["lost work", "unsaved at the end"]


@dataclass(slots=True)
class WorkSegment:
    """Work of one generation of a world that is still under way, with the steps, checkpoints and stalls reported in it.

    `marks` are the (position, step) of the reports of the most advanced replica, thinned to `MARKS_MAX`.
    """

    begun_ns: int
    resumed: int | None = None  # the step from which the generation resumed; None: unknown
    marks: list[tuple[int, int]] = field(default_factory=list)
    second: tuple[int, int] | None = None  # the report after the first, kept because marks are thinned
    between_ns: int = 0  # what went into saving and restoring between these two
    is_counted: bool = False  # the marks are counted steps, whose numbers say nothing about other segments
    spent: dict[Activity, int] = field(default_factory=dict)  # ns, without stalls
    saved: int | None = None  # position up to which the last checkpoint saved the work; None: no checkpoint
    stalled_ns: int = 0
    stalled_since: int | None = None
    moved_ns: int = 0  # time of the last progress: a report, a checkpoint or the end of a stall
    held_at: int | None = None  # position where a server went away, if no step was reported since it is back; or None
    held_ns: int = 0  # the time of that
    marked_ns: int = 0  # time of the last report of a further step
    marked_spent: tuple[int, int] = (0, 0)  # ns spent on saving and restoring, at the first report and at the last

    def position(self, at: int) -> int:
        """Return the position at the time `at`: the nanoseconds since the segment began, without stalls."""
        position = self._passed(at)
        return position if self.held_at is None else min(position, self.held_at)

    def worked_until(self, at: int) -> int:
        """Return the time up to which work counts, `at` at the latest."""
        at = at if self.stalled_since is None else min(at, self.stalled_since)
        return at if self.held_at is None else min(at, self.held_ns)

    def _passed(self, at: int) -> int:
        """Return what the position at the time `at` would be if no server of the world were away."""
        if self.stalled_since is not None:
            at = min(at, self.stalled_since)
        return max(0, at - self.begun_ns - self.stalled_ns)

    def hold(self, since: int) -> None:
        """Count no work from `since`, or the last report if later, until `release` or a report: something is away."""
        if self.held_at is None:
            self.held_ns = max(since, self.begun_ns, self.marked_ns)
            self.held_at = self._passed(self.held_ns)

    def release(self, now: int) -> None:
        """Count work again from now on, if the segment has no report of a step that could show how much was done."""
        if self.held_at is not None and not self.marks:
            self._end_hold(self._passed(now) - self.held_at)

    def _end_hold(self, idle_ns: int) -> None:
        """End the time without work, of which `idle_ns` were no work."""
        self.held_at = None
        self.stalled_ns += max(0, idle_ns)

    def _end_outage(self, step: int, now: int, pace: tuple[int, int] | None) -> None:
        """End the time without work at a report, by the steps since the last one; without a pace none was work."""
        if self.held_at is None:
            return
        idle_ns = self._passed(now) - self.held_at
        pace = self.usual_pace() or pace
        if self.marks and pace is not None:
            last, reached = self.marks[-1]
            saving_ns = sum(self.spent.values()) - self.marked_spent[1]
            usual_ns = (step - reached) * pace[0] // pace[1] + saving_ns
            idle_ns = min(idle_ns, max(0, self._passed(now) - last - usual_ns))
        self._end_hold(idle_ns)
        if self.saved is not None:
            self.saved = min(self.saved, self.position(now))  # it was saved in the time that has turned out idle

    def usual_pace(self) -> tuple[int, int] | None:
        """Return ns and steps from the first to the last report, without saves and stalls; None: no second."""
        if len(self.marks) < 2:
            return None
        (first, low), (last, high) = self.marks[0], self.marks[-1]
        return max(0, last - first - (self.marked_spent[1] - self.marked_spent[0])), high - low

    def count(self, steps: int, now: int, pace: tuple[int, int] | None = None) -> None:
        """Add at `now` that so many steps were counted in the segment, unless one was reported."""
        if self.is_counted or not self.marks:
            self.is_counted = True
            self._mark(steps, now, pace)

    def report(self, step: int, now: int, pace: tuple[int, int] | None = None) -> None:
        """Add a report at `now` that `step` is done, unless one as high was; counted steps are forgotten then."""
        if self.is_counted:
            self.marks.clear()
            self.second, self.is_counted = None, False
        self._mark(step, now, pace)

    def _mark(self, step: int, now: int, pace: tuple[int, int] | None) -> None:
        if self.marks and step <= self.marks[-1][1]:
            return
        self._end_outage(step, now, pace)
        self.moved_ns = self.marked_ns = now
        spent = sum(self.spent.values())
        self.marked_spent = (self.marked_spent[0] if self.marks else spent, spent)
        self.marks.append((self.position(now), step))
        if len(self.marks) == 1:
            self.between_ns = -sum(self.spent.values())
        elif len(self.marks) == 2:
            self.second = self.marks[1]
            self.between_ns = min(self.between_ns + sum(self.spent.values()), self.second[0] - self.marks[0][0])
        if len(self.marks) > MARKS_MAX:
            self.thin(MARKS_MAX // 2)

    def thin(self, most: int) -> None:
        """Drop inner marks evenly until `most` (2 or more) are left: a day would leave a million."""
        while len(self.marks) > most:
            self.marks = [self.marks[0], *self.marks[1:-1:2][1:], self.marks[-1]]

    def save(self, step: int, now: int) -> None:
        """Record an accepted checkpoint: work up to `step`, or up to `now` if no report says when it was, is saved."""
        position = self._passed(now)  # of an outage: the next report corrects it
        if step and not self.is_counted and self.marks and self.marks[0][1] <= step < self.marks[-1][1]:
            position = self.when(step)
        self.moved_ns, self.saved = now, max(position, self.saved or 0)

    def spend(self, on: Activity, ns: int, now: int) -> None:
        """Add that `ns` more went into saving or restoring; both together are at most the position at `now`."""
        self.spent[on] = self.spent.get(on, 0) + max(0, min(ns, self._passed(now) - sum(self.spent.values())))

    def stall(self, since: int) -> None:
        """Stop counting work from `since`, or the last progress if later; a second stall changes nothing."""
        if self.stalled_since is None:
            self.stalled_since = max(since, self.begun_ns, self.moved_ns)

    def revive(self, now: int) -> None:
        """End the stall at the time `now`, so that work counts again; without a stall, do nothing."""
        if self.stalled_since is not None:
            self.stalled_ns += now - self.stalled_since
            self.stalled_since, self.moved_ns = None, now

    def when(self, step: int) -> int:
        """Return the position at which `step` was done, inter- or extrapolated; 0 before the first report."""
        if not self.marks or step < self.marks[0][1]:
            return 0
        for (before, low), (after, high) in pairwise(self.marks):
            if step < high:
                return before + (after - before) * (step - low) // (high - low)
        last, reached = self.marks[-1]
        ns, steps = self.pace() or (0, 1)
        return last + (step - reached) * ns // steps

    def pace(self) -> tuple[int, int] | None:
        """Return ns and steps between the first two reports, without saving and restoring; None: no second."""
        if self.second is None:
            return None
        (at, step), (then, further) = self.marks[0], self.second
        return then - at - self.between_ns, further - step

    def begins_at(self, pace: tuple[int, int] | None) -> int:
        """Return the position at which the steps began and start-up ended; 0 without a report.

        They began before the first report by the time of the steps since the step resumed from, one if unknown, at the
        pace of the first two reports, or else at the `pace` of an earlier segment of the world.
        """
        if not self.marks:
            return 0
        first, step = self.marks[0]
        ns, steps = self.pace() or pace or (0, 1)
        resumed = 0 if self.is_counted else self.resumed
        before = max(1, step - resumed) if resumed is not None else 1
        return max(0, first - min(ns, before * ns // steps))

    def split(self, start: int, kept: int, end: int, lasted_ns: int, unkept: Unkept = "lost work") -> dict[Bucket, int]:
        """Return how the segment, `lasted_ns` long with its stalls, divides among buckets (ns).

        The positions are where the steps began, up to which the work was kept, and where it ended. Restoring is taken
        out of start-up first, all else out of what was kept: lost work is lost with its saving.
        """
        restoring, work = self.spent.get("restoring", 0), kept - start
        before_steps = min(restoring, start)
        among_steps = min(restoring - before_steps, work)
        saving = min(self.spent.get("saving", 0), work - among_steps)
        return {
            "start-up": start - before_steps,
            "restore": before_steps + among_steps,
            "checkpoint": saving,
            "productive": work - among_steps - saving,
            unkept: end - kept,
            "stalled": lasted_ns - end,
        }


@dataclass(slots=True)
class ClosedSegment:
    """Segment that has ended: its steps lasted from `start` to `end`; what they did after `kept` is `unkept`."""

    segment: WorkSegment
    start: int
    end: int
    kept: int
    ended_ns: int  # the time at which the work ended
    unkept: Unkept
    members: tuple[ReplicaId, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of members by role."""
        return dict(Counter(member.role for member in self.members))

    @property
    def unkept_ns(self) -> tuple[int, int] | None:
        """Return from when to when (ns) work was done that was not kept; None if all was. Stalls in it are left out."""
        lost = self.end - self.kept
        return (self.ended_ns - lost, self.ended_ns) if lost > 0 else None

    def split(self) -> dict[Bucket, int]:
        """Return the nanoseconds of the segment by bucket, without those of its stalls."""
        return self.segment.split(self.start, self.kept, self.end, self.end)

    def resume_from(self, step: int) -> dict[Bucket, int]:
        """Set `kept` to the position of `step`, and return by how many ns each bucket grew; negative: shrank."""
        before = self.split()
        self.kept = min(max(self.segment.when(step), self.start), self.end)
        return {bucket: ns - before[bucket] for bucket, ns in self.split().items()}
