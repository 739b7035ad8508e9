"""Processes that an injected fault pauses: for good (hang), for a while (pause), or again and again (slow).

They are stopped by SIGSTOP, which no process can ignore, and resumed by SIGCONT. A pidfd of each is kept: when the
process has ended, its process id may belong to another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from flowdist.runtime.processes.reaper import descendants

PERIOD_S = 0.05  # a slowed worker runs for a part of each period


class PausedWorker:
    """The group that a worker leads, paused by `pause` until `resume`; ProcessLookupError if it was reaped."""

    def __init__(self, pid: int) -> None:
        self._pid, self._pidfd = pid, os.pidfd_open(pid)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the group. Return False, with nothing sent, if the worker has ended."""
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
            os.killpg(self._pid, number)
        except ProcessLookupError:
            return False
        return True

    def pause(self) -> None:
        """Stop the group. A worker that has ended is no error."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the group and close the pidfd: this object cannot be used again."""
        self.signal(signal.SIGCONT)
        os.close(self._pidfd)


class PausedNode:
    """All processes of a node but its guardian, to be paused together by `pause` until `resume`.

    The guardian has to run, because it kills the others if `flowdist run` is killed meanwhile.
    """

    def __init__(self, guardian: int) -> None:
        self._guardian = guardian
        self._pidfds: dict[int, int] = {}

    def pause(self) -> None:
        """Stop every descendant of the guardian until no new one is found: each may fork before it is stopped."""
        while new := [pid for pid in descendants(self._guardian) if pid not in self._pidfds]:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    self._pidfds[pid] = os.pidfd_open(pid)
                    signal.pidfd_send_signal(self._pidfds[pid], signal.SIGSTOP)

    def resume(self) -> None:
        """Resume in the order found, the agent before its workers: it handles overdue deadlines first (R19)."""
        for pidfd in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)
        self._pidfds.clear()


class SlowedWorker:
    """A worker that runs for `1 / factor` of each PERIOD_S and is stopped for the rest, by timers of the event loop."""

    def __init__(self, worker: PausedWorker, factor: float) -> None:
        self._worker = worker
        self._runs_s = PERIOD_S / factor
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def pause(self) -> None:
        """Begin periods, which end with the worker or `resume`: stop the worker for the idle part, then let it run."""
        if self._worker.signal(signal.SIGSTOP):
            self._timer = self._loop.call_later(PERIOD_S - self._runs_s, self._run)

    def _run(self) -> None:
        if self._worker.signal(signal.SIGCONT):
            self._timer = self._loop.call_later(self._runs_s, self.pause)

    def resume(self) -> None:
        """Let the worker run at full speed from now on. This object cannot be used again."""
        if self._timer is not None:
            self._timer.cancel()
        self._worker.resume()
