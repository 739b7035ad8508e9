"""Virtual time: what is to happen, in the order of (time, serial). Integer nanoseconds, no clock anywhere."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heappushpop
from typing import Any

Action = Callable[..., object]
Entry = tuple[int, int, Action, tuple[Any, ...]]  # its time, its serial or its place among those of that time

SERIALS = 40  # bits of a tie that tell two things apart which the schedule puts in the same place
APART = 1 << (SERIALS - 1)  # the first serial of what comes from outside
WORD = (1 << 64) - 1
PLACED = 1 << (64 + SERIALS)  # a place is more than any serial


class Queue:
    """Of two things at the same time, the one that was planned first happens first.

    With a `schedule` other than 0 that number decides instead: another order of whatever happens at the same time, and
    always the same one for the same number.
    """

    def __init__(self, schedule: int = 0) -> None:
        self.now = 0
        self.handled = 0
        self._heap: list[Entry] = []
        self._serial = self._apart = 0
        self._schedule = schedule
        self._is_stopped = False

    def at(self, time: int, action: Action, *args: Any) -> None:
        """Plan a call of `action`; what is planned for the past happens now."""
        self._serial += 1
        heappush(self._heap, (time if time > self.now else self.now, self._serial, action, args))

    def at_apart(self, time: int, action: Action, *args: Any) -> None:
        """The same for what comes from outside, such as a fault: the order of the others is the same without it."""
        if not self._schedule:
            self.at(time, action, *args)
            return
        self._apart += 1
        heappush(self._heap, (time if time > self.now else self.now, APART + self._apart, action, args))

    def after(self, delay: int, action: Action, *args: Any) -> None:
        """The same, so many nanoseconds from now."""
        self._serial += 1
        heappush(self._heap, (self.now + delay if delay > 0 else self.now, self._serial, action, args))

    @property
    def planned(self) -> int:
        """How many things are to happen."""
        return len(self._heap)

    @property
    def next_at(self) -> int | None:
        """When the next thing is to happen; None when there is none."""
        return self._heap[0][0] if self._heap else None

    def next_but(self, is_nothing: Callable[[Action, tuple[Any, ...]], bool]) -> int | None:
        """When the first thing is planned that is something; None when there is none."""
        first = None
        for time, _, action, args in self._heap:
            if (first is None or time < first) and not is_nothing(action, args):
                first = time
        return first

    def run(self, until: int | None = None) -> None:
        """Do one thing after the other up to `until`, or up to a `stop`.

        What is alone at its time needs no place in the schedule. Of several, those that have none yet come up first:
        one that has is the first of them all.
        """
        heap, schedule = self._heap, self._schedule
        while heap and not self._is_stopped:
            if until is not None and heap[0][0] > until:
                self.now = until
                return
            time, tie, action, args = heappop(heap)
            if schedule:
                while heap and heap[0][0] == time and tie < PLACED:
                    time, tie, action, args = heappushpop(heap, (time, _place(schedule, tie), action, args))
            self.now = time
            self.handled += 1
            action(*args)

    def forget(self) -> None:
        """Nothing of what is planned will happen."""
        self._heap.clear()

    def stop(self) -> None:
        """What happens now is the last thing that does."""
        self._is_stopped = True


def _place(schedule: int, serial: int) -> int:
    """A number that looks drawn (splitmix64), and is another for each serial."""
    mixed = (schedule * 0x9E3779B97F4A7C15 + serial * 0xD1B54A32D192ED03) & WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
    return PLACED | ((mixed ^ (mixed >> 31)) << SERIALS) | serial
