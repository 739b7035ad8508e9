"""Deadlines by name, in an indexed heap.

There are no timer objects. A deadline is a name with a time. To set it again replaces it: a heap entry that differs
from the index is dropped when it reaches the top.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

What = Literal[
    "answer",  # of an incident: nodes that are not suspected by then have been heard since its first failure (R8)
    "admission",  # the minima of all roles have to be placed by then (R2)
    "arrivals",  # the first wave starts without the nodes that did not come (R2)
    "backoff",  # of an incident: its worlds may start again (R10)
    "cooldown",  # of a world: it may grow (R13)
    "drain",  # of a world: it has to be empty, or stopped, for what takes its nodes away (R14)
    "finish",  # of a world: its first replica has finished, the rest has to (R17)
    "hang",  # of a world: a member has stalled; then the least advanced is found to hang (R15)
    "pending",  # of a role: it has to reach its minimum (R12)
    "ready",  # of a replica: it has to pass its readiness check
]

INCIDENT_DUES: tuple[What, ...] = ("answer", "backoff")  # named by the number of an incident


class Due(NamedTuple):
    what: What
    name: str = ""


class Deadlines:
    def __init__(self) -> None:
        self._at: dict[Due, int] = {}
        self._heap: list[tuple[int, Due]] = []

    def __contains__(self, due: Due) -> bool:
        return due in self._at

    def has_any(self, dues: Iterable[Due]) -> bool:
        return not self._at.keys().isdisjoint(dues)

    def __iter__(self) -> Iterator[Due]:
        return iter(self._at)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadlines) and self._at == other._at

    __hash__ = None  # type: ignore[assignment]  # it changes

    def at(self, due: Due) -> int | None:
        return self._at.get(due)

    def set(self, due: Due, ns: int) -> None:
        if self._at.get(due) != ns:
            self._at[due] = ns
            heapq.heappush(self._heap, (ns, due))

    def set_once(self, due: Due, ns: int) -> None:
        """Set a deadline unless it is set already."""
        if due not in self._at:
            self.set(due, ns)

    def clear(self, due: Due) -> None:
        self._at.pop(due, None)

    def not_before(self, ns: int) -> None:
        """Put off every deadline that is due before `ns`: while no controller ran, none could be kept."""
        for due, at in list(self._at.items()):
            if at < ns:
                self.set(due, ns)

    def next(self) -> int | None:
        """Return the earliest time, in ns; None without a deadline."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: int) -> Due | None:
        """Return the first deadline that is due by now, in order of time, then name, and clear it; else None.

        The caller handles it before it asks for the next, which may be cleared by that.
        """
        ns = self.next()
        if ns is None or ns > now:
            return None
        _, due = heapq.heappop(self._heap)
        del self._at[due]
        return due
