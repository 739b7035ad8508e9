"""The protocol between agent, spawner and fork servers, and the files in a worker's folder that belong to it.

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
from flowdist.runtime.left_files import read_number
from flowdist.runtime.preload.profile import Changes
from flowdist.runtime.wire.framing import FrameBuffer
from flowdist.runtime.wire.framing import encode as encode


class ForkServerSpec(msgspec.Struct, frozen=True):
    """Key of a fork server: what it imports, and everything that the imports may read.

    Workers whose specs are equal are forked from one process.
    """

    interpreter: tuple[str, ...]  # with its flags
    env: tuple[tuple[str, str], ...]
    cwd: str
    first_path: str  # sys.path[0]
    preload: tuple[str, ...]
    learned: tuple[str, ...] = ()  # modules that are imported after those of `preload`, if each passes its trial
    per_worker: tuple[str, ...] = ()  # environment variables that learned modules must not read
    changed: Changes = ()  # variables that the script changes

    def without_learned(self) -> ForkServerSpec:
        """Return the key of the fork server that has nothing learned, and can serve the same workers."""
        return msgspec.structs.replace(self, learned=(), per_worker=(), changed=())


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Request to start one worker: by a fork from `server`, or by exec if `server` is None or cannot be used.

    `folder` gets the files stdout.log, stderr.log and pid of the worker. The pid file is written before the worker runs
    any code of the user, and before Spawned is answered.
    """

    id: int  # chosen by the agent, different for each worker of a node; answers and later requests name it
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    folder: str
    server: ForkServerSpec | None = None
    cpus: tuple[int, ...] = ()  # cores that the worker is bound to; none: those that the spawner may use
    records: bool = False  # a worker that is forked leaves a recording of its imports in `folder`


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Request to start a fork server before the first worker needs it. Answered by Prepared."""

    server: ForkServerSpec


class Learn(msgspec.Struct, frozen=True, tag=True):
    """Request to start a fork server with learned modules, for which no worker waits. Answered by Learned."""

    server: ForkServerSpec


class Retire(msgspec.Struct, frozen=True, tag=True):
    """Request to end a fork server once it has no workers any more. A later Spawn may start the server again."""

    server: ForkServerSpec


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Request to signal the process group of a worker, if the worker still runs."""

    id: int
    number: int


class CancelSpawn(msgspec.Struct, frozen=True, tag=True):
    """Request to drop a Spawn that waits for its fork server. The answers are as if SIGTERM had ended the worker.

    A Spawn that does not wait is left as it is, without an answer.
    """

    id: int


class Spawned(msgspec.Struct, frozen=True, tag=True):
    """Answer: the worker was started."""

    id: int
    pid: int  # 0 if it was dropped, or its fork server has died, before it had a process


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
    learned: tuple[str, ...] = ()
    per_worker: tuple[str, ...] = ()
    changed: Changes = ()
    standbys: int = 0  # workers that this server will probably have to start at once


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Answer of a fork server after its imports. `unsafe` says why it must not be forked from; normally empty.

    `imported` has the learned modules that were imported by name. `refused` has those because of which the server is
    unsafe, each with the reason.
    """

    unsafe: str = ""
    imported: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Answer: the fork server of a Prepare is ready; or, if not `is_usable`, must not be used."""

    is_usable: bool


class Learned(msgspec.Struct, frozen=True, tag=True):
    """Answer: a fork server with learned modules is ready; or, if `unsafe` says why, was given up for good.

    It comes after a Learn, and also when such a server that a Prepare or a Spawn has started is ready or given up. The
    spawner starts workers for a server that was given up from the one `without_learned`.
    """

    server: ForkServerSpec
    unsafe: str = ""
    imported: tuple[str, ...] = ()  # the learned modules that were imported by name; these bring all others
    refused: tuple[tuple[str, str], ...] = ()  # learned modules that make the server unsafe, each with the reason


class StartedCold(msgspec.Struct, frozen=True, tag=True):
    """Answer: a worker that was to be forked is started by exec; `reason` says why.

    The spawner sends this answer once for each fork server that it has given up, before Spawned of the first worker
    that is concerned.
    """

    id: int
    reason: str


Request = Spawn | Prepare | Learn | Retire | Signal | CancelSpawn | Imports
Answer = Spawned | SpawnRefused | Ended | Ready | Prepared | Learned | StartedCold

_DECODER = msgspec.msgpack.Decoder(Request | Answer)
INJECTED_EXIT = "injected_exit"  # file: the exit code that an injected fault wants reported instead of its SIGKILL
EXIT_CODE_MAX = 255
INJECTED_OOM = "injected_oom"  # file: an injected fault wants its SIGKILL reported as one of the kernel's OOM killer


def write_pid(folder: str | Path, pid: int) -> None:
    """Write the pid file of a worker atomically.

    If the file cannot be written, for example on a full disk, the worker runs without it: only injected faults need it.
    """
    with contextlib.suppress(OSError):
        write_atomically(Path(folder, "pid"), f"{pid}\n")


def read_pid(folder: str | Path) -> int | None:
    """Return the process id in the pid file of a worker's folder; None if the file has none, or cannot be read."""
    pid = read_number(Path(folder, "pid"))
    return pid if pid is not None and pid > 1 else None  # a signal to 0, 1 or -1 would hit others


def injected_code(folder: Path, code: int) -> int:
    """Return the exit code to report for a worker that ended with `code`, negative for a signal.

    Normally that is `code`. An injected `exit=3` kills the worker by SIGKILL, since one process cannot make another
    exit, and leaves a file in the worker's `folder`: then the code to report is 3.
    """
    injected = read_number(folder / INJECTED_EXIT) if code == -signal.SIGKILL else None
    return injected if injected is not None and 0 <= injected <= EXIT_CODE_MAX else code


class Channel:
    """One end of a connection between agent and spawner, or between spawner and fork server.

    A selector or an event loop may watch this object in place of its socket.

    Args:
        connection: A blocking socket, which `close` closes.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._frames = connection, FrameBuffer()
        self.fileno, self.close = connection.fileno, connection.close

    def send(self, message: Request | Answer) -> None:
        """Send a message; drop it if the other side has ended.

        Messages are small and rare: blocking for a moment is simpler than a write buffer.
        """
        with contextlib.suppress(ConnectionError):  # the other side has ended: the next read finds out
            self._socket.sendall(encode(message))

    def receive(self) -> list[Request | Answer] | None:
        """Wait for data and return the messages that it completes, perhaps none; None if the other side has ended.

        A side that was killed may have left a message unread. The connection is reset then, which is no error here.
        """
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self._socket.recv(1 << 16)
        return self.feed(data) if data else None

    def feed(self, data: bytes) -> list[Request | Answer]:
        """Add bytes that were read from the socket by other means than `receive`; return the messages they complete."""
        return [_DECODER.decode(body) for body in self._frames.feed(data)]
