"""The parent of a node's workers: it starts them, and says when they end, at once.

One protocol, whatever the start is like: Spawn in, Spawned or SpawnRefused out, later Ended. Each worker leads a
session of its own; what is left of that session when its leader ends is killed before the leader is reaped, while its
process id cannot be anybody else's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
from pathlib import Path

import msgspec


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Start one worker. `folder` gets its stdout.log, stderr.log and pid."""

    id: int
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    folder: str


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Signal the process group of a worker, if it still runs."""

    id: int
    number: int


class Spawned(msgspec.Struct, frozen=True, tag=True):
    id: int
    pid: int


class SpawnRefused(msgspec.Struct, frozen=True, tag=True):
    id: int
    detail: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """`code` as subprocess has it: negative for a signal."""

    id: int
    code: int


Request = Spawn | Signal
Answer = Spawned | SpawnRefused | Ended

_REQUESTS = msgspec.msgpack.Decoder(Request)
_ANSWERS = msgspec.msgpack.Decoder(Answer)
_ENCODER = msgspec.msgpack.Encoder()
INJECTED_EXIT = "injected_exit"  # a fault wrote here which code the kill that follows is to be taken for


def encode(message: Request | Answer) -> bytes:
    body = _ENCODER.encode(message)
    return len(body).to_bytes(4, "big") + body


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Request] | msgspec.msgpack.Decoder[Answer]) -> None:
        self._decoder, self._buffer = decoder, bytearray()

    def feed(self, data: bytes) -> list[Request | Answer]:
        self._buffer += data
        messages: list[Request | Answer] = []
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < end:
                break
            messages.append(self._decoder.decode(self._buffer[4:end]))
            del self._buffer[:end]
        return messages


def answers() -> Frames:
    """For the agent's side of the socket."""
    return Frames(_ANSWERS)


class Spawner:
    """The loop of the process. It ends when the agent closes its side."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._running: dict[int, tuple[subprocess.Popen[bytes], int, str]] = {}  # by id: process, pidfd, folder
        self._frames = Frames(_REQUESTS)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._channel:
                    data = self._channel.recv(1 << 16)
                    if not data:
                        return
                    for request in self._frames.feed(data):
                        self._obey(request)
                else:
                    self._ended(key.data)

    def _obey(self, request: Request | Answer) -> None:
        match request:
            case Spawn():
                self._answer(self._spawn(request))
            case Signal():
                if request.id in self._running:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(self._running[request.id][0].pid, request.number)
            case _:
                raise TypeError(f"no request: {request}")

    def _spawn(self, request: Spawn) -> Spawned | SpawnRefused:
        folder = Path(request.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "stdout.log").open("ab") as out, (folder / "stderr.log").open("ab") as err:
                process = subprocess.Popen(
                    request.argv,
                    env=request.env,
                    cwd=request.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return SpawnRefused(request.id, f"{request.argv[0]}: {reason}")
        (folder / "pid").write_text(f"{process.pid}\n")
        pidfd = os.pidfd_open(process.pid)
        self._running[request.id] = (process, pidfd, request.folder)
        self._selector.register(pidfd, selectors.EVENT_READ, request.id)
        return Spawned(request.id, process.pid)

    def _ended(self, id: int) -> None:
        process, pidfd, folder = self._running.pop(id)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # the leader is a zombie: the group is still its own
        self._answer(Ended(id, _injected(folder, process.wait())))

    def _answer(self, answer: Answer) -> None:
        self._channel.sendall(encode(answer))


def _injected(folder: str, code: int) -> int:
    """An injected `exit=3` is a SIGKILL that is told as exit code 3: nobody can make a foreign process exit."""
    file = Path(folder, INJECTED_EXIT)
    if code == -signal.SIGKILL and file.exists():
        return int(file.read_text())
    return code
