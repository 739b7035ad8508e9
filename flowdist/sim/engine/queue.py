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
    """Actions in virtual time. `now` is that time in ns; `handled` counts the actions that were run.

    Args:
        schedule: The order of actions at the same time. 0: the one that was planned first runs first. Any other number
            draws another order, the same one each time.
    """

    def __init__(self, schedule: int = 0) -> None:
        self.now = 0
        self.handled = 0
        self._heap: list[Entry] = []
        self._serial = self._apart = 0
        self._schedule = schedule
        self._is_stopped = False

    def at(self, time: int, action: Action, *args: Any) -> None:
        """Plan the call `action(*args)` at a time in ns. A time in the past means now."""
        self._serial += 1
        heappush(self._heap, (time if time > self.now else self.now, self._serial, action, args))

    def at_apart(self, time: int, action: Action, *args: Any) -> None:
        """Plan the call of an action from outside, such as a fault, at a time in ns.

        Under a schedule it does not change the order that is drawn for the other actions.
        """
        if not self._schedule:
            self.at(time, action, *args)
            return
        self._apart += 1
        heappush(self._heap, (time if time > self.now else self.now, APART + self._apart, action, args))

    def after(self, delay: int, action: Action, *args: Any) -> None:
        """Plan the call `action(*args)` in `delay` ns. A negative delay means now."""
        self._serial += 1
        heappush(self._heap, (self.now + delay if delay > 0 else self.now, self._serial, action, args))

    @property
    def planned(self) -> int:
        """The number of actions that are planned."""
        return len(self._heap)

    @property
    def next_at(self) -> int | None:
        """The time of the next action in ns; None if none is planned."""
        return self._heap[0][0] if self._heap else None

    def next_but(self, is_nothing: Callable[[Action, tuple[Any, ...]], bool]) -> int | None:
        """Return the time in ns of the first planned action for which `is_nothing(action, args)` is false.

        None if there is no such action. All planned actions are looked at.
        """
        first = None
        for time, _, action, args in self._heap:
            if (first is None or time < first) and not is_nothing(action, args):
                first = time
        return first

    def run(self, until: int | None = None) -> None:
        """Run the actions in order, until `stop` is called, none is left, or the next one is after `until` (ns).

        In the last case the clock (`now`) is then set to `until`.

        With a schedule, the actions of a time get their places in a drawn order when that time comes. Actions without a
        place sort before those with one. So once the first action of a time has a place, all actions of that time have
        one, and it is the first of them.
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
        """Make `run` return after the present action. Later calls of `run` run nothing."""
        self._is_stopped = True


def _place(schedule: int, serial: int) -> int:
    """Return the place of an action in the order of a schedule: a mixed number (splitmix64), unique for each serial."""
    mixed = (schedule * 0x9E3779B97F4A7C15 + serial * 0xD1B54A32D192ED03) & WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
    return PLACED | ((mixed ^ (mixed >> 31)) << SERIALS) | serial
