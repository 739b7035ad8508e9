"""Store hosts that are forked from a node's fork server: they are there within moments, and share its memory.

For the spawner each is a worker like any other. It gets its listening socket over a socket of the agent's, once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from flowdist.runtime.processes.spawning import ForkServer, Signal, Spawn

SOCKET_PATH_MAX = 107  # bytes, on Linux

Key = tuple[str, int]  # world and generation


class StoreForks:
    """`send` goes to the spawner, `ids` are those of its workers. `server` is None until a fork server has shown to be
    of use."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Spawn | Signal], None],
        ids: Iterator[int],
        run_dir: str,
        socket_dir: str,
    ) -> None:
        self._loop, self._send, self._ids = loop, send, ids
        self._run_dir, self._socket_dir = run_dir, socket_dir
        self.server: ForkServer | None = None
        self._hosts: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._lenders: dict[Key, socket.socket] = {}

    def start(self, key: Key, listening: socket.socket) -> bool:
        """Whether it is taken care of: the socket, too, then."""
        id = next(self._ids)
        path = f"{self._socket_dir}/s{os.getpid()}-{id}.sock"
        if self.server is None or len(path.encode()) > SOCKET_PATH_MAX:
            return False
        lender = socket.socket(socket.AF_UNIX)
        lender.bind(path)
        Path(path).chmod(0o600)
        lender.listen(1)
        self._lenders[key] = lender
        self._loop.add_reader(lender, self._lend, key, listening)
        self._hosts[key], self._keys[id] = id, key
        argv = (sys.executable, "-m", "flowdist.runtime.stores.store_host", path)
        folder = f"{self._run_dir}/stores/{key[0].replace('/', '-')}-{key[1]}"
        self._send(Spawn(id, argv, dict(os.environ), self._run_dir, folder, self.server))
        return True

    def has(self, key: Key) -> bool:
        return key in self._hosts

    def kill(self, key: Key) -> bool:
        """Whether it is one of these."""
        if self.has(key):
            self._send(Signal(self._hosts[key], signal.SIGKILL))
        return self.has(key)

    def owns(self, id: int) -> bool:
        return id in self._keys

    def ended(self, id: int) -> Key:
        """Whose store it was."""
        key = self._keys.pop(id)
        del self._hosts[key]
        self._close_lender(key)
        return key

    def _lend(self, key: Key, listening: socket.socket) -> None:
        link, _ = self._lenders[key].accept()
        with link:
            socket.send_fds(link, [b"."], [listening.fileno()])
        listening.close()
        self._close_lender(key)

    def _close_lender(self, key: Key) -> None:
        lender = self._lenders.pop(key, None)
        if lender is not None:
            self._loop.remove_reader(lender)
            path = lender.getsockname()
            lender.close()
            Path(path).unlink(missing_ok=True)
