"""The worker's connection to the process that proves its script. Messages are JSON, a line each."""

from __future__ import annotations

import array
import json
import os
import socket
import threading
from typing import Any

from flowdist.runtime.prefix.worker import high_copy


class Prover:
    """The connection of a worker to the process that proves its script."""

    def __init__(self, path: str) -> None:
        end = socket.socket(socket.AF_UNIX)
        end.connect(path)
        high = high_copy(end.fileno())
        end.close()
        self._socket = socket.socket(fileno=high)
        self._file = self._socket.makefile("rb")
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def tell(self, **message: Any) -> None:
        """Send a message. A child that the worker has forked says nothing."""
        if os.getpid() == self._pid:
            with self._lock:
                self._socket.sendall(json.dumps(message).encode() + b"\n")

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and return the answer. The worker may be killed in place of it."""
        if os.getpid() != self._pid:
            return {}
        with self._lock:
            self.tell(**message)
            line = self._file.readline()
        if not line:
            os._exit(1)  # nobody proves any more
        answer: dict[str, Any] = json.loads(line)
        return answer

    def send_listener(self, fd: int) -> None:
        """Send the listener of this process's calls, with a message of its own."""
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self._socket.sendmsg([b'{"kind": "listener"}\n'], files)
