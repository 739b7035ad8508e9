"""Processes that a fault holds up: for good, for a while, or again and again.

They are stopped by SIGSTOP, which nobody can ignore, and go on by SIGCONT. A pidfd is kept of each, so that nobody else
is hit once it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from flowdist.runtime.processes.reaper import descendants

PERIOD_S = 0.05  # of a worker that is slow: it runs for a part of it


class Group:
    """The process group of one worker, which it leads."""

    def __init__(self, pid: int) -> None:
        """ProcessLookupError if it is no more."""
        self._pid, self._pidfd = pid, os.pidfd_open(pid)

    def signal(self, number: signal.Signals) -> bool:
        """Whether it is still there."""
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
            os.killpg(self._pid, number)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)
        os.close(self._pidfd)


class Below:
    """All that runs on a node: everything below its guardian, which goes on.

    The guardian says nothing to anybody, but were `flowdist run` killed now it would have to see to the rest.
    """

    def __init__(self, guardian: int) -> None:
        self._guardian = guardian
        self._pidfds: dict[int, int] = {}

    def stop(self) -> None:
        """What is about to be stopped may have forked in the meantime: until the walk finds nobody new."""
        while new := [pid for pid in descendants(self._guardian) if pid not in self._pidfds]:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    self._pidfds[pid] = os.pidfd_open(pid)
                    signal.pidfd_send_signal(self._pidfds[pid], signal.SIGSTOP)

    def go_on(self) -> None:
        """Those next to the guardian first: the first thing that the agent sees is the time (R19)."""
        for pidfd in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)
        self._pidfds.clear()


class Slow:
    """A worker that gets `1 / factor` of its time: stopped for the rest of each period, until it ends or may go on."""

    def __init__(self, group: Group, factor: float) -> None:
        self._group = group
        self._runs_s = PERIOD_S / factor
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        if self._group.signal(signal.SIGSTOP):
            self._timer = self._loop.call_later(PERIOD_S - self._runs_s, self._run)

    def _run(self) -> None:
        if self._group.signal(signal.SIGCONT):
            self._timer = self._loop.call_later(self._runs_s, self.stop)

    def go_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._group.go_on()
