"""The agent's end of the socket to the spawner of its node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from flowdist.runtime.processes.spawn_protocol import Answer, Request, answers, encode


class SpawnerChannel:
    """Sends requests to the spawner and passes each of its answers to `handle`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, channel: socket.socket, handle: Callable[[Request | Answer], None]
    ) -> None:
        self._channel, self._handle = channel, handle
        self._frames = answers()
        channel.setblocking(False)
        loop.add_reader(channel, self._read)

    def send(self, request: Request) -> None:
        """Send a request. Requests are small and rare: blocking for a moment is simpler than a write buffer."""
        self._channel.setblocking(True)
        with contextlib.suppress(ConnectionError):  # the spawner has died: the next read ends this process
            self._channel.sendall(encode(request))
        self._channel.setblocking(False)

    def _read(self) -> None:
        try:
            data = self._channel.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:  # the spawner was killed before it had read every request
            data = b""
        if not data:
            os._exit(1)  # without a spawner the node is lost: the guardian kills the rest of it
        for answer in self._frames.feed(data):
            self._handle(answer)
