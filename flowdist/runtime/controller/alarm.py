"""A timer for deadlines by which peers have to send a message. A message that arrived in time is handled before it.

An event loop that was held up, as by an fsync that took seconds, runs the due timers before the tasks that read. A
plain timer would find a peer overdue although its heartbeat had arrived in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Passes of the event loop between expiry and the call of `judge`. Data that arrived during the pass in which the timer
# expired is fed to the readers in the next pass, after callbacks that were scheduled before; their tasks run in the
# pass after that.
PASSES = 3


class Alarm:
    """One-shot timer that expires, lets every message that has arrived by then be handled, and then calls `judge`.

    `judge` gets the time of the expiry, in ns. It has to set the alarm again: before that, `set` has no effect.
    """

    def __init__(self, clock: Callable[[], int], judge: Callable[[int], None]) -> None:
        self._clock, self._judge = clock, judge
        self._timer: asyncio.TimerHandle | None = None
        self._has_expired = False

    def set(self, wait_s: float | None) -> None:
        """Let the alarm expire `wait_s` seconds from now instead of at the time set before; None: clear it.

        A call has no effect once the alarm is due: frequent messages could otherwise postpone it forever.
        """
        loop = asyncio.get_running_loop()
        if self._has_expired or (self._timer is not None and self._timer.when() <= loop.time()):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(wait_s, self._expire) if wait_s is not None else None

    def _expire(self) -> None:
        self._timer, self._has_expired = None, True
        self._pass(PASSES, self._clock())

    def _pass(self, left: int, expired_at: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._pass, left - 1, expired_at)
            return
        self._has_expired = False
        self._judge(expired_at)
