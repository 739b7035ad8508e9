"""The event queue: virtual time in ns, and actions in the order of (time, serial). No clock is read anywhere.

An action may plan others for its own moment, but not without end: virtual time would stand still. So the queue counts
how many actions of one moment were each planned by the one before, and stops the simulation when there are too many.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush, heappushpop
from typing import Any

from flowdist.graph import format_duration

Action = Callable[..., object]
Entry = tuple[int, int, Action, tuple[Any, ...]]  # time, serial or place, action, arguments

SERIALS = 40  # low bits of a place: the serial, which makes places unique
APART = 1 << (SERIALS - 1)  # the first serial of actions from outside
SERIAL = (1 << SERIALS) - 1  # the bits of a place that are the serial
WORD = (1 << 64) - 1
PLACED = 1 << (64 + SERIALS)  # this bit makes a place larger than any serial
STANDSTILL = 10_000  # actions of one moment, each planned by the one before: more are a defect
NAMED_LAST = 100  # of them, the last ones, whose names the message counts
NAMED_MOST = 3  # names in the message


class Queue:
    """Actions in virtual time. `now` is that time in ns; `handled` counts the actions that were run.

    Actions of one time run in the order in which they were planned, with a `schedule` other than 0 in a drawn one, the
    same each time.
    """

    def __init__(self, schedule: int = 0) -> None:
        self.now = 0
        self.handled = 0
        self._heap: list[Entry] = []
        self._serial = self._apart = 0
        self._schedule = schedule
        self._is_stopped = False
        self._chain = 0  # actions of this moment up to the present one, each of which planned the next
        self._chains: dict[int, int] = {}  # by serial, of actions that were planned for their own moment
        self._last: list[str] = []  # the names of the last actions of a chain that is nearly too long

    def at(self, time: int, action: Action, *args: Any) -> None:
        """Plan the call `action(*args)` at a time in ns. A time in the past means now."""
        self._serial += 1
        if time <= self.now:
            time = self.now
            self._chains[self._serial] = self._chain + 1
        heappush(self._heap, (time, self._serial, action, args))

    def at_apart(self, time: int, action: Action, *args: Any) -> None:
        """Plan the call of an action from outside, such as a fault, without changing the order that is drawn."""
        if not self._schedule:
            self.at(time, action, *args)
            return
        self._apart += 1
        if time <= self.now:
            time = self.now
            self._chains[APART + self._apart] = self._chain + 1
        heappush(self._heap, (time, APART + self._apart, action, args))

    def after(self, delay: int, action: Action, *args: Any) -> None:
        """Plan the call `action(*args)` in `delay` ns. A negative delay means now."""
        if delay > 0:  # as `at` does it, without another call: most actions are planned here
            self._serial += 1
            heappush(self._heap, (self.now + delay, self._serial, action, args))
        else:
            self.at(self.now, action, *args)

    @property
    def planned(self) -> int:
        """The number of actions that are planned."""
        return len(self._heap)

    @property
    def next_at(self) -> int | None:
        """The time of the next action in ns; None if none is planned."""
        return self._heap[0][0] if self._heap else None

    def next_but(self, is_nothing: Callable[[Action, tuple[Any, ...]], bool]) -> int | None:
        """Return the time (ns) of the first planned action for which `is_nothing(action, args)` is false, or None."""
        first = None
        for time, _, action, args in self._heap:
            if (first is None or time < first) and not is_nothing(action, args):
                first = time
        return first

    def run(self, until: int | None = None) -> None:
        """Run the actions in order, until `stop` is called, none is left, or the next one is after `until` (ns).

        In the last case the clock (`now`) is then set to `until`. Raises Violation if virtual time stands still:
        actions of one moment plan each other without end.

        With a schedule, the actions of a time get their places in a drawn order when that time comes. Actions without a
        place sort before those with one. So once the first action of a time has a place, all actions of that time have
        one, and it is the first of them.
        """
        heap, schedule, chains = self._heap, self._schedule, self._chains
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
            if chains:  # few actions are planned for their own moment: the others cost nothing here
                self._chain = chains.pop(tie & SERIAL, 0)
                if self._chain > STANDSTILL - NAMED_LAST:
                    self._note_standstill(action)
            elif self._chain:
                self._chain = 0
            action(*args)

    def _note_standstill(self, action: Action) -> None:
        """Note the name of an action at the end of a long chain, and raise the violation if the chain is too long."""
        self._last.append(_name(action))
        if self._chain <= STANDSTILL:
            return
        names = Counter(self._last[-NAMED_LAST:]).most_common(NAMED_MOST)
        said = ", ".join(f"{name} ({count} of the last {NAMED_LAST})" for name, count in names)
        at = f"virtual time stands still at {format_duration(self.now)}: {STANDSTILL:,} events, each caused by the last"
        raise Violation("standstill", f"{at}; what keeps happening: {said}. This is a defect of flowdist's simulator")

    def forget(self) -> None:
        """Drop everything that is planned."""
        self._heap.clear()

    def stop(self) -> None:
        """Make `run` return after the present action. Later calls of `run` run nothing."""
        self._is_stopped = True


def _name(action: Action) -> str:
    """Return the name of an action: its method, and the name of its owner if that has one, such as a node."""
    name = getattr(getattr(action, "__self__", None), "name", "")
    return action.__qualname__ + (f" of {name}" if name else "")


def _place(schedule: int, serial: int) -> int:
    """Return the place of an action in the order of a schedule: a mixed number (splitmix64), unique for each serial."""
    mixed = (schedule * 0x9E3779B97F4A7C15 + serial * 0xD1B54A32D192ED03) & WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
    return PLACED | ((mixed ^ (mixed >> 31)) << SERIALS) | serial


CRASHES = (AssertionError, KeyError, ValueError, StopIteration, TypeError, AttributeError)


class Violation(AssertionError):
    """A `property` of the job or the simulation, such as "invariant", "split brain" or "liveness", does not hold.

    `waits` says what the job waits for, if it does not end.
    """

    def __init__(self, property: str, text: str, waits: str = "") -> None:
        super().__init__(f"{property}: {text}" + (f"; {waits}" if waits else ""))
        self.property, self.waits = property, waits


def broken_by(error: Exception) -> tuple[str, str]:
    """Return the property that an exception of the controller breaks, "invariant" or "crash", and what is wrong."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, AssertionError) and str(error):
        return "invariant", str(error)
    return "crash", f"{error!r} in {place.name}: {place.line}"
