"""Standby processes: forks of a fork server that were made in advance and wait for the worker that they will become.

To fork a process that has torch imported takes milliseconds, and several workers are forked one after the other. With
standbys that time is spent while no worker starts or ends: the pool keeps as many standbys as workers of the fork
server run, at most `STANDBY_MAX`. A standby shares its memory with the fork server, runs no code of the user, and ends
with the fork server.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable

from flowdist.runtime.processes.spawn_protocol import Channel, Spawn, encode, write_pid

STANDBY_MAX = 8
CALM_S = 0.5  # the pool forks after so long without a start or an end of a worker: no start waits for such a fork
FILES = 3  # stdin, stdout, stderr


class Standby:
    """One standby process, as its fork server sees it.

    Args:
        pid: The process id of the standby.
        channel: The fork server's end of the socket to the standby.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self.channel = pid, channel
        self.pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        """Close the channel and the pidfd. The process ends then, unless the fork server has assigned it a worker."""
        self.channel.close()
        os.close(self.pidfd)


class StandbyPool:
    """The standby processes of one fork server.

    Args:
        selector: Reports the end of each standby process, with its Standby as data.
        fork: Forks this process and returns as os.fork does.
    """

    def __init__(self, selector: selectors.BaseSelector, fork: Callable[[], int]) -> None:
        self._selector, self._fork = selector, fork
        self._waiting: list[Standby] = []
        self._wanted = 0
        self._calm_at_s: float | None = None
        self._is_off = False

    def note_activity(self) -> None:
        """Note that a worker was started or has ended: the pool changes no sooner than CALM_S from now."""
        if not self._is_off:
            self._calm_at_s = time.monotonic() + CALM_S

    def expect(self, count: int) -> None:
        """Fork standbys for workers that will be started later, although none has been so far.

        Args:
            count: How many are expected. With 0 nothing changes.
        """
        if count:
            self._wanted = min(count, STANDBY_MAX)
            self.note_activity()

    def seconds_until_due(self) -> float | None:
        """Return the seconds until `adjust` has to be called; None: nothing is due until a worker starts or ends."""
        return None if self._calm_at_s is None else max(0.0, self._calm_at_s - time.monotonic())

    def adjust(self, running: int) -> socket.socket | None:
        """Fork or end one standby process, if CALM_S has passed and the pool is not of the wanted size.

        Args:
            running: How many workers of the fork server run.

        Returns:
            None in the fork server; in a process that was forked here, the channel at which it has to wait.
        """
        if self._calm_at_s is None or self._calm_at_s > time.monotonic():
            return None
        self._wanted = min(running, STANDBY_MAX) or self._wanted  # if none runs, those that ran will be started again
        if len(self._waiting) > self._wanted:
            self._drop(self._waiting[-1])
        elif len(self._waiting) < self._wanted:
            return self._add()
        else:
            self._calm_at_s = None
        return None

    def assign(self, request: Spawn, files: list[int]) -> int | None:
        """Take a standby process out of the pool and have it become the worker of the request.

        A standby that turns out to have died is dropped, and the next one is taken.

        Args:
            request: The request to start the worker.
            files: The descriptors of the worker's stdin, stdout and stderr; the caller still has to close them.

        Returns:
            The process id of the worker; None if the pool is empty.
        """
        while self._waiting:
            standby = self._waiting.pop(0)
            self._selector.unregister(standby.pidfd)
            write_pid(request.folder, standby.pid)
            try:
                data = encode(request)
                sent = socket.send_fds(standby.channel, [data], files)
                if sent < len(data):  # the process closes its side only when it has everything
                    standby.channel.sendall(data[sent:])
            except OSError:  # the process has died, or the request could not be sent: closing ends the process
                standby.close()
                os.waitpid(standby.pid, 0)
                continue
            standby.close()
            return standby.pid
        return None

    def handle_death(self, standby: Standby) -> None:
        """Stop forking standbys for good: something has killed one of them, perhaps the kernel for want of memory.

        Call this method when the selector reports the end of a standby. The standby may have left the pool already, if
        `assign` has found it dead. The other standbys can still be assigned.
        """
        if standby in self._waiting:
            self._drop(standby)
        self._is_off, self._calm_at_s = True, None

    def close_in_child(self) -> None:
        """In a fork of the fork server, forget all standbys: they are children of the original process alone."""
        for standby in self._waiting:
            standby.close()
        self._waiting.clear()

    def _add(self) -> socket.socket | None:
        ours, theirs = socket.socketpair()
        try:
            pid = self._fork()
        except OSError:  # the system allows no more processes: leave the room to workers
            ours.close()
            theirs.close()
            self._calm_at_s = None
            return None
        if pid == 0:
            ours.close()
            return theirs
        theirs.close()
        standby = Standby(pid, ours)
        self._waiting.append(standby)
        self._selector.register(standby.pidfd, selectors.EVENT_READ, standby)
        return None

    def _drop(self, standby: Standby) -> None:
        self._waiting.remove(standby)
        self._selector.unregister(standby.pidfd)
        standby.close()
        os.waitpid(standby.pid, 0)


def receive_work(channel: socket.socket) -> tuple[Spawn, list[int]]:
    """In a standby process, wait until the fork server assigns it a worker; then close the channel.

    If the fork server closes its end first, or ends, this process ends.

    Returns:
        The request to start the worker, and the descriptors of its stdin, stdout and stderr.
    """
    data, files, _, _ = socket.recv_fds(channel, 1 << 16, FILES)
    requests = Channel(channel)
    received = requests.feed(data) if data else None
    while received == []:
        received = requests.receive()
    if received is None:
        os._exit(0)
    (request,) = received
    assert isinstance(request, Spawn)
    channel.close()
    return request, files
