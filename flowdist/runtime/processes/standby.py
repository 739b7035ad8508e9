"""Standby processes: forks of a fork server that were made in advance and wait for the worker that they will become.

To fork a process that has torch imported takes milliseconds, and several workers are forked one after the other. With
standbys that time is spent while nothing else happens: the pool keeps as many as workers of the fork server run, at
most `STANDBY_MAX`. A standby shares its memory with the fork server, runs no code of the user's, and ends with the fork
server.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable

from flowdist.runtime.processes.spawn_protocol import Channel, Spawn, encode, write_pid

STANDBY_MAX = 8
CALM_S = 0.5  # without a start or an end of a worker, before the pool forks: no start waits for such a fork
FILES = 3  # stdin, stdout, stderr


class Standby:
    """One standby process, seen from the fork server."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self.channel = pid, channel
        self.pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        """Close the channel. The process ends then, unless it was assigned a worker."""
        self.channel.close()
        os.close(self.pidfd)


class StandbyPool:
    """The standby processes of one fork server.

    Args:
        selector: Reports the ends of the processes, with the Standby as data.
        fork: As os.fork.
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

    def seconds_until_due(self) -> float | None:
        """Return the time until `adjust` has to be called; None while the pool is as large as wanted."""
        return None if self._calm_at_s is None else max(0.0, self._calm_at_s - time.monotonic())

    def adjust(self, running: int) -> socket.socket | None:
        """Fork or end one standby process, if it is due and the pool is not of the wanted size.

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
        """Have a standby process become the worker of the request.

        Args:
            files: The worker's stdin, stdout and stderr.

        Returns:
            The process id; None if the pool is empty.
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
        """Turn the pool off: something has killed a standby process, perhaps the kernel for want of memory.

        The process may have left the pool already, if a request was handled before its end was reported.
        """
        if standby in self._waiting:
            self._drop(standby)
        self._is_off, self._calm_at_s = True, None

    def close_in_child(self) -> None:
        """Forget all standby processes, in a fork of the fork server: they belong to the original alone."""
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
    """Wait, in a standby process, for the worker that it will become. Ends the process if the fork server closes.

    Returns:
        The request, and the descriptors of stdin, stdout and stderr.
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
