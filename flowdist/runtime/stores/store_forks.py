"""Store hosts that are forked from a prefix with torch: they start within milliseconds and share its memory.

For the spawner a store host is a worker like any other. The agent hands the listening socket of the store to the store
host through a Unix socket that it opens for this one handover.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from flowdist.runtime.processes.spawn_protocol import PrefixSpec, Signal, Spawn

SOCKET_PATH_MAX = 107  # bytes, on Linux

StoreKey = tuple[str, int]  # world and generation


class StoreForks:
    """The store hosts that were forked from a prefix, and the handovers of their sockets.

    Args:
        loop: The agent's event loop.
        send: Sends a request to the spawner.
        ids: The ids of the spawner's workers, of which each store host takes one.
        run_dir: The folder of the run, which gets the logs.
        socket_dir: The folder for the sockets of the handovers.
    """

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
        self.prefix: PrefixSpec | None = None  # None until a prefix is known to have torch
        self._hosts: dict[StoreKey, int] = {}
        self._handovers: dict[StoreKey, socket.socket] = {}

    def start(self, key: StoreKey, listening: socket.socket) -> bool:
        """Have the prefix fork a store host that serves the listening socket.

        This process closes its copy of the socket once the store host has received the socket.

        Returns:
            True; or False, with nothing started, if no prefix is known to have torch, or if the handover socket
            cannot be made. That the start failed later shows in the spawner's answer.
        """
        id = next(self._ids)
        path = f"{self._socket_dir}/s{os.getpid()}-{id}.sock"
        if self.prefix is None or len(path.encode()) > SOCKET_PATH_MAX:
            return False
        try:
            handover = _listen(path)
        except OSError:  # a full disk, or no descriptor is left
            return False
        self._handovers[key] = handover
        self._loop.add_reader(handover, self._hand_over, key, listening)
        self._hosts[key] = id
        argv = (sys.executable, "-m", "flowdist.runtime.stores.store_host", path)  # if it has to be started by exec
        folder = f"{self._run_dir}/stores/{key[0].replace('/', '-')}-{key[1]}"
        self._send(Spawn(id, argv, dict(os.environ), self._run_dir, folder, self.prefix, store=path))
        return True

    def kill(self, key: StoreKey) -> bool:
        """Have the spawner kill the host of this store. Return False if the store has no host that was forked here."""
        if key in self._hosts:
            self._send(Signal(self._hosts[key], signal.SIGKILL))
        return key in self._hosts

    def owns(self, id: int) -> bool:
        """Return whether the spawner's worker with this id is a store host."""
        return id in self._hosts.values()

    def ended(self, id: int) -> StoreKey:
        """Forget a store host that has ended or could not be started, and return the key of its store.

        Args:
            id: The spawner's id of the store host; `owns` has to be true for it.
        """
        key = next(key for key, own in self._hosts.items() if own == id)
        del self._hosts[key]
        self._close_handover(key)
        return key

    def _hand_over(self, key: StoreKey, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a store host that has died meanwhile: the spawner reports its end
            link, _ = self._handovers[key].accept()
            with link:
                socket.send_fds(link, [b"."], [listening.fileno()])
        listening.close()
        self._close_handover(key)

    def _close_handover(self, key: StoreKey) -> None:
        handover = self._handovers.pop(key, None)
        if handover is not None:
            self._loop.remove_reader(handover)
            path = handover.getsockname()
            handover.close()
            Path(path).unlink(missing_ok=True)


def _listen(path: str) -> socket.socket:
    """Return a Unix socket that listens at the path, for this user alone."""
    handover = socket.socket(socket.AF_UNIX)
    try:
        handover.bind(path)
        Path(path).chmod(0o600)
        handover.listen(1)
    except OSError:
        handover.close()
        raise
    return handover
