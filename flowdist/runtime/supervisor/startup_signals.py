"""Ctrl-C after a run has its folder, and before its supervisor is there to end it in order.

As an exception it would come anywhere: in the middle of an import it may be lost, and elsewhere nobody would tell the
user, nor write down, that the run was cancelled. It is only counted, for whoever can do that.
"""

from __future__ import annotations

import signal
from types import FrameType


class EarlyInterrupts:
    """Counts SIGINT within the block, until somebody else handles it; afterwards all is as it was before."""

    def __init__(self) -> None:
        self.count = 0
        self._before: signal._HANDLER = None
        self._is_on = False

    def __enter__(self) -> EarlyInterrupts:
        self._before, self._is_on = signal.signal(signal.SIGINT, self._note), True
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """What comes from now on is dealt with as before the block."""
        if self._is_on:
            self._is_on = False
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """KeyboardInterrupt if there was one."""
        if self.count:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
