"""The spawner, a process of each node: it starts workers by exec or by a fork of its prefix, and reports their ends.

Requests come from the agent, to which all answers go.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from flowdist.runtime.processes.prefix_process import Template
from flowdist.runtime.processes.prefixes import Prefixes
from flowdist.runtime.processes.reaper import die_with_parent
from flowdist.runtime.processes.spawn_protocol import (
    Answer,
    CancelSpawn,
    Channel,
    Ended,
    Prepare,
    Request,
    Signal,
    Spawn,
    Spawned,
    SpawnRefused,
    write_pid,
)
from flowdist.runtime.umask import restore_umask


@contextlib.contextmanager
def bound_to(cpus: tuple[int, ...]) -> Iterator[None]:
    """Bind this thread and what it starts to cores in a `with` block (empty: no binding); OSError if it may not."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, before)


class Children:
    """The workers whose parent is this process, by their ids in the spawn protocol, which are the selector's data.

    Each leads a session and a process group. When a worker ends, the rest of its group is killed before the worker is
    reaped: until then no other process can get its process id.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._running: dict[int, tuple[int, int, Callable[[], int]]] = {}  # by id: pid, pidfd, wait

    def __len__(self) -> int:
        return len(self._running)

    def add(self, id: int, pid: int, wait: Callable[[], int]) -> Spawned:
        """Watch a worker that was just started, and return the answer that says so; `wait` gives its exit code."""
        pidfd = os.pidfd_open(pid)
        self._running[id] = (pid, pidfd, wait)
        self._selector.register(pidfd, selectors.EVENT_READ, id)
        return Spawned(id, pid)

    def signal(self, id: int, number: int) -> None:
        """Send the signal `number` to the process group of a worker. A worker that has ended is no error."""
        if id in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running[id][0], number)

    def end(self, id: int) -> Ended:
        """Kill the rest of an ended worker's group, reap it, and return its Ended; call it once per worker."""
        pid, pidfd, wait = self._running.pop(id)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # the leader is a zombie: the group is still its own
        return Ended(id, wait())


def _become_worker(folder: Path, env: Mapping[str, str], parent: int) -> None:
    """Write the pid file of this forked process, and give it the user's umask. It dies with its parent, the spawner.

    Else workers would run on where the guardian and the supervisor are killed at one time with the spawner.
    """
    die_with_parent(parent)
    write_pid(folder, os.getpid())
    restore_umask(env)


class Spawner:
    """The loop of the spawner process. `channel` is the socket to the agent."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = Channel(channel)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._children = Children(self._selector)
        self._prefixes = Prefixes(self._selector, self._channel.send, self._start)

    def run(self) -> None:
        """Serve the agent's requests until the agent closes its side of the channel or ends."""
        while True:
            for key, _ in self._selector.select(self._prefixes.seconds_until_deadline()):
                if key.fileobj is self._channel:
                    requests = self._channel.receive()
                    if requests is None:
                        return
                    for request in requests:
                        self._handle(request)
                elif isinstance(key.data, Template):
                    self._prefixes.receive(key.data)
                else:
                    self._channel.send(self._children.end(key.data))
            self._prefixes.abandon_slow()

    def _handle(self, request: Request | Answer) -> None:
        match request:
            case Spawn():
                self._prefixes.spawn(request)
            case Signal():
                if not self._prefixes.signal(request):
                    self._children.signal(request.id, request.number)
            case Prepare():
                self._prefixes.prepare(request.prefix)
            case CancelSpawn():
                self._prefixes.cancel(request.id)
            case _:
                raise TypeError(f"no request: {request}")

    def _start(self, request: Spawn) -> None:
        folder, parent = Path(request.folder), os.getpid()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            out_log, err_log = folder / "stdout.log", folder / "stderr.log"
            with out_log.open("ab") as out, err_log.open("ab") as err, bound_to(request.cpus):
                process = subprocess.Popen(
                    request.argv,
                    env=request.env,
                    cwd=request.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    preexec_fn=lambda: _become_worker(folder, request.env, parent),  # noqa: PLW1509  # one thread
                )
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                (folder / "pid").unlink()  # written by the child whose exec failed
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._channel.send(SpawnRefused(request.id, f"{request.argv[0]}: {reason}"))
        else:
            self._channel.send(self._children.add(request.id, process.pid, process.wait))
