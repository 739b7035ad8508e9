"""In-place training: the process and its memory survive a re-formation of the world.

    state = worker.ElasticState(model=model, optimizer=optimizer, step=0)
    worker.elastic(train, state)

`elastic` makes the process group and calls `train(state)`. When the world forms anew and this worker has not failed, it
leaves the old group, even if a collective is waiting in it. Then the environment variables are set for the new
generation, the new group is made, and `train(state)` is called again with the values of the last commit. Torch is
imported only for the group itself.
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

import flowdist.worker.process_groups as process_groups
from flowdist.worker.agent_link import hello, is_managed, link, stop_agreement
from flowdist.worker.elastic_state import ElasticState
from flowdist.worker.save_timer import save_timer
from flowdist.worker.step_counter import step_counter

REFORMATION_TIMEOUT_S = 30.0  # from a broken collective to the message that the world forms anew
POLL_S = 0.01
# Parts of the error messages of a process group whose peer is gone, where the class is a plain RuntimeError.
BROKEN_WORDS = ("gloo", "NCCL", "onnection", "peer", "roken pipe", "ocket", "rocess group", "aborted", "TCPStore")
BROKEN_CLASSES = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError")

Result = TypeVar("Result")
State = TypeVar("State", bound=ElasticState)


class Reformed(BaseException):
    """Raised in a worker whose world forms anew, to end `train`.

    It is derived from BaseException, so that a training loop that catches Exception does not catch it.
    """


def elastic(train: Callable[[State], Result], state: State, *, backend: str | None = None) -> Result:
    """Train in this process, in a process group that follows re-formations of the world.

    An error of a collective that broke because the world forms anew ends `train`, which is then called again. Every
    other error passes through. Without flowdist, as under plain python or torchrun, the group is made and `train` is
    called once.

    Args:
        train: Called with the state while the process group is ready. The group is destroyed when `train` has returned.
        state: The state of training. Call `state.commit()` every few steps: the steps since the last commit are done
            again after a re-formation.
        backend: The backend of the process group, as for `torch.distributed.init_process_group`.

    Returns:
        What `train` has returned.

    Raises:
        RuntimeError: if there is a process group already; `elastic` makes it, anew for each generation.
        OSError: if flowdist has started this worker, and its agent cannot be reached.
    """
    import torch.distributed as dist  # heavy: workers without elastic() import this module, too

    if dist.is_initialized():
        raise RuntimeError("elastic() makes the process group itself: call it without one (init_process_group)")
    generations = _Generations(backend)
    state._on_commit = generations.check
    try:
        while True:
            try:
                generations.form()
                with save_timer.block("restoring"):
                    state.sync()
                result = train(state)
            except Reformed:
                pass
            except RuntimeError as error:
                if not generations.explains(error):
                    raise
                traceback.clear_frames(error.__traceback__)  # the frames keep the old group alive
            else:
                if not generations.stops_as_agreed():
                    generations.close()
                    process_groups.end()
                    return result
            generations.leave()
            state.restore()
            generations.wait()
    except BaseException:
        generations.close()
        raise
    finally:
        state._on_commit = None


class _Generations:
    """This worker's way through the generations of its world: it forms a process group, leaves it, and waits.

    If flowdist has started this worker, it is connected to its agent, whose side of the connection is
    `flowdist.runtime.agent.worker_socket`. Otherwise there is one generation.
    """

    def __init__(self, backend: str | None) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._must_leave = threading.Event()  # the agent has sent `leave`
        self._has_left = threading.Event()
        self._breaking = threading.Lock()  # the other thread shuts sockets down
        self._has_next = threading.Event()  # the agent has sent the environment of the next generation
        self._env: dict[str, str] = {}
        self._other_sockets: set[str] = set()  # sockets that were open before the group was made
        self._held: dict[str, socket.socket] = {}  # connections of the group that is left, by name
        self._socket: socket.socket | None = None
        if is_managed():
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(os.environ["FLOWDIST_SOCKET"])
            self._socket = connection
            self._send({"hello": hello()}, {"elastic": True})
            threading.Thread(target=self._listen, args=(connection,), name="flowdist-elastic", daemon=True).start()

    def form(self) -> None:
        """Make the process group of the generation that the environment variables describe, as far as `check` lets."""
        import torch.distributed as dist  # heavy: workers without elastic() import this module, too

        self._other_sockets = set(_sockets())
        self._has_left.clear()
        self.check()  # a `leave` before the group exists: the other thread finds nothing to break
        if self._socket is not None:
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # else torch aborts this process when a peer is gone
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            dist.init_process_group(self._backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(self._backend)
        process_groups.end_at_exit()  # `train` may call sys.exit()

    def check(self) -> None:
        """Raise Reformed if the agent has sent that the world forms anew. Called also at the end of each commit."""
        if self._must_leave.is_set():
            raise Reformed

    def explains(self, error: RuntimeError) -> bool:
        """Return whether a re-formation of the world is the reason of an error that `train` has raised.

        The agent's message that the world forms anew may arrive after the error. If the error looks like one of a
        collective whose peer is gone, this waits for the message, up to REFORMATION_TIMEOUT_S.
        """
        if self._socket is None or type(error).__name__ == "OutOfMemoryError":
            return False
        return self._must_leave.is_set() or (_is_broken(error) and self._must_leave.wait(REFORMATION_TIMEOUT_S))

    def stops_as_agreed(self) -> bool:
        """Return whether `train` has returned because should_stop() was true; if so, wait for the agent's `leave`.

        Such a worker has not done its work: it is resumed in a later generation, or ended by the agent.
        """
        if self._socket is None or not stop_agreement.is_reached:
            return False
        stop_agreement.report_passed()
        self._must_leave.wait()
        return True

    def leave(self) -> None:
        """Leave the process group, and report to the agent that this worker is suspended."""
        import torch.distributed as dist  # heavy: workers without elastic() import this module, too

        if dist.is_initialized():
            self._end_reading()
            with contextlib.suppress(RuntimeError, ValueError):  # the group is broken, and its error is known
                if process_groups.is_nccl():
                    dist.distributed_c10d._abort_process_group()
                else:
                    dist.destroy_process_group()
        dist.distributed_c10d._world.group_count = 0  # a group whose making failed has used up a name
        self._end_breaking()
        self._send({"suspended": True})

    def wait(self) -> None:
        """Wait until the agent names the next generation, and make this process a worker of the new attempt.

        It takes over the new environment variables, writes to the new logs, and identifies itself to the agent anew.
        """
        self._has_next.wait()
        self._let_go()
        before = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        os.environ.update(self._env)
        _move_output(Path(before).parent, Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parent)
        self._has_next.clear()
        link.close()
        stop_agreement.reset()
        step_counter.begin_attempt()
        save_timer.begin_attempt()
        self._send({"hello": hello()})

    def close(self) -> None:
        """Report to the agent that this worker can no longer be suspended, and close the connection.

        No socket of this process is shut down afterwards.
        """
        self._end_breaking()
        self._let_go()
        self._send({"elastic": False})
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, *lines: dict[str, Any]) -> None:
        """Send messages to the agent, if flowdist has started this worker.

        If the agent is gone, this worker will be killed in a moment: no error is raised.
        """
        if self._socket is not None:
            data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
            with self._lock, contextlib.suppress(OSError):
                self._socket.sendall(data)

    def _listen(self, connection: socket.socket) -> None:
        """Handle the agent's messages, in a thread of its own: the main thread may be blocked in a collective."""
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "leave" in message:
                    self._must_leave.set()
                    self._break_group()
                elif "resume" in message:
                    self._env = message["resume"]
                    self._must_leave.clear()
                    self._has_next.set()

    def _break_group(self) -> None:
        """Make every collective that waits for a peer fail, until this worker has left the group."""
        while not self._has_left.is_set():
            if process_groups.is_nccl():
                for group in list(sys.modules["torch.distributed"].distributed_c10d._world.pg_names):
                    group.abort()
            self._end_reading()
            self._has_left.wait(POLL_S)

    def _end_reading(self) -> None:
        """Have the TCP connections of the group yield what has arrived, and then their end.

        The other direction stays open, and so do the connections, when the group has closed them, until the next
        generation: gloo forgets what waits for a write that fails (`Pair::write` and `Pair::signalException` in its
        `transport/tcp/pair.cc`), and a peer that still sends would wait until the timeout of its group.
        """
        with self._breaking:
            for name, fd in () if self._has_left.is_set() else _sockets().items():
                if name not in self._other_sockets and name not in self._held:
                    with contextlib.suppress(OSError):
                        self._held[name] = _connection(fd)
                        self._held[name].shutdown(socket.SHUT_RD)

    def _let_go(self) -> None:
        """Close the connections of the group that all have left."""
        for connection in self._held.values():
            connection.close()
        self._held.clear()

    def _end_breaking(self) -> None:
        """Have the other thread shut down no more sockets: those that are made from now on are not of the group."""
        self._has_left.set()
        with self._breaking:
            pass


def _is_broken(error: BaseException) -> bool:
    """Return whether the error is one that a collective raises when a peer is gone."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names.intersection(BROKEN_CLASSES)) or any(word in str(error) for word in BROKEN_WORDS)


def _sockets() -> dict[str, int]:
    """Return the names of this process's open sockets, such as `socket:[1234]`, with a file descriptor of each."""
    found: dict[str, int] = {}
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names alone are wanted
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115
            if target.startswith("socket:"):
                found[target] = int(entry)
    return found


def _connection(fd: int) -> socket.socket:
    """Return another descriptor of the TCP connection; raise OSError if it is none."""
    connection = socket.socket(fileno=os.dup(fd))
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            raise OSError
        connection.getpeername()  # raises for a listening socket, whose shutdown makes gloo abort
    except OSError:
        connection.close()
        raise
    return connection


def _move_output(before: Path, after: Path) -> None:
    """Send stdout and stderr to the logs in the folder `after`, if they go to those in the folder `before`."""
    for fd, stream, name in ((1, sys.stdout, "stdout.log"), (2, sys.stderr, "stderr.log")):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), (before / name).stat()):
                stream.flush()
                log = os.open(after / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
                os.dup2(log, fd)
                os.close(log)
