"""Seats of a joint world: those of a gang, given to its roles as control does (R2)."""

from __future__ import annotations

from bisect import bisect_left

from flowdist.graph import JobOptions, RoleSpec
from flowdist.sim.macro.seats import Seats


class JointSeats(Seats):
    """Seats of the roles of one world on nodes that all of them can use; replicas are numbered in the order of roles.

    Args:
        role: The roles as one: its sizes are their sums.
        parts: The roles.
        options, room, known: As for `Seats`.
    """

    def __init__(
        self, role: RoleSpec, parts: tuple[RoleSpec, ...], options: JobOptions, room: tuple[int, ...], known: int
    ) -> None:
        super().__init__(role, options, room, known)
        self._parts = parts
        ends = [sum(part.max_replicas for part in parts[: i + 1]) for i in range(len(parts))]
        self._ranges = [range(end - part.max_replicas, end) for end, part in zip(ends, parts, strict=True)]

    @property
    def counts(self) -> list[int]:
        """Number of seats of each role."""
        vacant = self.vacant
        return [len(own) - bisect_left(vacant, own.stop) + bisect_left(vacant, own.start) for own in self._ranges]

    @property
    def has_minimum(self) -> bool:
        """Whether each role has its minimum."""
        return not any(self._missing())

    def _missing(self) -> list[int]:
        """Return how many seats each role lacks to its minimum."""
        return [max(0, part.min_replicas - count) for part, count in zip(self._parts, self.counts, strict=True)]

    def fill(self, now: int, most: int | None = None) -> int:
        """Give free seats to replicas without one, and return how many got one.

        The minima of all roles come first, if there is room for all of them. Then each role in turn gets what the
        minima of the others leave. `most` is not looked at.
        """
        before, missing = self.taken, self._missing()
        if sum(missing) <= self.free:
            for part, count in enumerate(missing):
                self._fill_part(part, count, now)
        for part in range(len(self._parts)):
            others = sum(count for other, count in enumerate(self._missing()) if other != part)
            self._fill_part(part, max(0, self.free - others), now)
        return self.taken - before

    def _fill_part(self, part: int, count: int, now: int) -> None:
        """Give up to `count` free seats to replicas of one role, lowest replica first."""
        own = self._ranges[part]
        low, high = bisect_left(self.vacant, own.start), bisect_left(self.vacant, own.stop)
        if not count or low == high:
            return
        rest = self.vacant
        self.vacant = rest[low:high]
        super().fill(now, count)
        self.vacant = rest[:low] + self.vacant + rest[high:]

    def is_needed(self, node: int) -> bool:
        """Return whether the minimum of a role has no room without the node. No node is left in order."""
        on = [sum(replica in own for replica in self.on[node]) for own in self._ranges]
        left = [count - lost for count, lost in zip(self.counts, on, strict=True)]
        missing = sum(max(0, part.min_replicas - count) for part, count in zip(self._parts, left, strict=True))
        own_free = 0 if node in self.cordoned else self.room[node] - len(self.on[node])
        return missing > self.free - own_free or not self.others_have_room()
