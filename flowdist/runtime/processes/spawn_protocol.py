"""The protocol between agent, spawner and fork servers, and the files that it leaves in a worker's folder.

One protocol serves both ways of starting a worker, by exec and by fork: a Spawn is answered by Spawned or SpawnRefused,
and later, when the worker has ended, by Ended. Each message is a frame of `wire/framing.py`.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path

import msgspec

from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.wire.framing import FrameBuffer
from flowdist.runtime.wire.framing import encode as encode


class ForkServerSpec(msgspec.Struct, frozen=True):
    """Key of a fork server: everything that its imports may have read. Workers with equal specs share one process."""

    interpreter: tuple[str, ...]  # with its flags
    env: tuple[tuple[str, str], ...]
    cwd: str
    first_path: str  # sys.path[0]
    preload: tuple[str, ...]


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Request to start one worker: by a fork from `server`, else by exec.

    `folder` gets its stdout.log, stderr.log and pid. The pid file is written before the worker runs any code of its
    own, and before Spawned is answered.
    """

    id: int
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    folder: str
    server: ForkServerSpec | None = None
    cpus: tuple[int, ...] = ()  # cores that it is bound to; none: those that the spawner may use


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Request to start a fork server before the first worker needs it. Answered by Prepared."""

    server: ForkServerSpec


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Request to signal the process group of a worker, if the worker still runs."""

    id: int
    number: int


class CancelSpawn(msgspec.Struct, frozen=True, tag=True):
    """Request to drop a Spawn that waits for its fork server. The answer is as if SIGTERM had ended the worker."""

    id: int


class Spawned(msgspec.Struct, frozen=True, tag=True):
    """Answer: the worker was started."""

    id: int
    pid: int


class SpawnRefused(msgspec.Struct, frozen=True, tag=True):
    """Answer: the worker could not be started; `detail` says why."""

    id: int
    detail: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Answer: the worker has ended. `code` is as subprocess has it, negative for a signal."""

    id: int
    code: int


class Imports(msgspec.Struct, frozen=True, tag=True):
    """First request to a fork server: what to import, and from where. Answered by Ready."""

    first_path: str  # becomes sys.path[0]; empty: no entry is added
    preload: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Answer of a fork server after its imports. `unsafe` says why it must not be forked from; normally empty."""

    unsafe: str = ""


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Answer: the fork server of a Prepare is ready; or, if not `is_usable`, must not be used."""

    is_usable: bool


class StartedCold(msgspec.Struct, frozen=True, tag=True):
    """Answer: a worker that was to be forked is started by exec. Sent once for each fork server that cannot be used."""

    id: int
    reason: str


Request = Spawn | Prepare | Signal | CancelSpawn | Imports
Answer = Spawned | SpawnRefused | Ended | Ready | Prepared | StartedCold

_DECODER = msgspec.msgpack.Decoder(Request | Answer)
INJECTED_EXIT = "injected_exit"  # file: the exit code that an injected fault wants reported instead of its SIGKILL
INJECTED_OOM = "injected_oom"  # file: an injected fault wants its SIGKILL reported as one of the kernel's OOM killer


def write_pid(folder: str | Path, pid: int) -> None:
    """Write the pid file of a worker atomically.

    On a full disk the file is missing, but the worker runs: only injected faults need the file.
    """
    with contextlib.suppress(OSError):
        write_atomically(Path(folder, "pid"), f"{pid}\n")


def read_pid(folder: str | Path) -> int | None:
    """Return the process id in a worker's folder; None if the file is missing or cannot be read."""
    try:
        return int(Path(folder, "pid").read_text())
    except (OSError, ValueError):
        return None


def injected_code(folder: Path, code: int) -> int:
    """Return the exit code to report for a worker that ended with `code`.

    An injected `exit=3` kills the worker, since one process cannot make another exit, and is reported as exit code 3.
    """
    file = folder / INJECTED_EXIT
    return int(file.read_text()) if code == -signal.SIGKILL and file.exists() else code


class Channel:
    """One end of a connection between agent, spawner and fork server: a blocking socket that carries messages.

    A selector or an event loop may watch it as it watches the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._frames = connection, FrameBuffer()
        self.fileno, self.close = connection.fileno, connection.close

    def send(self, message: Request | Answer) -> None:
        """Send a message. Messages are small and rare: blocking for a moment is simpler than a write buffer."""
        with contextlib.suppress(ConnectionError):  # the other side has ended: the next read finds out
            self._socket.sendall(encode(message))

    def receive(self) -> list[Request | Answer] | None:
        """Wait for data and return the messages that it completes; None if the other side has ended.

        A side that was killed may have left a message unread. The connection is reset then, which is no error here.
        """
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self._socket.recv(1 << 16)
        return self.feed(data) if data else None

    def feed(self, data: bytes) -> list[Request | Answer]:
        """Return the messages that data completes which was read in another way."""
        return [_DECODER.decode(body) for body in self._frames.feed(data)]
