"""Interrupts between the creation of a run's folder and the start of its supervisor, which then ends the run in order.

A KeyboardInterrupt could be lost in the middle of an import, or end the run without a record of its cancellation, as
SIGTERM and SIGHUP would. So interrupts are only counted.
"""

from __future__ import annotations

import signal
from types import FrameType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StartupSignals:
    """Context manager that counts interrupts in `count`; its end, or `end`, restores the handlers from before.

    SIGHUP counts only as the first, as in `HostProcess.begin`, and not at all if it is ignored, as with nohup.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> StartupSignals:
        for number in INTERRUPTS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop counting: interrupts are handled as before the `with` block. A second call does nothing."""
        while self._before:
            signal.signal(*self._before.popitem())

    def check(self) -> None:
        """Raise KeyboardInterrupt if an interrupt was counted."""
        if self.count:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += number != signal.SIGHUP or not self.count
