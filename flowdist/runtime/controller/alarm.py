"""An alarm that rings late rather than too early: whatever lay in the sockets when it rang is heard first.

A loop that was held up, by an fsync of seconds for one, finds in one pass what has come in the meantime and the timers
that are due. It feeds the readers of the sockets, and runs the timers before the tasks that read. Whoever is judged by
such a timer would be overdue though he has spoken in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Passes of the loop from its ring to the judgement. What came during the pass in which it rang is fed to the readers in
# the next, after what was asked for before; their tasks run in the one after that.
PASSES = 3


class Alarm:
    """Calls `judge` with the time at which it rang, by `clock`. News from after that say nothing of who was late then.

    `judge` sets it again: until it has been called, the alarm stays as it is.
    """

    def __init__(self, clock: Callable[[], int], judge: Callable[[int], None]) -> None:
        self._clock, self._judge = clock, judge
        self._timer: asyncio.TimerHandle | None = None
        self._rings = False

    def set(self, wait_s: float | None) -> None:
        """Ring so many seconds from now; None: not at all. One that is due is not put off: news may never end."""
        loop = asyncio.get_running_loop()
        if self._rings or (self._timer is not None and self._timer.when() <= loop.time()):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(wait_s, self._ring) if wait_s is not None else None

    def _ring(self) -> None:
        self._timer, self._rings = None, True
        self._pass(PASSES, self._clock())

    def _pass(self, left: int, rang_at: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._pass, left - 1, rang_at)
            return
        self._rings = False
        self._judge(rang_at)
