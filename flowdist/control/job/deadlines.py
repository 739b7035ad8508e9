"""Deadlines by name, in an indexed heap: a time in ns since the start of the job, which a later setting replaces."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

What = Literal[
    "answer",  # of an incident: its deferred failures no longer wait for nodes that are not suspected by then (R8)
    "admission",  # the minima of all roles have to be placed by then (R2)
    "arrivals",  # the first roles start without the expected nodes that have not joined by then (R2)
    "backoff",  # of an incident: its worlds may start again (R10)
    "cooldown",  # of a world: it may grow (R13)
    "drain",  # of a world: it has to be empty, or stopped, for what takes its nodes away (R14)
    "finish",  # of a world: its first replica has finished, the rest has to (R17)
    "hang",  # of a world: some members have stalled; the least advanced of them is judged to hang (R15)
    "pending",  # of a role: it has to reach its minimum (R12)
    "ready",  # of a replica: it has to pass its readiness check
]

INCIDENT_DUES: tuple[What, ...] = ("answer", "backoff")  # named by the number of an incident


class Due(NamedTuple):
    """Name of a deadline: `what` is due for `name`, an incident, world, role or replica; empty: the whole job."""

    what: What
    name: str = ""


class Deadlines:
    """Mutable set of the deadlines of a job, each with its time in ns."""

    def __init__(self) -> None:
        self._at: dict[Due, int] = {}
        self._heap: list[tuple[int, Due]] = []

    def __contains__(self, due: Due) -> bool:
        return due in self._at

    def has_any(self, dues: Iterable[Due]) -> bool:
        """Return whether at least one of these deadlines is set."""
        return not self._at.keys().isdisjoint(dues)

    def __iter__(self) -> Iterator[Due]:
        return iter(self._at)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadlines) and self._at == other._at

    __hash__ = None  # type: ignore[assignment]  # the set is mutable

    def at(self, due: Due) -> int | None:
        """Return the time of the deadline, in ns; None if it is not set."""
        return self._at.get(due)

    def set(self, due: Due, ns: int) -> None:
        """Set the deadline to the time `ns`. A deadline that is set already gets the new time."""
        if self._at.get(due) != ns:
            self._at[due] = ns
            heapq.heappush(self._heap, (ns, due))

    def set_once(self, due: Due, ns: int) -> None:
        """Set the deadline to the time `ns`, unless it is set already: then it keeps its time."""
        if due not in self._at:
            self.set(due, ns)

    def clear(self, due: Due) -> None:
        """Remove the deadline; do nothing if it is not set."""
        self._at.pop(due, None)

    def not_before(self, ns: int) -> None:
        """Move earlier deadlines to `ns`, for a new controller: none could be kept while none ran."""
        for due, at in list(self._at.items()):
            if at < ns:
                self.set(due, ns)

    def next(self) -> int | None:
        """Return the time of the earliest deadline, in ns; None if no deadline is set."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: int) -> Due | None:
        """Remove and return the earliest deadline due at `now` (ns), those of one time by name; None if there is none.

        The caller handles each before it asks for the next one, because the handling may clear or set others.
        """
        ns = self.next()
        if ns is None or ns > now:
            return None
        _, due = heapq.heappop(self._heap)
        del self._at[due]
        return due
