"""The spawner's side of the fork servers: one for each set of imports and what they may have read.

A fork server is started by the first worker that asks for it. Workers wait for its imports, which they would have to do
themselves otherwise; when it turns out that it must not be forked from, they are started by exec instead.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from flowdist.control.fork_policy import PATIENCE_S, ForkServerUpkeep
from flowdist.runtime.processes.spawning import (
    Answer,
    Ended,
    ForkServer,
    Prepared,
    Ready,
    Signal,
    Spawn,
    Spawned,
    SpawnRefused,
    StartedCold,
    answers,
    encode,
)

BOOT = Path(__file__).with_name("fork_server_boot.py")


class Server:
    """One fork server: its process, what waits for its imports, and the workers that it has forked."""

    def __init__(self, spec: ForkServer, selector: selectors.BaseSelector) -> None:
        self.spec = spec
        self.channel, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [*spec.interpreter, str(BOOT), str(theirs.fileno()), str(os.getpid())],
                env=dict(spec.env),
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self._selector = selector
        self._selector.register(self.channel, selectors.EVENT_READ, self)
        self._frames = answers()
        self.is_ready = False
        self.give_up_s = time.monotonic() + PATIENCE_S
        self.waiting: dict[int, Spawn] = {}
        self.running: dict[int, int] = {}  # pids by id; 0 until it is forked
        head = {"first_path": spec.first_path, "preload": spec.preload}
        self.channel.sendall(msgspec.json.encode(head) + b"\n")

    def read(self) -> list[Answer] | None:
        """What it says; None when it has ended."""
        try:
            data = self.channel.recv(1 << 16)
        except OSError:
            data = b""
        return self._frames.feed(data) if data else None  # type: ignore[return-value]

    def send(self, request: Spawn | Signal) -> None:
        with contextlib.suppress(OSError):  # it has died: that is read from the same socket
            self.channel.sendall(encode(request))

    def end(self) -> int:
        """Kill it, and how it had ended if it had."""
        self._selector.unregister(self.channel)
        self.channel.close()
        self._process.kill()
        return self._process.wait()


class ForkServers:
    """`answer` goes to the agent; `start` starts a worker by exec, and answers for it."""

    def __init__(
        self, selector: selectors.BaseSelector, answer: Callable[[Answer], None], start: Callable[[Spawn], None]
    ) -> None:
        self._selector, self._answer, self._start = selector, answer, start
        self._servers: dict[ForkServer, Server] = {}
        self._of: dict[int, Server] = {}  # by id of a worker that waits for it or was forked by it
        self._upkeep: dict[ForkServer, ForkServerUpkeep] = {}
        self._told: dict[ForkServer, None] = {}  # that their workers are started by exec
        self._awaited: ForkServer | None = None  # whoever asked for it is told when it is there

    def prepare(self, spec: ForkServer) -> None:
        """Start a fork server before it is needed, and tell when it is ready or known to be of no use."""
        self._awaited = spec
        self._begin(spec)
        if spec not in self._servers:
            self._tell_prepared(spec)

    def _tell_prepared(self, spec: ForkServer) -> None:
        if self._awaited == spec:
            self._awaited = None
            self._answer(Prepared(spec in self._servers))

    def _begin(self, spec: ForkServer) -> None:
        """Start a fork server, if there is none that does."""
        if spec not in self._servers and not self._upkeep_of(spec).useless:
            with contextlib.suppress(OSError, ValueError):  # exec will say what is wrong
                self._servers[spec] = Server(spec, self._selector)

    def _upkeep_of(self, spec: ForkServer) -> ForkServerUpkeep:
        return self._upkeep.setdefault(spec, ForkServerUpkeep())

    def spawn(self, request: Spawn) -> bool:
        """Whether the worker is, or will be, taken care of here."""
        spec = request.server
        if spec is None:
            return False
        self._begin(spec)
        server = self._servers.get(spec)
        if server is None:
            reason = self._upkeep_of(spec).useless
            if reason and spec not in self._told:
                self._told[spec] = None
                self._answer(StartedCold(request.id, reason))
            return False
        self._of[request.id] = server
        if server.is_ready:
            server.running[request.id] = 0
            server.send(msgspec.structs.replace(request, server=None))
        else:
            server.waiting[request.id] = request
        return True

    def pass_on(self, request: Signal) -> bool:
        """Whether the worker is one of ours."""
        server = self._of.get(request.id)
        if server is not None:
            server.send(request)
        return server is not None

    def hurry(self, id: int) -> None:
        """A worker that waits for imports is to end: it never begins."""
        server = self._of.get(id)
        if server is not None and id in server.waiting:
            del server.waiting[id], self._of[id]
            self._answer(Spawned(id, 0))
            self._answer(Ended(id, -signal.SIGTERM))

    def hear(self, server: Server) -> None:
        said = server.read()
        if said is None:
            self._died(server)
            return
        for answer in said:
            match answer:
                case Ready():
                    self._is_ready(server, answer.unsafe)
                case Spawned():
                    server.running[answer.id] = answer.pid
                    self._answer(answer)
                case Ended() | SpawnRefused():
                    del server.running[answer.id], self._of[answer.id]
                    self._answer(answer)
                case StartedCold() | Prepared():
                    raise TypeError(f"not from a fork server: {answer}")

    def patience_s(self) -> float | None:
        """How long to wait before `give_up_the_slow`."""
        times = [server.give_up_s for server in self._servers.values() if not server.is_ready]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def give_up_the_slow(self) -> None:
        for server in list(self._servers.values()):
            if not server.is_ready and server.give_up_s <= time.monotonic():
                self._upkeep_of(server.spec).is_slow(PATIENCE_S)
                self._give_up(server)

    def _is_ready(self, server: Server, unsafe: str) -> None:
        if unsafe:
            self._upkeep_of(server.spec).is_unsafe(unsafe)
            self._give_up(server)
            return
        server.is_ready = True
        waiting, server.waiting = server.waiting, {}
        for request in waiting.values():
            self.spawn(request)
        self._tell_prepared(server.spec)

    def _give_up(self, server: Server) -> None:
        """Nothing was forked from it: what waits for it is started by exec, now and from now on."""
        if server.spec in self._servers:
            self._forget(server)
        for request in server.waiting.values():
            if not self.spawn(request):
                self._start(request)
        self._tell_prepared(server.spec)

    def _died(self, server: Server) -> None:
        """Its workers are nobody's children now, and end with it: nobody could tell how they end."""
        code = self._forget(server)
        how = f"signal {signal.Signals(-code).name.removeprefix('SIG')}" if code < 0 else f"exit {code}"
        self._upkeep_of(server.spec).died(how, is_ready=server.is_ready)
        if not server.is_ready:
            self._give_up(server)
            return
        for id, pid in server.running.items():
            if pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            else:
                self._answer(Spawned(id, 0))
            self._answer(Ended(id, -signal.SIGKILL))

    def _forget(self, server: Server) -> int:
        del self._servers[server.spec]
        for id in [*server.waiting, *server.running]:
            del self._of[id]
        return server.end()
