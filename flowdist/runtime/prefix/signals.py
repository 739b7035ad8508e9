"""Signals to the process of the script, which are the script's: flowdist's code must not take, lose or repeat them."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import fcntl
import os
import posix
import sys

from flowdist.runtime.prefix.worker import high_copy

ROOM = 200  # calls that flowdist's code may be deep where the script has come to the limit
SHIELDED = _signal.valid_signals() - {_signal.SIGCHLD}  # nothing is forked where that is handled: see `fork_safety`


class Shield:
    """Protection of flowdist's code from what the script has set, from when the shield is made until `end`.

    Signals wait, and the limit of recursion is higher. Handlers of signals that have come before run at once.
    """

    def __init__(self) -> None:
        self._limit = sys.getrecursionlimit()
        sys.setrecursionlimit(self._limit)  # fails here if `end` would fail
        self._mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, SHIELDED)
        except BaseException:  # a handler has raised it
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)
            raise
        sys.setrecursionlimit(self._limit + ROOM)

    def end(self) -> None:
        """Let signals through again. This raises what their handlers raise."""
        if sys.getrecursionlimit() == self._limit + ROOM:  # else a late import has set it
            sys.setrecursionlimit(self._limit)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)


class Handled:
    """Note whether this process has had a signal with a handler in Python: the interpreter writes a byte for each."""

    def __init__(self) -> None:
        self._file = -1

    def begin(self) -> None:
        """Note signals from now on, those of this process alone."""
        self.end()
        file = posix.memfd_create("signals", posix.MFD_CLOEXEC)
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
        self._file = high_copy(file)
        posix.close(file)
        _signal.set_wakeup_fd(self._file)

    def has_any(self) -> bool:
        """Return whether there was a signal, or nobody knows: the script has closed the file."""
        try:
            return posix.fstat(self._file).st_size > 0
        except OSError:
            return True

    def end(self) -> None:
        """Note signals no more."""
        if self._file >= 0:
            _signal.set_wakeup_fd(-1)
            posix.close(self._file)
            self._file = -1
