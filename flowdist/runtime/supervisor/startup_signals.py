"""Ctrl-C between the creation of a run's folder and the start of its supervisor, which then ends the run in order.

A KeyboardInterrupt in that time could be raised anywhere. In the middle of an import it may be lost; elsewhere the
run would end without a record that it was cancelled. Interrupts are therefore only counted, until the supervisor or
the command line handles them.
"""

from __future__ import annotations

import signal
from types import FrameType


class StartupSignals:
    """Context manager that counts SIGINT in `count`, from its start until another handler is installed.

    Its end, or `end`, restores the handler that was installed before.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: signal._HANDLER = None
        self._is_on = False

    def __enter__(self) -> StartupSignals:
        self._before, self._is_on = signal.signal(signal.SIGINT, self._note), True
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop counting: SIGINT is handled as before the `with` block. A second call does nothing."""
        if self._is_on:
            self._is_on = False
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a SIGINT was counted."""
        if self.count:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
