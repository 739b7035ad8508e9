"""Virtual time: what is to happen, in the order of (time, serial). Integer nanoseconds, no clock anywhere."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Queue:
    """Of two things at the same time, the one that was planned first happens first."""

    def __init__(self) -> None:
        self.now = 0
        self.handled = 0
        self._heap: list[tuple[int, int, Action]] = []
        self._serial = 0

    def at(self, time: int, action: Action) -> None:
        """Plan an action; what is planned for the past happens now."""
        self._serial += 1
        heapq.heappush(self._heap, (max(time, self.now), self._serial, action))

    def after(self, delay: int, action: Action) -> None:
        self.at(self.now + delay, action)

    @property
    def planned(self) -> int:
        """How many things are to happen."""
        return len(self._heap)

    @property
    def next_at(self) -> int | None:
        """When the next thing is to happen; None when there is none."""
        return self._heap[0][0] if self._heap else None

    def step(self, until: int | None = None) -> bool:
        """Do the next thing. False when there is none, or none before `until`: then it is `until`."""
        if not self._heap or (until is not None and self._heap[0][0] > until):
            if until is not None and self._heap:
                self.now = until
            return False
        self.now, _, action = heapq.heappop(self._heap)
        self.handled += 1
        action()
        return True
