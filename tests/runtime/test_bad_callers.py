"""Invalid and foreign connections to the controller's port: they are closed, and the job continues."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from flowdist.control.protocol.events import CancelRequested, NodeGone
from flowdist.record.journal import Record
from flowdist.runtime.wire.dialing import dial
from flowdist.runtime.wire.endpoint import ControllerEndpoint, send_death_proof
from flowdist.runtime.wire.frames import Operate
from flowdist.runtime.wire.framing import encode, receive_frame
from flowdist.runtime.wire.handshake import ConnectionRejected, Credentials, Hello
from tests.runtime.far_host import FarHost
from tests.runtime.hosts import Hosts

pytestmark = pytest.mark.real

WAIT = """
import os, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists("end"):
    time.sleep(0.02)
"""
TOPOLOGY = """
from flowdist import Topology

t = Topology("hosts", nodes="1:2")
t.role("trainer", "python train.py", replicas="1:2", apart=True, join_window="60s")
"""


def call(endpoint: str) -> socket.socket:
    host, port = endpoint.split(":")
    return socket.create_connection((host, int(port)), 20)


def let_in(endpoint: str, token: str) -> socket.socket:
    """Open a connection and do the handshake."""
    host, port = endpoint.split(":")
    controller = ControllerEndpoint(host, int(port), "flowdist")
    return FarHost(controller, Credentials(token)).connection


def is_dropped(connection: socket.socket, data: bytes) -> bool:
    """Return whether the peer closes the connection after this data, whatever it answers before."""
    with connection:
        try:
            connection.sendall(data)
            while connection.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True  # else the time-out of the connection has raised


@pytest.mark.slow
def test_connections_with_invalid_data_are_closed_and_the_job_continues(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAIT)
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    with Hosts(tmp_path) as hosts:
        first = hosts.start(
            1, "run", str(tmp_path / "topology.py"), "--listen", hosts.endpoint, env={"FLOWDIST_TOKEN": "hush"}
        )
        first.until("joined")
        deep = b"\x91" * 5000
        for nonsense in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\xff\xff\xff\xff" + os.urandom(100),
            b"\0\0\0\x08" + b"\xc1" * 8,
            len(deep).to_bytes(4, "big") + deep,
            encode(Operate(CancelRequested("for fun"))),
            encode(Hello(b"nonce")) + encode(Operate(CancelRequested("for fun"))),
        ):
            assert is_dropped(call(hosts.endpoint), nonsense)
        for nonsense in (encode(Operate(CancelRequested("for fun"))), b"\0\0\0\x08" + b"\xc1" * 8, b"\x10\0\0\0"):
            assert is_dropped(let_in(hosts.endpoint, "hush"), nonsense)
        with call(hosts.endpoint), let_in(hosts.endpoint, "hush") as silent:  # these just say nothing
            silent.sendall(b"\0\0")
            second = hosts.start(2, "join", hosts.endpoint, env={"FLOWDIST_TOKEN": "hush"})
            second.until("[trainer/1] rank 1 of 2")
            (tmp_path / "end").touch()
            assert hosts.all_end() == [0, 0], hosts.text
    log = (first.run_dir / "controller.log").read_text()
    assert "was refused" in log and "other hosts may not send Operate" in log and "Traceback" not in log, log


def test_an_answer_that_is_nested_too_deeply_is_that_of_another_program() -> None:
    nested = b"\x82\xa4type\xa9Challenge\xa1x" + b"\x91" * 3000 + b"\xc0"  # arrays of one array, in msgpack

    def answer(listener: socket.socket) -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                receive_frame(connection)
                connection.sendall(len(nested).to_bytes(4, "big") + nested)
                connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        controller = ControllerEndpoint(*listener.getsockname(), "flowdist", "a-run")
        mine = Credentials("hush", "", "secret")
        server = threading.Thread(target=answer, args=(listener,))
        server.start()
        with pytest.raises(ConnectionRejected, match="is no flowdist"):
            asyncio.run(dial(controller, mine))
        send_death_proof(controller, mine, 1000, "it is so")
        server.join()


def test_only_accepted_connections_can_prove_the_death_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(WAIT)
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    with Hosts(tmp_path) as hosts:
        words = [str(tmp_path / "topology.py"), "--listen", hosts.endpoint, "--set", "trainer.join_window=0s"]
        first = hosts.start(1, "run", *words, env={"FLOWDIST_TOKEN": "hush"})
        first.until("rank 0 of 1")
        host, port = hosts.endpoint.split(":")
        monkeypatch.setattr("flowdist.runtime.wire.endpoint.DEATH_PROOF_S", 60)
        controller = ControllerEndpoint(host, int(port), "flowdist", first.run_dir.name)
        host = FarHost(controller, Credentials("hush", "", "secret"))
        host.ask("gpu07")
        right = host.credentials
        another_run = msgspec.structs.replace(controller, run="another")
        send_death_proof(controller, right._replace(token="wrong"), 1000, "it is said")
        send_death_proof(controller, right._replace(secret="wrong"), 1000, "it is said")
        send_death_proof(another_run, right, 1000, "it is said")
        send_death_proof(controller, right, 1000, "it is so")
        host.close()
        (tmp_path / "end").touch()
        assert first.finish() == 0, first.text
    gone = [line.event for line in first.journal()[1] if isinstance(line, Record) and isinstance(line.event, NodeGone)]
    assert gone == [NodeGone("gpu07", "it is so")]
