"""Minima of the roles of a joint world while it waits for nodes: which role is below its own, and until when (R12)."""

from __future__ import annotations

from collections.abc import Sequence

from flowdist.graph import RoleSpec


class Minima:
    """State of the roles of one world while the world waits for nodes. All times are ns.

    A role below its minimum waits; the others re-form, and are in that bucket.
    """

    def __init__(self, parts: Sequence[RoleSpec]) -> None:
        self._parts = parts
        self._due: dict[int, int] = {}  # by role below its minimum: when the job fails
        self._members = [0] * len(parts)  # replicas that are re-forming if the role is not below its minimum
        self._most = [0] * len(parts)  # replicas that have ever started
        self._steady = dict.fromkeys(range(len(parts)))  # roles that were not below it since the last start

    def start(self, counts: Sequence[int]) -> None:
        """Note that a generation starts with so many replicas of each role."""
        self._due.clear()
        self._members = list(counts)
        self._most = [max(pair) for pair in zip(counts, self._most, strict=True)]
        self._steady = dict.fromkeys(range(len(self._parts)))

    def update(self, counts: Sequence[int], now: int) -> None:
        """Note how many replicas of each role have a seat now."""
        for number, (part, count) in enumerate(zip(self._parts, counts, strict=True)):
            if count < part.min_replicas:
                self._due.setdefault(number, now + part.pending_timeout_ns)
                self._steady.pop(number, None)
            elif self._due.pop(number, None) is not None:
                self._members[number] = self._most[number]  # those that waited for nodes before re-form as well

    @property
    def due(self) -> int:
        """When the job fails, if no node joins."""
        return min(self._due.values())

    @property
    def first_due(self) -> RoleSpec:
        """The role for which it fails."""
        return self._parts[min(self._due, key=lambda number: (self._due[number], number))]

    @property
    def re_forming(self) -> int:
        """Number of replicas of roles that have their minimum."""
        return sum(count for number, count in enumerate(self._members) if number not in self._due)

    def had_minimum(self, number: int) -> bool:
        """Return whether the role of this number was never below its minimum since the last start."""
        return number in self._steady
