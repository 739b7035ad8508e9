"""The protocol between agent and spawner, and the files in a worker's folder that belong to it.

One protocol serves both ways of starting a worker, by exec and by fork: a Spawn is answered by Spawned or SpawnRefused,
and later, when the worker has ended, by Ended. Each message is a frame of `wire/framing.py`.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.left_files import read_number
from flowdist.runtime.wire.framing import FrameBuffer
from flowdist.runtime.wire.framing import encode as encode


class PrefixSpec(msgspec.Struct, frozen=True):
    """Key of a prefix: all that its workers share before they differ. Workers with equal specs are forked from one."""

    argv: tuple[str, ...]  # words that differ from worker to worker have their macros still
    env: tuple[tuple[str, str], ...]
    cwd: str
    unknown: tuple[str, ...]  # environment variables that are not in `env`, because each worker has its own value
    of_start: tuple[str, ...]  # those of them that may differ between two starts of a worker with the same rank
    late: tuple[str, ...]  # modules that are imported at the split, if the script has not imported them
    has_own_words: bool = False  # whether `argv` has words that differ

    def rank_of(self, env: Mapping[str, str]) -> tuple[str | None, ...]:
        """Return the values in a worker's environment that it has in each of its starts, and its prefix has not."""
        return tuple(env.get(name) for name in self.unknown if name not in self.of_start)


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Request to start one worker: by a fork from its `prefix`, or by exec if that is None or cannot be used.

    `folder` gets the files stdout.log, stderr.log and pid of the worker. The pid file is written before the worker runs
    any code of the user, and before Spawned is answered.
    """

    id: int  # chosen by the agent, different for each worker of a node; answers and later requests name it
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    folder: str
    prefix: PrefixSpec | None = None
    cpus: tuple[int, ...] = ()  # cores that the worker is bound to; none: those that the spawner may use
    store: str | None = None  # the path at which a store host gets its socket; None: this is a worker


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Request to start a prefix before the first worker needs it. Answered by Prepared."""

    prefix: PrefixSpec


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Request to signal the process group of a worker, if the worker still runs."""

    id: int
    number: int


class CancelSpawn(msgspec.Struct, frozen=True, tag=True):
    """Request to drop a Spawn that waits for its prefix, answered as if SIGTERM had ended it. Others are left alone."""

    id: int


class Spawned(msgspec.Struct, frozen=True, tag=True):
    """Answer: the worker was started."""

    id: int
    pid: int  # 0 if it was dropped, or its template has died, before it had a process
    has_torch: bool = False  # it was forked from a process with torch


class SpawnRefused(msgspec.Struct, frozen=True, tag=True):
    """Answer: the worker could not be started; `detail` says why."""

    id: int
    detail: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Answer: the worker has ended. `code` is as subprocess has it, negative for a signal."""

    id: int
    code: int


class Respawned(msgspec.Struct, frozen=True, tag=True):
    """Answer: a worker that has done nothing yet was forked anew, and has another process id."""

    id: int
    pid: int


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Answer: the prefix of a Prepare has come to its split, or its workers are known to start cold."""

    has_torch: bool = False


class StartedCold(msgspec.Struct, frozen=True, tag=True):
    """Answer, once per prefix that was given up: a worker that was to be forked is started by exec, for `reason`.

    It comes before Spawned of the first worker that is concerned.
    """

    id: int
    reason: str


Request = Spawn | Prepare | Signal | CancelSpawn
WorkerAnswer = Spawned | Respawned | SpawnRefused | Ended | StartedCold
Answer = WorkerAnswer | Prepared

_DECODER = msgspec.msgpack.Decoder(Request | Answer)
INJECTED_EXIT = "injected_exit"  # file: the exit code that an injected fault wants reported instead of its SIGKILL
EXIT_CODE_MAX = 255
INJECTED_OOM = "injected_oom"  # file: an injected fault wants its SIGKILL reported as one of the kernel's OOM killer


def write_pid(folder: str | Path, pid: int) -> None:
    """Write the pid file of a worker atomically, or not at all (full disk): only injected faults need it."""
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
    """One end of the connection between agent and spawner, for a selector or event loop; `close` closes its socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._frames = connection, FrameBuffer()
        self.fileno, self.close = connection.fileno, connection.close

    def send(self, message: Request | Answer) -> None:
        """Send a message, or drop it if the other side has ended. Few and small messages need no write buffer."""
        with contextlib.suppress(ConnectionError):  # the other side has ended: the next read finds out
            self._socket.sendall(encode(message))

    def receive(self) -> list[Request | Answer] | None:
        """Wait for data and return the messages that it completes, perhaps none; None if the other side has ended.

        A side that was killed may have left a message unread. The connection is reset then, which is no error here.
        """
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self._socket.recv(1 << 16)
        return [_DECODER.decode(body) for body in self._frames.feed(data)] if data else None


def signal_name(code: int) -> str:
    """Return the name of a negative exit code's signal: `KILL` for -9, `RTMIN+1` for -35; a number if it has none."""
    number = -code
    if number in set(signal.Signals):
        return signal.Signals(number).name.removeprefix("SIG")
    return f"RTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else str(number)


def describe_exit(code: int) -> str:
    """Return an exit code in words: `exit code 3`, or `signal KILL` for -9."""
    return f"exit code {code}" if code >= 0 else f"signal {signal_name(code)}"
