"""The worker's connection to the process that proves its script. Messages are JSON, a line each."""

from __future__ import annotations

import array
import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from flowdist.runtime.prefix.worker import high_copy


class Prover:
    """The connection of a worker to the process that proves its script.

    It is made at the gate. Until then messages are kept, and a question has the worker `come` to the gate.
    """

    def __init__(self, come: Callable[[], None]) -> None:
        self._come = come
        self._kept: list[bytes] = []
        self._postponed: list[dict[str, Any]] = []
        self._socket: socket.socket | None = None
        self._lock = threading.RLock()
        self._pid = -1
        self.tells_steps = False  # when a step begins, the prover looks at workers that take none
        self.is_coarse = False  # the kernel does not stop this worker: it asks before it changes a file

    def connect(self, path: str) -> None:
        """Connect this process, which is the worker itself and no child of it."""
        end = socket.socket(socket.AF_UNIX)
        end.connect(path)
        high = high_copy(end.fileno())
        end.close()
        self._socket = socket.socket(fileno=high)
        self._file = self._socket.makefile("rb")
        self._pid = os.getpid()

    def is_open(self) -> bool:
        """Return whether messages reach the prover: the worker has passed the gate, and this is no child of it."""
        return os.getpid() == self._pid

    def say_kept(self) -> None:
        """Send the messages that were kept."""
        kept, self._kept = self._kept, []
        for line in kept:
            self._send(line)

    def ask_postponed(self) -> None:
        """Ask what this worker had to say on its way to the gate."""
        postponed, self._postponed = self._postponed, []
        for message in postponed:
            self.ask(**message)

    def tell(self, **message: Any) -> None:
        """Send a message, or keep it until the worker has come to the gate. A child of the worker says nothing."""
        line = json.dumps(message).encode() + b"\n"
        if self._socket is None:
            self._kept.append(line)
        elif self.is_open():
            self._send(line)

    def _send(self, line: bytes) -> None:
        assert self._socket is not None
        with self._lock:
            self._socket.sendall(line)

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and return the answer. The worker may be killed in place of it.

        A worker that is on its way to the gate asks when it is there, and gets no answer here.
        """
        if self._socket is None:
            self._come()
        if self._socket is None:
            self._postponed.append(message)
        if not self.is_open():
            return {}
        with self._lock:
            self.tell(**message)
            line = self._file.readline()
        if not line:
            os._exit(1)  # nobody proves any more
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask_to_change(self, path: str) -> None:
        """Ask before a file is changed, if the kernel does not stop this worker there."""
        if self.is_coarse:
            self.ask(kind="changes", path=path)

    def send_listener(self, fd: int) -> None:
        """Send the listener of this process's calls, with a message of its own."""
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        assert self._socket is not None
        self._socket.sendmsg([b'{"kind": "listener"}\n'], files)
