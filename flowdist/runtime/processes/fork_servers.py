"""The spawner's side of the fork servers: one server for each ForkServerSpec.

The first worker that asks for a fork server starts it, unless Prepare did. Workers wait for the server's imports, which
each would otherwise have to do itself. If the server turns out to be unsafe to fork from, its workers are started by
exec instead.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec

from flowdist.control.fork_policy import PATIENCE_S, ForkServerUpkeep
from flowdist.runtime.processes.exit_status import signal_name
from flowdist.runtime.processes.spawn_protocol import (
    Answer,
    Channel,
    Ended,
    ForkServerSpec,
    Imports,
    Learn,
    Learned,
    Prepared,
    Ready,
    Retire,
    Signal,
    Spawn,
    Spawned,
    SpawnRefused,
    StartedCold,
)

LEARN_PATIENCE_S = 300.0  # for imports that nothing waits for, beside workers that use every core
BOOT = Path(__file__).with_name("fork_server_boot.py")


class ForkServerProcess:
    """One fork server: its process, the requests that wait for its imports, and the workers that it has forked.

    Args:
        spec: The imports of the server, and what they may read.
        selector: Reports answers of the server on `channel`, with this object as data.
        patience_s: Seconds for the imports; None: PATIENCE_S.
        standbys: How many workers the server will probably have to start at once.
    """

    def __init__(
        self,
        spec: ForkServerSpec,
        selector: selectors.BaseSelector,
        patience_s: float | None = None,
        standbys: int = 0,
    ) -> None:
        """Start the process and send it its imports.

        Raises:
            OSError, ValueError: if the interpreter of the spec cannot be started.
        """
        self.spec = spec
        self.patience_s = PATIENCE_S if patience_s is None else patience_s
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [*spec.interpreter, str(BOOT), str(theirs.fileno()), str(os.getpid())],
                env=dict(spec.env),
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._selector, self.channel = selector, Channel(ours)
        self._selector.register(self.channel, selectors.EVENT_READ, self)
        self.is_ready = False
        self.deadline_s = time.monotonic() + self.patience_s
        self.waiting: dict[int, Spawn] = {}
        self.running: dict[int, int] = {}  # pids by id; 0 until the worker is forked
        imports = Imports(spec.first_path, spec.preload, spec.learned, spec.per_worker, spec.changed, standbys)
        self.channel.send(imports)

    def end(self) -> int:
        """Kill the process unless it has ended already, reap it, and return its exit code, negative for a signal."""
        self._selector.unregister(self.channel)
        self.channel.close()
        self._process.kill()
        return self._process.wait()


class ForkServers:
    """All fork servers of a node, and the workers that wait for them or were forked by them.

    Args:
        selector: Reports the channels of the servers, with the ForkServerProcess as data.
        answer: Sends an answer to the agent.
        start: Starts a worker by exec, and sends the agent the answer.
    """

    def __init__(
        self, selector: selectors.BaseSelector, answer: Callable[[Answer], None], start: Callable[[Spawn], None]
    ) -> None:
        self._selector, self._answer, self._start = selector, answer, start
        self._servers: dict[ForkServerSpec, ForkServerProcess] = {}
        self._upkeep: defaultdict[ForkServerSpec, ForkServerUpkeep] = defaultdict(ForkServerUpkeep)
        self._reported_cold: dict[ForkServerSpec, None] = {}  # for these StartedCold was answered
        self._preparing: ForkServerSpec | None = None  # a Prepare that is not answered yet
        self._retired: set[ForkServerSpec] = set()  # end with their last worker

    def prepare(self, spec: ForkServerSpec) -> None:
        """Start a fork server before the first worker asks for it; the agent sends at most one such request.

        The agent gets Prepared when the server is ready or known to be unusable.
        """
        self._preparing = spec
        self._ensure_started(spec)
        if spec not in self._servers:
            self._answer_prepared(spec)

    def learn(self, request: Learn) -> None:
        """Start a fork server with learned modules, beside the one that workers use until then.

        The agent gets Learned when the server is ready or known to be unusable.
        """
        before = self._servers.get(request.server.without_learned())
        standbys = len(before.running) if before is not None else 0
        self._ensure_started(request.server, LEARN_PATIENCE_S, standbys)
        server = self._servers.get(request.server)
        if server is None:
            self._answer(Learned(request.server, self._upkeep[request.server].useless or "it cannot be started"))
        elif server.is_ready:
            self._answer(Learned(request.server, "", request.server.learned))

    def retire(self, request: Retire) -> None:
        """End a fork server at once if it has no workers, else when its last worker has ended."""
        self._retired.add(request.server)
        self._end_retired(request.server)

    def _end_retired(self, spec: ForkServerSpec) -> None:
        server = self._servers.get(spec)
        if spec in self._retired and (server is None or not (server.running or server.waiting)):
            self._retired.discard(spec)
            if server is not None:
                self._remove(server)

    def _answer_prepared(self, spec: ForkServerSpec) -> None:
        if self._preparing == spec and spec not in self._servers and spec.learned:
            self.prepare(spec.without_learned())
        elif self._preparing == spec:
            self._preparing = None
            self._answer(Prepared(spec in self._servers))

    def _ensure_started(self, spec: ForkServerSpec, patience_s: float | None = None, standbys: int = 0) -> None:
        """Start the fork server, unless it runs already or is known to be unusable. A failed start is no error here."""
        if spec not in self._servers and not self._upkeep[spec].useless:
            with contextlib.suppress(OSError, ValueError):  # exec will report what is wrong
                self._servers[spec] = ForkServerProcess(spec, self._selector, patience_s, standbys)

    def _server_of(self, id: int) -> ForkServerProcess | None:
        """Return the fork server for which the worker waits, or which was asked to fork it; None if there is none."""
        servers = self._servers.values()
        return next((server for server in servers if id in server.waiting or id in server.running), None)

    def spawn(self, request: Spawn) -> bool:
        """Have a worker forked by the fork server that its request names, now or once that server is ready.

        The server is started if needed. In place of one with learned modules that was given up, the server without them
        is used. Once for each other server that was given up, the agent gets StartedCold.

        Returns:
            False if the caller has to start the worker by exec: the request names no server, or the server cannot be
            started or was given up.
        """
        spec = request.server
        if spec is None:
            return False
        self._retired.discard(spec)
        self._ensure_started(spec)
        server = self._servers.get(spec)
        if server is None and spec.learned:
            return self.spawn(msgspec.structs.replace(request, server=spec.without_learned()))
        if server is None:
            reason = self._upkeep[spec].useless
            if reason and spec not in self._reported_cold:
                self._reported_cold[spec] = None
                self._answer(StartedCold(request.id, reason))
            return False
        if server.is_ready:
            server.running[request.id] = 0
            server.channel.send(msgspec.structs.replace(request, server=None))
        else:
            server.waiting[request.id] = request
        return True

    def signal(self, request: Signal) -> bool:
        """Pass a signal for a worker on to its fork server. Return False if no fork server has the worker.

        A worker that still waits for the imports misses the signal: see `cancel`.
        """
        server = self._server_of(request.id)
        if server is not None:
            server.channel.send(request)
        return server is not None

    def cancel(self, id: int) -> None:
        """Drop a worker that still waits for imports, and send the agent answers as if SIGTERM had ended the worker.

        A worker that does not wait, or is unknown, is left as it is.
        """
        server = self._server_of(id)
        if server is not None and id in server.waiting:
            del server.waiting[id]
            self._answer(Spawned(id, 0))
            self._answer(Ended(id, -signal.SIGTERM))

    def receive(self, server: ForkServerProcess) -> None:
        """Handle the answers of a fork server, or its end, and pass on to the agent what concerns workers.

        Call this method when the selector reports the server's channel.
        """
        received = server.channel.receive()
        if received is None:
            self._handle_death(server)
            return
        for answer in received:
            match answer:
                case Ready():
                    self._handle_ready(server, answer)
                case Spawned():
                    server.running[answer.id] = answer.pid
                    self._answer(answer)
                case Ended() | SpawnRefused():
                    del server.running[answer.id]
                    self._answer(answer)
                    self._end_retired(server.spec)
                case _:
                    raise TypeError(f"not from a fork server: {answer}")

    def seconds_until_deadline(self) -> float | None:
        """Return the seconds until `abandon_slow` has to be called; None if every server is ready."""
        times = [server.deadline_s for server in self._servers.values() if not server.is_ready]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def abandon_slow(self) -> None:
        """Kill the servers whose imports take too long, and start the workers that wait for them without them."""
        for server in list(self._servers.values()):
            if not server.is_ready and server.deadline_s <= time.monotonic():
                self._upkeep[server.spec].is_slow(server.patience_s)
                self._abandon(server)

    def _handle_ready(self, server: ForkServerProcess, ready: Ready) -> None:
        if ready.unsafe:
            self._upkeep[server.spec].is_unsafe(ready.unsafe)
            self._abandon(server, ready.refused)
            return
        server.is_ready = True
        if server.spec.learned:
            self._answer(Learned(server.spec, "", ready.imported))
        waiting, server.waiting = server.waiting, {}
        for request in waiting.values():
            self.spawn(request)
        self._answer_prepared(server.spec)
        self._end_retired(server.spec)

    def _abandon(self, server: ForkServerProcess, refused: tuple[tuple[str, str], ...] = ()) -> None:
        """Kill a server that has forked nothing, and start the workers that wait for it anew, normally by exec."""
        if server.spec in self._servers:
            self._remove(server)
        if server.spec.learned:
            self._answer(Learned(server.spec, self._upkeep[server.spec].useless, (), refused))
        for request in server.waiting.values():
            if not self.spawn(request):
                self._start(request)
        self._answer_prepared(server.spec)

    def _handle_death(self, server: ForkServerProcess) -> None:
        """Kill the workers of a server that has died, and report them to the agent as ended by SIGKILL.

        Without their parent nothing could report their exit codes. If the server died during its imports, it has no
        workers, and those that wait for it are started by exec.
        """
        code = self._remove(server)
        how = f"signal {signal_name(code)}" if code < 0 else f"exit {code}"
        self._upkeep[server.spec].died(how, is_ready=server.is_ready)
        if not server.is_ready:
            self._abandon(server)
            return
        for id, pid in server.running.items():
            if pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            else:
                self._answer(Spawned(id, 0))
            self._answer(Ended(id, -signal.SIGKILL))

    def _remove(self, server: ForkServerProcess) -> int:
        """Forget a server and kill its process; return the exit code of the process."""
        del self._servers[server.spec]
        return server.end()
