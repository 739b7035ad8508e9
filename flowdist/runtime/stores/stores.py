"""The agent's side of the stores: it binds a socket for each generation and starts a store host when one is needed.

That is at the first connection, or at once if expected: an unused store costs only a socket. A host forked from a
prefix with torch starts fast, shares its memory, and is a worker to the spawner; a Unix socket hands it the listening
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from flowdist.control.protocol import agent_io as io
from flowdist.runtime.processes.spawn_protocol import (
    CancelSpawn,
    Ended,
    PrefixSpec,
    Signal,
    Spawn,
    SpawnRefused,
    WorkerAnswer,
    describe_exit,
)
from flowdist.runtime.wire.addresses import Endpoint, family_of, why_unbound
from flowdist.runtime.wire.framing import LineBuffer

BACKLOG = 1024
SOCKET_PATH_MAX = 107  # bytes, on Linux
REBIND_S, REBIND_PAUSE_S = 30.0, 0.005  # how long a store waits until the last one has left their common port


StoreKey = tuple[str, int]  # world and generation


class Stores:
    """The stores of one node: their listening sockets, and the store hosts that serve them.

    `handle` tells the pure agent of a bound store or a host's end, also by `kill`; `send` is to the spawner. The port
    of `endpoint` is that of all stores; 0: each has its own. `ids` are those of the spawner's workers; a forked host
    takes one. `socket_dir` is for the handovers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[io.StoreBound | io.StoreExited], None],
        endpoint: Endpoint,
        send: Callable[[Spawn | CancelSpawn | Signal], None],
        ids: Iterator[int],
        run_dir: str,
        socket_dir: str,
    ) -> None:
        self._loop, self._handle, self._endpoint, self._send, self._ids = loop, handle, endpoint, send, ids
        self._run_dir, self._socket_dir = run_dir, socket_dir
        self._prefix: PrefixSpec | None = None  # None until a prefix is known to have torch
        self._forks: dict[StoreKey, int] = {}  # hosts that were forked from a prefix, by their ids in the spawner
        self._handovers: dict[
            StoreKey, tuple[socket.socket, socket.socket]
        ] = {}  # and the listening socket of the store
        self.awaited: PrefixSpec | None = None  # a prefix: no store host starts before it is at its split
        self._deferred: dict[StoreKey, None] = {}
        self._binding: dict[StoreKey, asyncio.TimerHandle] = {}  # wait until their port is free
        self._listening: dict[StoreKey, socket.socket] = {}  # bound, and not served yet
        self._hosted: dict[StoreKey, None] = {}  # served by forks of the template process
        self._template: TemplateProcess | None = None
        self.has_torch = importlib.util.find_spec("torch") is not None

    def bind(self, key: StoreKey, eager: bool) -> None:
        """Bind the listening socket of a generation's store, and tell the pure agent its port (StoreBound).

        If all stores have one port, wait for the end of the last store, which could get the new one's connections.
        After REBIND_S, or if it cannot be bound, the pure agent gets StoreExited. Without torch the port is left to the
        worker of rank 0. `eager` starts the host now, not at the first connection.
        """
        self._try_to_bind(key, eager, self._loop.time() + REBIND_S)

    def _try_to_bind(self, key: StoreKey, eager: bool, until: float) -> None:
        self._binding.pop(key, None)
        try:
            listening = socket.create_server(self._endpoint, family=family_of(self._endpoint.host), backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and self._loop.time() < until:
                again = self._loop.call_later(REBIND_PAUSE_S, self._try_to_bind, key, eager, until)
                self._binding[key] = again
            else:
                self._handle(io.StoreExited(*key, f"its port cannot be bound: {why_unbound(error)}"))
            return
        port: int = listening.getsockname()[1]
        if not self.has_torch:
            listening.close()
        else:
            self._listening[key] = listening
            if eager:
                self._start_host(key)
            else:
                self._loop.add_reader(listening, self._start_host, key)
        self._handle(io.StoreBound(*key, port))

    def kill(self, key: StoreKey) -> None:
        """End a store: kill its host, whose end is reported, or close its socket. One that has ended is no error."""
        if (waiting := self._binding.pop(key, None)) is not None:
            waiting.cancel()
        listening = self._listening.pop(key, None)
        if listening is not None:
            self._loop.remove_reader(listening)
            listening.close()
        self._deferred.pop(key, None)
        if key in self._forks:
            self._send(CancelSpawn(self._forks[key]))  # it may wait for a prefix that is run anew
            self._send(Signal(self._forks[key], signal.SIGKILL))
        elif key in self._hosted and self._template is not None:
            self._template.kill(key)

    def fork_from(self, prefix: PrefixSpec | None) -> None:
        """Fork store hosts from this prefix from now on: its script has imported torch. None: from no prefix."""
        self._prefix = prefix

    @property
    def is_warm(self) -> bool:
        """Whether a store host may be forked at once, or when a prefix is at its split, from a process with torch."""
        return self.awaited is not None or self._prefix is not None or self._template is not None

    def handle_answer(self, answer: WorkerAnswer) -> bool:
        """Handle a spawner's answer about a store host; return False if it is about a worker.

        A host's end is reported to the pure agent, and a refused start, after which the template process forks hosts.
        """
        key = next((key for key, id in self._forks.items() if id == answer.id), None)
        if key is not None and isinstance(answer, SpawnRefused | Ended):
            if isinstance(answer, SpawnRefused):
                self._prefix = None
            del self._forks[key]
            self._close_handover(key)
            detail = answer.detail if isinstance(answer, SpawnRefused) else describe_exit(answer.code)
            self._handle(io.StoreExited(*key, detail))
        return key is not None

    def end_waiting(self, has_torch: bool) -> None:
        """Start the hosts that waited for the prefix `awaited`; without `has_torch`, at the first connection."""
        self.fork_from(self.awaited if has_torch else None)
        self.awaited = None
        deferred, self._deferred = self._deferred, {}
        for key in deferred:
            if has_torch:
                self._start_host(key)
            else:
                self._loop.add_reader(self._listening[key], self._start_host, key)

    def _start_host(self, key: StoreKey) -> None:
        self._loop.remove_reader(self._listening[key])
        if self.awaited is not None:
            self._deferred[key] = None
            return
        listening = self._listening.pop(key)
        if self._fork_host(key, listening):
            return
        if self._template is None:
            self._template = TemplateProcess(self._loop, self._ended, self._template_died)
        self._hosted[key] = None
        self._template.start(key, listening)
        listening.close()

    def _fork_host(self, key: StoreKey, listening: socket.socket) -> bool:
        """Have the prefix fork a store host; False, with nothing started, without a prefix with torch or a socket.

        This process closes its copy of the socket once the host has received it. A later failure shows in the answer.
        """
        id = next(self._ids)
        path = f"{self._socket_dir}/s{os.getpid()}-{id}.sock"
        if self._prefix is None or len(path.encode()) > SOCKET_PATH_MAX:
            return False
        try:
            handover = _listen(path)
        except OSError:  # a full disk, or no descriptor is left
            return False
        self._handovers[key] = handover, listening
        self._loop.add_reader(handover, self._hand_over, key)
        self._forks[key] = id
        argv = (sys.executable, "-m", "flowdist.runtime.stores.store_host", path)  # if it has to be started by exec
        folder = f"{self._run_dir}/stores/{key[0].replace('/', '-')}-{key[1]}"
        self._send(Spawn(id, argv, dict(os.environ), self._run_dir, folder, self._prefix, store=path))
        return True

    def _hand_over(self, key: StoreKey) -> None:
        handover, listening = self._handovers[key]
        with contextlib.suppress(OSError):  # a store host that has died meanwhile: the spawner reports its end
            link, _ = handover.accept()
            with link:
                socket.send_fds(link, [b"."], [listening.fileno()])
        self._close_handover(key)

    def _close_handover(self, key: StoreKey) -> None:
        if key in self._handovers:
            handover, listening = self._handovers.pop(key)
            listening.close()
            self._loop.remove_reader(handover)
            path = handover.getsockname()
            handover.close()
            Path(path).unlink(missing_ok=True)

    def _ended(self, key: StoreKey, detail: str) -> None:
        """Report to the pure agent, once, that a fork of the template process has ended."""
        if key in self._hosted:
            del self._hosted[key]
            self._handle(io.StoreExited(*key, detail))

    def _template_died(self) -> None:
        self._template = None
        for key in list(self._hosted):
            self._ended(key, "the process that hosts the stores died")


class TemplateProcess:
    """The agent's side of a `store_host.StoreTemplate`: the template process, which it starts, and its socket.

    `ended` gets the key of a store and its host's wait status in words; `died` is called if the template itself ends.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[StoreKey, str], None],
        died: Callable[[], None],
    ) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._channel, self._loop, self._ended, self._died = ours, loop, ended, died
        argv = [sys.executable, "-P", "-m", "flowdist.runtime.stores.store_host", str(theirs.fileno())]
        os.set_inheritable(theirs.fileno(), True)
        self.pid = os.posix_spawn(argv[0], argv, os.environ)
        theirs.close()
        self._lines = LineBuffer()
        loop.add_reader(ours, self._read)

    def start(self, key: StoreKey, listening: socket.socket) -> None:
        """Have the template fork a host with a copy of the socket; `died` follows if the template has ended."""
        host, port = listening.getsockname()[:2]
        line = json.dumps({"key": f"{key[0]} {key[1]}", "port": port, "host": host}) + "\n"
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel, [line.encode()], [listening.fileno()])

    def kill(self, key: StoreKey) -> None:
        """Have the template process kill the host of this store, if it still runs."""
        with contextlib.suppress(OSError):
            self._channel.send((json.dumps({"key": f"{key[0]} {key[1]}"}) + "\n").encode())

    def _read(self) -> None:
        try:
            data = self._channel.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._channel)
            self._channel.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            self._died()
            return
        for line in self._lines.feed(data):
            answer = json.loads(line)
            world, _, generation = answer["key"].rpartition(" ")
            self._ended((world, int(generation)), f"wait status {answer['status']}")


def _listen(path: str) -> socket.socket:
    """Return a Unix socket that listens at the path, for this user alone."""
    handover = socket.socket(socket.AF_UNIX)
    try:
        handover.bind(path)
        Path(path).chmod(0o600)
        handover.listen(1)
    except OSError:
        handover.close()
        raise
    return handover
