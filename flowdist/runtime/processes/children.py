"""The workers that are children of a spawner: their signals and their ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Iterator

from flowdist.runtime.processes.spawn_protocol import Ended, Spawned


@contextlib.contextmanager
def bound_to(cpus: tuple[int, ...]) -> Iterator[None]:
    """Bind the calling thread to these cores for the time of a `with` block, and with it every process started there.

    Other threads keep their cores. With an empty `cpus` nothing is bound.

    Raises:
        OSError: if this process may use none of the cores.
    """
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, before)


class Children:
    """The workers whose parent is this process, by their ids in the spawn protocol.

    Each worker leads a session and a process group of its own. When a worker ends, the rest of its group is killed
    before the worker is reaped: until then no other process can get its process id.

    Args:
        selector: Reports the end of each worker, with its id as data.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._running: dict[int, tuple[int, int, Callable[[], int]]] = {}  # by id: pid, pidfd, wait

    def __len__(self) -> int:
        return len(self._running)

    def add(self, id: int, pid: int, wait: Callable[[], int]) -> Spawned:
        """Watch a worker that was just started, and return the answer that reports the start.

        Args:
            id: The worker's id in the spawn protocol.
            pid: The worker's process id.
            wait: Reaps the worker, which has ended, and returns its exit code.
        """
        pidfd = os.pidfd_open(pid)
        self._running[id] = (pid, pidfd, wait)
        self._selector.register(pidfd, selectors.EVENT_READ, id)
        return Spawned(id, pid)

    def signal(self, id: int, number: int) -> None:
        """Send the signal `number` to the process group of a worker. A worker that has ended is no error."""
        if id in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running[id][0], number)

    def end(self, id: int) -> Ended:
        """Reap a worker that has ended, after killing the rest of its group, and return the answer with its exit code.

        Call this method once, when the selector has reported the end of the worker.
        """
        pid, pidfd, wait = self._running.pop(id)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # the leader is a zombie: the group is still its own
        return Ended(id, wait())

    def close_in_child(self) -> None:
        """In a fork of this process, forget all workers: they are children of the original process alone."""
        for _, pidfd, _ in self._running.values():
            os.close(pidfd)
        self._running.clear()
