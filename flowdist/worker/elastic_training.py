"""Training that goes on in place: a re-formation leaves this process, and what it holds in memory, as they are.

    state = worker.ElasticState(model=model, optimizer=optimizer, step=0)
    worker.elastic(train, state)

`elastic` makes the process group and calls `train(state)`. When the world forms anew without this worker having failed,
the old group is left, whatever waits in it; the environment says who this worker is now; the new group is made, and
`train(state)` is called again, with the values of the last commit. Standard library only, but for the group itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flowdist.worker import process_groups
from flowdist.worker.agent_link import hello, is_managed, link, stop
from flowdist.worker.elastic_state import ElasticState

PATIENCE_S = 30.0  # after a collective broke: so long a re-formation may take to be told of
POLL_S = 0.01
# What a process group says when a peer is gone, other than by a class of its own.
BROKEN_WORDS = ("gloo", "NCCL", "onnection", "peer", "roken pipe", "ocket", "rocess group", "aborted", "TCPStore")
BROKEN_CLASSES = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError")

Result = TypeVar("Result")
State = TypeVar("State", bound=ElasticState)


class Reformed(BaseException):
    """The world forms anew. No Exception: a training loop that catches those is not meant to see it."""


def elastic(train: Callable[[State], Result], state: State, *, backend: str | None = None) -> Result:
    """Train in a process group that follows re-formations, in this process. Returns what `train` returns.

    Errors of collectives that broke because the world forms anew are not errors of this worker: they end `train`, which
    is called again. All others pass through. Where nothing is there to form anew, as under plain python or torchrun,
    the group is made and `train` is called once.

    Args:
        train: Called with the state, in a process group that is ready; it is left when `train` has returned.
        state: Where training stands. Call `state.commit()` every few steps: what comes after the last is done again.
        backend: Of the process group, as `torch.distributed.init_process_group` has it.

    Raises:
        RuntimeError: if there is a process group already: it is `elastic` that makes it, each time anew.
        OSError: if flowdist started this worker, and its agent cannot be reached.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        raise RuntimeError("elastic() makes the process group itself: call it without one (init_process_group)")
    session = _Session(backend)
    state._on_commit = session.check
    try:
        while True:
            try:
                session.form()
                state.sync()
                result = train(state)
            except Reformed:
                pass
            except RuntimeError as error:
                if not session.is_to_leave(error):
                    raise
                traceback.clear_frames(error.__traceback__)  # they hold on to the old group
            else:
                if not session.stops_here():
                    session.close()
                    process_groups.end()
                    return result
            session.leave()
            state.restore()
            session.wait()
    except BaseException:
        session.close()
        raise
    finally:
        state._on_commit = None


class _Session:
    """This worker's side of the conversation with its agent; runtime/worker_socket.py is the other."""

    def __init__(self, backend: str | None) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._is_told = threading.Event()  # to leave the generation
        self._has_left = threading.Event()
        self._is_next = threading.Event()  # the environment of the next one is there
        self._env: dict[str, str] = {}
        self._foreign: set[str] = set()  # sockets that were there before the group
        self._socket: socket.socket | None = None
        if is_managed():
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(os.environ["FLOWDIST_SOCKET"])
            self._socket = connection
            self._send({"hello": hello()}, {"elastic": True})
            threading.Thread(target=self._listen, args=(connection,), name="flowdist-elastic", daemon=True).start()

    def form(self) -> None:
        """Make the process group of the generation that the environment speaks of."""
        import torch.distributed as dist

        self._foreign = set(_sockets())
        self._has_left.clear()
        self.check()  # told again before the group was begun: the other thread has nothing to break
        if self._socket is not None:
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # else a peer that is gone ends the process
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            dist.init_process_group(self._backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(self._backend)
        process_groups.end_at_exit()  # `train` may call sys.exit()

    def check(self) -> None:
        """After a commit: nothing is lost if training begins again from here."""
        if self._is_told.is_set():
            raise Reformed

    def is_to_leave(self, error: RuntimeError) -> bool:
        """Whether a re-formation explains the error; news of it may take longer than the break itself."""
        if self._socket is None or type(error).__name__ == "OutOfMemoryError":
            return False
        return self._is_told.is_set() or (_is_broken(error) and self._is_told.wait(PATIENCE_S))

    def stops_here(self) -> bool:
        """`train` has returned because should_stop() said so: this worker goes on later, or is ended."""
        if self._socket is None or not stop.has_come:
            return False
        stop.leave()
        self._is_told.wait()
        return True

    def leave(self) -> None:
        """Leave the process group, and say so when it is done."""
        import torch.distributed as dist

        if dist.is_initialized():
            with contextlib.suppress(RuntimeError, ValueError):  # it is broken: what can be told of it was told
                if process_groups.is_nccl():
                    dist.distributed_c10d._abort_process_group()
                else:
                    dist.destroy_process_group()
        dist.distributed_c10d._world.group_count = 0  # a group that did not come about has used up a name
        self._has_left.set()
        self._send({"suspended": True})

    def wait(self) -> None:
        """Until the next generation is known; then this process is that attempt of its replica."""
        self._is_next.wait()
        before = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        os.environ.update(self._env)
        _move_output(Path(before).parent, Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parent)
        self._is_next.clear()
        link.close()
        stop.renew()
        self._send({"hello": hello()})

    def close(self) -> None:
        """From here on this worker is like any other."""
        self._send({"elastic": False})
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, *lines: dict[str, Any]) -> None:
        """If the agent is gone, so will be this worker in a moment: nothing to raise here."""
        if self._socket is not None:
            data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
            with self._lock, contextlib.suppress(OSError):
                self._socket.sendall(data)

    def _listen(self, connection: socket.socket) -> None:
        """In a thread of its own: the main one may be stuck in a collective."""
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "leave" in message:
                    self._is_told.set()
                    self._break_group()
                elif "resume" in message:
                    self._env = message["resume"]
                    self._is_told.clear()
                    self._is_next.set()

    def _break_group(self) -> None:
        """Whatever waits for a peer in the group fails now, whether that peer is gone or does not answer."""
        while not self._has_left.is_set():
            if process_groups.is_nccl():
                for group in list(sys.modules["torch.distributed"].distributed_c10d._world.pg_names):
                    group.abort()
            _shut_down(self._foreign)
            self._has_left.wait(POLL_S)


def _is_broken(error: BaseException) -> bool:
    """Whether it is what a collective raises when a peer is gone."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names.intersection(BROKEN_CLASSES)) or any(word in str(error) for word in BROKEN_WORDS)


def _sockets() -> dict[str, int]:
    """The sockets that this process has open, with a descriptor of each."""
    found: dict[str, int] = {}
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names alone are wanted
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115
            if target.startswith("socket:"):
                found[target] = int(entry)
    return found


def _shut_down(foreign: set[str]) -> None:
    """The TCP connections that were made since: those of the process group."""
    for name, fd in _sockets().items():
        if name not in foreign:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as ours:
                if ours.family in (socket.AF_INET, socket.AF_INET6) and ours.type == socket.SOCK_STREAM:
                    ours.getpeername()  # one that listens is none: gloo ends the process if that fails
                    ours.shutdown(socket.SHUT_RDWR)


def _move_output(before: Path, after: Path) -> None:
    """From here on output goes to the logs of this attempt, if it went to those of the one before."""
    for fd, stream, name in ((1, sys.stdout, "stdout.log"), (2, sys.stderr, "stderr.log")):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), (before / name).stat()):
                stream.flush()
                log = os.open(after / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                os.dup2(log, fd)
                os.close(log)
