"""The workers that one process has started: their ends, and the signals that they get."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Iterator

from flowdist.runtime.processes.spawn_protocol import Ended, Spawned


@contextlib.contextmanager
def bound_to(cpus: tuple[int, ...]) -> Iterator[None]:
    """Bind this thread, and so every process that it starts meanwhile, to these cores; to its own again afterwards.

    For a process with one thread: the binding is that of the calling thread alone. With no cores it does nothing.

    Raises:
        OSError: if this machine has none of the cores.
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
    """The workers whose parent is this process.

    Each leads a session of its own. When a leader ends, the rest of its process group is killed before the leader is
    reaped: until then no other process can get its process id.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._running: dict[int, tuple[int, int, Callable[[], int]]] = {}  # by id: pid, pidfd, wait

    def __len__(self) -> int:
        return len(self._running)

    def add(self, id: int, pid: int, wait: Callable[[], int]) -> Spawned:
        """Watch a worker: the selector reports its end, with the id as data.

        Args:
            id: The worker's id in the protocol.
            pid: Its process id.
            wait: Reaps it and returns its exit code.
        """
        pidfd = os.pidfd_open(pid)
        self._running[id] = (pid, pidfd, wait)
        self._selector.register(pidfd, selectors.EVENT_READ, id)
        return Spawned(id, pid)

    def signal(self, id: int, number: int) -> None:
        """Signal the process group of a worker, if the worker still runs."""
        if id in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running[id][0], number)

    def end(self, id: int) -> Ended:
        """Kill the rest of the worker's group and reap the worker. Call it when the selector has reported its end."""
        pid, pidfd, wait = self._running.pop(id)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # the leader is a zombie: the group is still its own
        return Ended(id, wait())

    def close_in_child(self) -> None:
        """Forget all workers, in a fork of this process: they are children of the original alone."""
        for _, pidfd, _ in self._running.values():
            os.close(pidfd)
        self._running.clear()
