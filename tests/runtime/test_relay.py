"""A relay between a host and the controller: it learns nothing by listening, and is cut off when it changes anything.

The relay splits what it passes on into frames of the handshake and records of TLS, so that it can aim at each of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Literal

import pytest

from flowdist.control.protocol.messages import Acked, Heartbeat, Join
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec
from flowdist.record.journal import Header
from flowdist.record.replay import Replay
from flowdist.runtime.joined.joining import join_job
from flowdist.runtime.wire.dialing import dial, is_encrypted
from flowdist.runtime.wire.endpoint import ControllerEndpoint, send_death_proof
from flowdist.runtime.wire.frames import JoinRequest, Welcome, read_from_controller
from flowdist.runtime.wire.framing import encode
from flowdist.runtime.wire.handshake import Accepted, ConnectionRejected, Credentials, Refused
from tests.choosing import examples
from tests.runtime.far_host import JOB, RUN, LoneController

pytestmark = pytest.mark.real

TOKEN, SECRET = "a very secret token", "the secret of this host"
GRAPH = RoleGraph("covert", (RoleSpec("trainer", ("train-the-covert-model",)),))
WORDS = (TOKEN, SECRET, JOB, RUN, "covert", "trainer", "gpu07", "Heartbeat", "JoinRequest", "Accepted")
ENCRYPTED = 0x17  # type of the TLS records with the messages, and with the end of the handshake
PATIENCE_S = 0.3  # of the relay, for a record that may never come

Way = Literal["up", "down"]
Kind = Literal["flip", "replay", "reorder", "truncate", "drop", "inject"]
PIECES: list[tuple[Way, int]] = [*(("up", n) for n in range(8)), *(("down", n) for n in range(9))]
KINDS: tuple[Kind, ...] = ("flip", "replay", "reorder", "truncate", "drop", "inject")


class Relay:
    """Passes on what it gets, and attacks one piece, the `target`-th in its direction. By default it only listens."""

    def __init__(
        self, upstream: ControllerEndpoint, kind: Kind | None = None, way: Way = "up", target: int = 0
    ) -> None:
        self._upstream, self._kind, self._way, self._target = upstream, kind, way, target
        self.heard = bytearray()
        self.hit: int | None = None  # the first byte of the piece that was attacked
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ControllerEndpoint:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return ControllerEndpoint(host, port, JOB, RUN)

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        far_reader, far_writer = await asyncio.open_connection(self._upstream.host, self._upstream.port)
        try:
            await asyncio.gather(self._pump(reader, far_writer, "up"), self._pump(far_reader, writer, "down"))
        finally:  # a pump that is cancelled before it begins closes nothing
            far_writer.close()
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        number = 0
        try:
            while True:
                piece = await self._piece(reader)
                pieces: Iterable[bytes] = (piece,)
                if self._kind is not None and (way, number) == (self._way, self._target):
                    self.hit = piece[0]
                    pieces = await self._attacked(self._kind, piece, reader)
                writer.write(b"".join(pieces))
                if self.hit is not None and self._kind == "truncate":
                    return
                number += 1
        except (EOFError, OSError, TimeoutError):
            pass
        finally:
            writer.close()

    async def _piece(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next frame of the handshake, whose length begins with a zero, or the next record of TLS."""
        head = await reader.readexactly(4)
        if head[0]:
            head += await reader.readexactly(1)
        piece = head + await reader.readexactly(int.from_bytes(head[-2:], "big"))
        self.heard += piece
        return piece

    async def _attacked(self, kind: Kind, piece: bytes, reader: asyncio.StreamReader) -> list[bytes]:
        match kind:
            case "flip":
                where = random.Random(self._target).randrange(5, len(piece))
                return [piece[:where], bytes([piece[where] ^ 1]), piece[where + 1 :]]
            case "replay":
                return [piece, piece]
            case "reorder":
                return [await asyncio.wait_for(self._piece(reader), PATIENCE_S), piece]
            case "drop":
                return [await asyncio.wait_for(self._piece(reader), PATIENCE_S)]
            case "inject":
                return [encode(Accepted(b"")), encode(Refused("go away")), piece]
            case "truncate":
                return [piece[: len(piece) // 2]]


async def converse(endpoint: ControllerEndpoint, credentials: Credentials, said: list[object]) -> None:
    """Join, and send three heartbeats without waiting; note in `said` what the controller answers."""
    reader, writer = await dial(endpoint, credentials)
    try:
        assert is_encrypted(writer)
        writer.write(encode(JoinRequest("gpu07")))
        said.append(welcome := await read_from_controller(reader))
        if not isinstance(welcome, Welcome):
            return
        node, n = welcome.node, welcome.incarnation
        writer.write(encode(Join(node, n, NodeSpec(node, cpu=1), "127.0.0.1", 0)))
        for number in (1, 2, 3):
            writer.write(encode(Heartbeat(node, n, number)))
        while len(said) < 5 and (answer := await read_from_controller(reader)) is not None:
            if isinstance(answer, Acked):  # and no order
                said.append(answer)
    finally:
        writer.close()


async def attack(upstream: ControllerEndpoint, kind: Kind, way: Way, target: int) -> tuple[int | None, list[object]]:
    """Return which piece was hit, and what the controller has answered to a host behind this relay."""
    relay, said = Relay(upstream, kind, way, target), list[object]()
    async with relay as endpoint:
        try:
            async with asyncio.timeout(30):
                await converse(endpoint, Credentials(TOKEN, "", SECRET), said)
        except ConnectionRejected as error:
            assert not error.is_proven
        except OSError:  # TLS and time limits among them
            pass
    return relay.hit, said


def answers(said: list[object]) -> list[int | str]:
    return [each.sent_ns if isinstance(each, Acked) else type(each).__name__ for each in said if each is not None]


def test_a_relay_that_listens_learns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowdist.runtime.wire.endpoint.DEATH_PROOF_S", 60)

    async def listen(upstream: ControllerEndpoint) -> bytearray:
        relay, said = Relay(upstream), list[object]()
        async with relay as endpoint:
            await converse(endpoint, Credentials(TOKEN, "", SECRET), said)
            node = said[0].node  # type: ignore[attr-defined]
            mine = Credentials(TOKEN, node, SECRET)
            await asyncio.to_thread(send_death_proof, endpoint, mine, 1000, "the covert cause")
        assert answers(said) == ["Welcome", 0, 1, 2, 3]
        return relay.heard

    with LoneController(tmp_path, GRAPH, TOKEN) as controller:
        assert controller.host("a host").is_encrypted
        heard = asyncio.run(listen(controller.endpoint))
        controller.wait_for("NodeGone")
    assert len(heard) > 2000
    for word in WORDS:
        assert word.encode() not in heard, word


def test_a_relay_that_changes_anything_is_cut_off(tmp_path: Path) -> None:
    whole: list[int | str] = ["Welcome", 0, 1, 2, 3]
    cut = 0
    with LoneController(tmp_path, GRAPH, TOKEN) as controller:
        witness = controller.host("the secret of the witness")
        witness.join("witness")
        for kind, (way, target) in list(product(KINDS, PIECES))[:: examples(8, 1)]:
            hit, said = asyncio.run(attack(controller.endpoint, kind, way, target))
            got, label = answers(said), f"{kind} of piece {target} {way}"
            assert got == whole[: len(got)], label
            if hit is None:
                assert got == whole, label
            elif hit == ENCRYPTED:
                cut += 1
                assert got != whole, label
            witness.wait_until_heard()
        header, *lines = controller.journal()
        assert isinstance(header, Header)
        Replay(header, strict=True).follow([header, *lines])
        assert "Traceback" not in controller.log, controller.log
    assert cut > examples(3, 20)


def test_a_host_that_connects_again_does_not_believe_a_relay_that_refuses_it(tmp_path: Path) -> None:
    """A refusal for good ends a host's part in the job, so that it has to be the controller's."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Refused("go away")))
        writer.close()

    async def call() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            with pytest.raises(ConnectionRejected, match="go away") as caught:
                await dial(ControllerEndpoint(host, port, JOB, RUN), Credentials(TOKEN, "gpu07", SECRET))
            assert not caught.value.is_proven and not caught.value.retry

    asyncio.run(call())


class RefusingOnce(Relay):
    """Refuses the first connection in the place of the controller; later ones it passes on."""

    has_refused = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.has_refused:
            await super()._serve(reader, writer)
            return
        self.has_refused = True
        writer.write(encode(Refused("go away")))
        writer.close()


def test_a_host_that_joins_does_not_believe_a_relay_that_refuses_it(tmp_path: Path) -> None:
    """Anybody on the network could end a join, if a refusal without a proof did."""
    shown: list[str] = []

    async def join(upstream: ControllerEndpoint) -> None:
        async with RefusingOnce(upstream) as endpoint:
            joined = await join_job(endpoint, TOKEN, JoinRequest("gpu07"), 30, lambda _, text: shown.append(text))
            assert joined.welcome.node == "gpu07"
            joined.connection.writer.transport.abort()

    with LoneController(tmp_path, GRAPH, TOKEN) as controller:
        asyncio.run(join(controller.endpoint))
    assert len(shown) == 1 and "(go away); trying for another 30 s" in shown[0]


def test_a_refusal_that_nothing_proves_is_the_reason_when_the_time_is_over(tmp_path: Path) -> None:
    shown: list[str] = []
    with LoneController(tmp_path, GRAPH, TOKEN) as controller:
        controller.host("a host")  # the controller listens
        with pytest.raises(ConnectionRejected, match="another token") as caught:
            joining = join_job(controller.endpoint, "other", JoinRequest("a"), 3, lambda _, text: shown.append(text))
            asyncio.run(joining)
    assert "to the same value on every host" in caught.value.help and len(shown) == 1
