"""What agent, spawner and fork servers say to each other, and the children that one of them has.

One protocol, whatever the start is like: Spawn in, Spawned or SpawnRefused out, later Ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from flowdist.runtime.run_folder.atomic import write_atomically
from flowdist.runtime.wire.framing import FrameBuffer
from flowdist.runtime.wire.framing import encode as encode


class ForkServer(msgspec.Struct, frozen=True):
    """What has to be equal for workers to be forked from one process: all that its imports may have read."""

    interpreter: tuple[str, ...]  # with its flags
    env: tuple[tuple[str, str], ...]
    cwd: str
    first_path: str  # sys.path[0]
    preload: tuple[str, ...]


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Start one worker. `folder` gets its stdout.log, stderr.log and pid. Without `server` it is started by exec.

    The pid is there before the worker runs anything of its own, and before Spawned is said.
    """

    id: int
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    folder: str
    server: ForkServer | None = None
    cpus: tuple[int, ...] = ()  # that it is bound to; none: those that we may use


@contextlib.contextmanager
def bound_to(cpus: tuple[int, ...]) -> Iterator[None]:
    """Whatever is started meanwhile is bound to these cores, from its first moment on. OSError: there are none of them.

    For a process with one thread: each has its own.
    """
    ours = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, ours)


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """A worker that will want this fork server is about to come."""

    server: ForkServer


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Signal the process group of a worker, if it still runs."""

    id: int
    number: int


class Hurry(msgspec.Struct, frozen=True, tag=True):
    """A worker that still waits for its fork server is not to be started: it ends as by SIGTERM."""

    id: int


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


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A fork server has imported what it is for. `unsafe` says why it must not be forked from; normally empty."""

    unsafe: str = ""


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The fork server of a Prepare has its imports, or it was found that it must not be used."""

    is_of_use: bool


class StartedCold(msgspec.Struct, frozen=True, tag=True):
    """A worker that was to be forked is started by exec. Told once for each fork server that cannot be used."""

    id: int
    reason: str


Request = Spawn | Prepare | Signal | Hurry
Answer = Spawned | SpawnRefused | Ended | Ready | Prepared | StartedCold

_REQUESTS = msgspec.msgpack.Decoder(Request)
_ANSWERS = msgspec.msgpack.Decoder(Answer)
INJECTED_EXIT = "injected_exit"  # a fault wrote here which code the kill that follows is to be taken for
INJECTED_OOM = "injected_oom"  # a fault left this: the kill that follows is to be taken for the kernel's


def write_pid(folder: str | Path, pid: int) -> None:
    """Whoever reads it finds all of it or nothing. A full disk costs the file, which faults want, not the worker."""
    with contextlib.suppress(OSError):
        write_atomically(Path(folder, "pid"), f"{pid}\n")


def read_pid(folder: str | Path) -> int | None:
    """Of the worker whose folder that is; None if there is none, or none that can be read."""
    try:
        return int(Path(folder, "pid").read_text())
    except (OSError, ValueError):
        return None


def injected_code(folder: Path, code: int) -> int:
    """An injected `exit=3` is a SIGKILL that is told as exit code 3: nobody can make a foreign process exit."""
    file = folder / INJECTED_EXIT
    return int(file.read_text()) if code == -signal.SIGKILL and file.exists() else code


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Request] | msgspec.msgpack.Decoder[Answer]) -> None:
        self._decoder, self._frames = decoder, FrameBuffer()

    def feed(self, data: bytes) -> list[Request | Answer]:
        return [self._decoder.decode(body) for body in self._frames.feed(data)]


def requests() -> Frames:
    """For the side that starts workers."""
    return Frames(_REQUESTS)


def answers() -> Frames:
    """For the side that wants them started."""
    return Frames(_ANSWERS)


class Children:
    """The workers that this process is the parent of.

    Each leads a session of its own; what is left of that session when its leader ends is killed before the leader is
    reaped, while its process id cannot be anybody else's.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._running: dict[int, tuple[int, int, Callable[[], int]]] = {}  # by id: pid, pidfd, wait

    def __contains__(self, id: int) -> bool:
        return id in self._running

    def __len__(self) -> int:
        return len(self._running)

    def add(self, id: int, pid: int, wait: Callable[[], int]) -> Spawned:
        """Its pidfd is in the selector from now on, with the id. `wait` reaps it, and gives its code."""
        pidfd = os.pidfd_open(pid)
        self._running[id] = (pid, pidfd, wait)
        self._selector.register(pidfd, selectors.EVENT_READ, id)
        return Spawned(id, pid)

    def signal(self, id: int, number: int) -> None:
        if id in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running[id][0], number)

    def end(self, id: int) -> Ended:
        """To be called when its pidfd is readable."""
        pid, pidfd, wait = self._running.pop(id)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # the leader is a zombie: the group is still its own
        return Ended(id, wait())

    def forget(self) -> None:
        """In a fork of this process, which is the parent of nobody."""
        for _, pidfd, _ in self._running.values():
            os.close(pidfd)
        self._running.clear()
