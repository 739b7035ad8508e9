"""The pid file of a worker: written before the worker runs and before its start is reported, and atomically."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from flowdist import Topology
from flowdist.control.protocol.effects import Order, StartReplica, StopReplica
from flowdist.control.protocol.events import ReplicaElastic, ReplicaStarted, ReplicaStopped
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Ordered, Report, Reported
from flowdist.graph import SECOND, NodeSpec, encode_graph
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.injection.remote_faults import apply, workers_hit
from flowdist.runtime.processes.spawn_protocol import (
    Channel,
    Ended,
    Spawn,
    Spawned,
    injected_code,
    read_pid,
    write_pid,
)
from flowdist.runtime.processes.spawner import Children, Spawner
from flowdist.runtime.run_folder.folder import agent_socket
from flowdist.runtime.wire.frames import RemoteFault, encode, read_to_controller
from flowdist.testing import graph_of
from tests.runtime.spawning import Spawning

pytestmark = pytest.mark.real

Event = TypeVar("Event", bound=Reported)
R = ReplicaId("trainer", 0)
SAYS = "import os, sys; print(os.getpid(), open(sys.argv[1]).read())"


def finds_its_pid(spawning: Spawning, id: int) -> bool:
    outcome = spawning.outcome(id)
    return outcome.out == f"{spawning.pid(id)} {spawning.pid(id)}\n\n" and outcome.err == ""


def test_a_forked_worker_finds_its_pid(tmp_path: Path) -> None:
    """The gate holds the worker until its pid file is written, however fast the worker is."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "says.py").write_text(SAYS)
    with Spawning(folder) as spawning:
        for _ in range(20):
            id = spawning.start("says.py", str(spawning.logs(spawning.last + 1) / "pid"), warm=True)
            assert finds_its_pid(spawning, id)


def test_one_that_is_executed_finds_its_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Children.add

    def late(self: Children, id: int, pid: int, wait: Callable[[], int]) -> Spawned:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return add(self, id, pid, wait)

    monkeypatch.setattr(Children, "add", late)
    (tmp_path / "says.py").write_text(SAYS)
    ours, theirs = socket.socketpair()
    folder = tmp_path / "logs"
    argv = (sys.executable, "says.py", str(folder / "pid"))
    with ours, theirs:
        spawner = Spawner(theirs)
        spawner._handle(Spawn(1, argv, dict(os.environ), str(tmp_path), str(folder)))
        (said,) = Channel(ours).receive() or []
    assert isinstance(said, Spawned) and spawner._children.end(1) == Ended(1, 0)
    assert (folder / "stdout.log").read_text() == f"{said.pid} {said.pid}\n\n", (folder / "stderr.log").read_text()


def test_what_cannot_be_executed_leaves_no_pid(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Spawner(theirs)._handle(Spawn(1, ("/no/such/program",), {}, str(tmp_path), str(tmp_path / "logs")))
        assert b"No such file" in ours.recv(1 << 16)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["stderr.log", "stdout.log"]


def test_a_reader_during_a_write_reads_all_of_the_file(tmp_path: Path) -> None:
    write_pid(tmp_path, 4242)
    with (tmp_path / "pid").open() as before:
        write_pid(tmp_path, 17)
        assert before.read() == "4242\n"
    assert read_pid(tmp_path) == 17 and [path.name for path in tmp_path.iterdir()] == ["pid"]


def test_a_disk_that_is_full_costs_the_file_alone() -> None:
    write_pid("/proc", 4242)
    assert read_pid("/proc") is None


@pytest.mark.parametrize("content", [None, "", "no number"])
def test_a_fault_hits_no_process_if_no_pid_can_be_read(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "trainer/0/attempt_1/0"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "pid").write_text(content)
    fault = RemoteFault("node0", "kill", replica=R, attempt=1)
    assert workers_hit(tmp_path, fault) == [] and apply(folder, fault) is None
    write_pid(folder, 4242)
    assert workers_hit(tmp_path, fault) == [folder]


def test_an_injected_exit_is_reported_with_its_code(tmp_path: Path) -> None:
    assert injected_code(tmp_path, -signal.SIGKILL) == -signal.SIGKILL
    (tmp_path / "injected_exit").write_text("5")
    assert injected_code(tmp_path, -signal.SIGKILL) == 5
    assert injected_code(tmp_path, 3) == 3 and injected_code(tmp_path, -signal.SIGTERM) == -signal.SIGTERM


AGENT = """
import socket, sys
import msgspec
from flowdist.runtime.agent.agent_main import run_agent
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.wire.handshake import Credentials
config = msgspec.json.decode(sys.argv[1], type=NodeConfig)
run_agent(config, socket.socket(fileno=int(sys.argv[2])), Credentials())
"""


class Around:
    """An agent; the test plays its controller, its spawner and its only worker."""

    def __init__(self, folder: Path, sockets: str) -> None:
        t = Topology("around")
        t.role("trainer", "true")
        (folder / "graph.json").write_bytes(encode_graph(graph_of(t)))
        self.folder, self.worker_socket = folder, f"{sockets}/{agent_socket('node0')}"
        self._control_socket = f"{sockets}/control.sock"
        node = NodeSpec("node0", cpu=1)
        self._config = NodeConfig(node, 0, 1, str(folder), "run", self._control_socket, sockets, -1, -1)
        self._calls: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def __aenter__(self) -> Around:
        self._server = await asyncio.start_unix_server(lambda *c: self._calls.put_nowait(c), self._control_socket)
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-c", AGENT, msgspec.json.encode(self._config).decode(), str(theirs.fileno())]
        self._agent = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
        theirs.close()
        self._spawner = Channel(ours)
        self._heard, self._orders = await self._calls.get()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._agent.kill()
        self._agent.wait()
        self._server.close()
        self._spawner.close()
        await close(self._orders)

    def order(self, order: Order) -> None:
        self._orders.write(encode(Ordered(1, 1, order)))

    async def told(self, kind: type[Event]) -> Event:
        """The next event of that kind that the agent reports."""
        while True:
            message = await read_to_controller(self._heard)
            assert message is not None
            if isinstance(message, Report) and isinstance(message.event, kind):
                return message.event

    async def spawned(self, pid: int) -> None:
        """Do as the spawner does when it has started a worker."""
        (request,) = await asyncio.to_thread(self._spawner.receive) or []
        assert isinstance(request, Spawn)
        Path(request.folder).mkdir(parents=True)
        write_pid(request.folder, pid)
        self._spawner.send(Spawned(request.id, pid))


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def start(attempt: int) -> StartReplica:
    return StartReplica("node0", R, attempt, "trainer", attempt, 0, 1, 0, 1, 0, 1, 0, "127.0.0.1", 0)


async def stays_in_place(around: Around) -> None:
    around.order(start(1))
    await around.spawned(4242)
    await around.told(ReplicaStarted)
    lines, worker = await asyncio.open_unix_connection(around.worker_socket)
    hello = {"replica": "trainer/0", "attempt": 1, "local_rank": 0}
    worker.write(json.dumps({"hello": hello}).encode() + b'\n{"elastic": true}\n')
    await around.told(ReplicaElastic)
    around.order(StopReplica("node0", R, 1, 60 * SECOND, in_place=True))
    assert json.loads(await lines.readline()) == {"leave": True}
    worker.write(b'{"suspended": true}\n')
    assert (await around.told(ReplicaStopped)).suspended
    around.order(start(2))
    assert (await around.told(ReplicaStarted)).attempt == 2
    fault = RemoteFault("node0", "kill", replica=R, attempt=2)
    assert [read_pid(folder) for folder in workers_hit(around.folder, fault)] == [4242]
    await close(worker)


def test_a_worker_that_goes_on_in_place_is_found_under_its_new_attempt_at_once(tmp_path: Path) -> None:
    async def play(sockets: str) -> None:
        async with Around(tmp_path, sockets) as around:
            await stays_in_place(around)

    with tempfile.TemporaryDirectory() as sockets:  # pytest's own folder may have too long a name
        asyncio.run(play(sockets))
