"""A controller process of its own, and hosts that a test plays: frames over a real connection, one by one."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from flowdist.control.protocol.messages import Acked, Heartbeat, Join, Rejoin
from flowdist.graph import NodeSpec, RoleGraph, encode_graph
from flowdist.record.journal import Line
from flowdist.record.reader import read_whole_lines
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.controller.controller_process import ControllerConfig
from flowdist.runtime.controller.host_registry import Listening
from flowdist.runtime.run_folder.resume import RunEndpoint
from flowdist.runtime.wire.addresses import open_doors
from flowdist.runtime.wire.endpoint import ControllerEndpoint
from flowdist.runtime.wire.frames import FromControllerFrame, JoinRequest, Watch, Welcome
from flowdist.runtime.wire.framing import encode, receive_frame
from flowdist.runtime.wire.handshake import FROM_SERVER, TOKEN, Accepted, Answer, ClientHandshake, Credentials
from flowdist.runtime.wire.tls import client_context

_DECODER: msgspec.msgpack.Decoder[FromControllerFrame] = msgspec.msgpack.Decoder(FromControllerFrame)
JOB, RUN = "job1", "run-1"


class FarHost:
    """A host that says what the test says. Every method that reads waits for an answer.

    Args:
        controller: Where the controller listens.
        credentials: What the host shows there.
        address: The host's own address.
    """

    def __init__(self, controller: ControllerEndpoint, credentials: Credentials, address: str = "127.0.0.1") -> None:
        self.credentials, self.incarnation = credentials, 0
        self.connection = socket.create_connection((controller.host, controller.port), 20, (address, 0))
        try:
            self._shake_hands(ClientHandshake(controller.job, controller.run, credentials))
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, client: ClientHandshake) -> None:
        self.send(client.hello)
        proof = client.answer(self._answer())
        if client.certificate:
            self.connection = client_context(client.certificate).wrap_socket(self.connection)
        self.send(proof)
        answer = self._answer()
        if not isinstance(answer, Accepted):
            self.close()
        client.finish(answer)

    def _answer(self) -> Answer:
        return FROM_SERVER.decode(receive_frame(self.connection) or b"")

    @property
    def is_encrypted(self) -> bool:
        return isinstance(self.connection, ssl.SSLSocket)

    @property
    def node(self) -> str:
        return self.credentials.node

    def send(self, *messages: msgspec.Struct) -> None:
        self.connection.sendall(b"".join(map(encode, messages)))

    def read(self) -> FromControllerFrame:
        return _DECODER.decode(receive_frame(self.connection) or b"")

    def ask(self, host: str) -> Welcome:
        """Get the name of a node, as the foreground process of a host does."""
        self.send(JoinRequest(host))
        welcome = self.read()
        assert isinstance(welcome, Welcome)
        self.credentials = self.credentials._replace(node=welcome.node)
        self.incarnation = welcome.incarnation
        return welcome

    def join(self, host: str) -> Welcome:
        """Get the name of a node, and join with it as its agent does."""
        welcome = self.ask(host)
        self.send(Join(self.node, self.incarnation, NodeSpec(self.node, cpu=1), "127.0.0.1", 0))
        while not isinstance(self.read(), Acked):  # but orders, if another host's lease is over
            pass
        return welcome

    def wait_until_heard(self) -> None:
        """Wait until the controller has handled everything that this connection has sent."""
        self.send(Heartbeat(self.node, self.incarnation, 7))
        while not isinstance(self.read(), Acked | Rejoin):  # Rejoin: its lease was over
            pass

    def close(self) -> None:
        self.connection.close()


class LoneController:
    """The controller process of a run, without a supervisor. Leaving the block ends it."""

    def __init__(self, run_dir: Path, graph: RoleGraph, token: str = "") -> None:
        self.run_dir, self._graph, self._token = run_dir, graph, token
        (self._door,) = open_doors(["127.0.0.1"], 0)
        self.endpoint = ControllerEndpoint("127.0.0.1", self._door.getsockname()[1], JOB, RUN)
        self._hosts: list[FarHost] = []
        self.closing = contextlib.ExitStack()  # of what a test opens besides

    def __enter__(self) -> LoneController:
        (self.run_dir / "graph.json").write_bytes(encode_graph(self._graph))
        self._lifeline = os.pipe()
        listening = Listening(RunEndpoint(str(self.endpoint.address), JOB), "127.0.0.1", self.endpoint.port, 3)
        config = ControllerConfig(
            str(self.run_dir), RUN, str(self.run_dir / "c.sock"), (), boot_ns(), self._lifeline[0],
            listening=listening, doors=(self._door.fileno(),),
        )  # fmt: skip
        command = [sys.executable, "-m", "flowdist.runtime.controller.controller_main"]
        with (self.run_dir / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, msgspec.json.encode(config).decode()],
                pass_fds=[self._lifeline[0], self._door.fileno()],
                env={**os.environ, TOKEN: self._token},
                stderr=log,
            )
        os.close(self._lifeline[0])
        self._door.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.close()
        for host in self._hosts:
            host.close()
        os.close(self._lifeline[1])
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()

    def host(self, secret: str = "", node: str = "") -> FarHost:
        """Connect as a host, as soon as the controller listens."""
        while True:
            try:
                self._hosts.append(FarHost(self.endpoint, Credentials(self._token, node, secret)))
                return self._hosts[-1]
            except ConnectionRefusedError:
                assert self.process.poll() is None, self.log

    def wait_for(self, event: str) -> None:
        """Wait until the journal has an event of this type."""
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(self.run_dir / "c.sock"))
            link.sendall(encode(Watch()))
            while f'"{event}"'.encode() not in (receive_frame(link) or b""):
                pass

    @property
    def log(self) -> str:
        return (self.run_dir / "log").read_text()

    def journal(self) -> list[Line]:
        lines: list[Any] = read_whole_lines((self.run_dir / "journal.jsonl").read_bytes())[0]
        return lines
