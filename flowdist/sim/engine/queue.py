"""The event queue: virtual time in ns, and actions in the order of (time, serial). No clock is read anywhere."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heappushpop
from typing import Any

Action = Callable[..., object]
Entry = tuple[int, int, Action, tuple[Any, ...]]  # time, serial or place, action, arguments

SERIALS = 40  # low bits of a place: the serial, which makes places unique
APART = 1 << (SERIALS - 1)  # the first serial of actions from outside
WORD = (1 << 64) - 1
PLACED = 1 << (64 + SERIALS)  # this bit makes a place larger than any serial


class Queue:
    """Actions in virtual time. Of two at the same time, the one that was planned first happens first.

    Args:
        schedule: 0, or the number of another order of whatever happens at the same time; the same for the same number.
    """

    def __init__(self, schedule: int = 0) -> None:
        self.now = 0
        self.handled = 0
        self._heap: list[Entry] = []
        self._serial = self._apart = 0
        self._schedule = schedule
        self._is_stopped = False

    def at(self, time: int, action: Action, *args: Any) -> None:
        """Plan a call of `action`. One that is planned for the past happens now."""
        self._serial += 1
        heappush(self._heap, (time if time > self.now else self.now, self._serial, action, args))

    def at_apart(self, time: int, action: Action, *args: Any) -> None:
        """Plan an action from outside, such as a fault, without changing the order of the others under a schedule."""
        if not self._schedule:
            self.at(time, action, *args)
            return
        self._apart += 1
        heappush(self._heap, (time if time > self.now else self.now, APART + self._apart, action, args))

    def after(self, delay: int, action: Action, *args: Any) -> None:
        """Plan a call of `action` in `delay` ns."""
        self._serial += 1
        heappush(self._heap, (self.now + delay if delay > 0 else self.now, self._serial, action, args))

    @property
    def planned(self) -> int:
        """The number of actions that are planned."""
        return len(self._heap)

    @property
    def next_at(self) -> int | None:
        """The time of the next action; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def next_but(self, is_nothing: Callable[[Action, tuple[Any, ...]], bool]) -> int | None:
        """Return the time of the first action for which `is_nothing` is false; None if there is none."""
        first = None
        for time, _, action, args in self._heap:
            if (first is None or time < first) and not is_nothing(action, args):
                first = time
        return first

    def run(self, until: int | None = None) -> None:
        """Run the actions in order, up to `until` in ns, or until `stop` is called.

        With a schedule, each action gets its place when its time comes. Those without a place sort before those with
        one, so once the first entry of a time has a place, all entries of that time have one, and it is the first of
        them.
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
        """Drop everything that is planned."""
        self._heap.clear()

    def stop(self) -> None:
        """Run nothing after the present action."""
        self._is_stopped = True


def _place(schedule: int, serial: int) -> int:
    """Return a number that looks random (splitmix64), a different one for each serial."""
    mixed = (schedule * 0x9E3779B97F4A7C15 + serial * 0xD1B54A32D192ED03) & WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
    return PLACED | ((mixed ^ (mixed >> 31)) << SERIALS) | serial
