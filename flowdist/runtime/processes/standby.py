"""Forks that stand by: each is a worker to be, forked before it is wanted, and waits for what it is to become.

A fork of a process with torch in it takes milliseconds, one after the other for several workers. That is paid while
all is calm: as many stand by as workers of the same fork server run, `STANDBY_MAX` at most. One that waits shares its
memory with the fork server, runs nothing of the user's, and ends when the fork server does.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable

from flowdist.runtime.processes.spawning import Spawn, encode, requests, write_pid

STANDBY_MAX = 8
CALM_S = 0.5  # without a start or an end: nobody is kept from anything by a fork
FILES = 3  # stdin, stdout, stderr


class Standby:
    """One of them, seen from the fork server."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self.channel = pid, channel
        self.pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        """It ends, if it has not been given anything to do."""
        self.channel.close()
        os.close(self.pidfd)


class Standbys:
    """Those of one fork server. `fork` forks; their ends are in `selector`, with the Standby as data."""

    def __init__(self, selector: selectors.BaseSelector, fork: Callable[[], int]) -> None:
        self._selector, self._fork = selector, fork
        self._waiting: list[Standby] = []
        self._wanted = 0
        self._calm_at_s: float | None = None
        self._is_off = False

    def stir(self) -> None:
        """A worker was started or has ended."""
        if not self._is_off:
            self._calm_at_s = time.monotonic() + CALM_S

    def patience_s(self) -> float | None:
        """How long to wait before `keep_up`."""
        return None if self._calm_at_s is None else max(0.0, self._calm_at_s - time.monotonic())

    def keep_up(self, running: int) -> socket.socket | None:
        """Fork one, or end one, if it is time to and there are not as many as there are to be.

        Returns in the child too, with what it is to wait at.
        """
        if self._calm_at_s is None or self._calm_at_s > time.monotonic():
            return None
        self._wanted = min(running, STANDBY_MAX) or self._wanted  # with none left, what ran is about to come back
        if len(self._waiting) > self._wanted:
            self._drop(self._waiting[-1])
        elif len(self._waiting) < self._wanted:
            return self._add()
        else:
            self._calm_at_s = None
        return None

    def hand_over(self, request: Spawn, files: list[int]) -> int | None:
        """Have one of them become that worker. Its process id; None if there is none."""
        while self._waiting:
            standby = self._waiting.pop(0)
            self._selector.unregister(standby.pidfd)
            write_pid(request.folder, standby.pid)
            try:
                data = encode(request)
                sent = socket.send_fds(standby.channel, [data], files)
                if sent < len(data):  # it closes its side once it has all
                    standby.channel.sendall(data[sent:])
            except OSError:  # it has died, or there is no room for what it is to be told: then it ends of the close
                standby.close()
                os.waitpid(standby.pid, 0)
                continue
            standby.close()
            return standby.pid
        return None

    def died(self, standby: Standby) -> None:
        """Somebody has killed it, for want of memory for example: no more of them, then.

        It may have been missed already, by a request that came with the news.
        """
        if standby in self._waiting:
            self._drop(standby)
        self._is_off, self._calm_at_s = True, None

    def forget(self) -> None:
        """In a fork of the fork server: they are the fork server's."""
        for standby in self._waiting:
            standby.close()
        self._waiting.clear()

    def _add(self) -> socket.socket | None:
        ours, theirs = socket.socketpair()
        try:
            pid = self._fork()
        except OSError:  # no room for another process: those that run come first
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


def wait_for_work(channel: socket.socket) -> tuple[Spawn, list[int]]:
    """In the child: what it is to become, and its stdin, stdout and stderr. Ends with the fork server."""
    frames = requests()
    data, files, _, _ = socket.recv_fds(channel, 1 << 16, FILES)
    while True:
        if not data:
            os._exit(0)
        for request in frames.feed(data):
            assert isinstance(request, Spawn)
            channel.close()
            return request, files
        data = b""
        with contextlib.suppress(OSError):
            data = channel.recv(1 << 16)
