"""The intake of a controller, over real sockets: hostile peers are cut, and an honest one beside them is read whole."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import pytest

from flowdist.control.controller import Controller
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.runtime.controller import intake as module
from flowdist.runtime.controller import limits
from flowdist.runtime.controller.channel import Channel, listen
from flowdist.runtime.controller.host_registry import HostRegistry
from flowdist.runtime.controller.intake import Intake
from flowdist.runtime.controller.limits import FRAME_MAX, NEWCOMERS_MAX, READ_AHEAD, UNFINISHED_MAX, UNSENT_MAX
from flowdist.runtime.controller.refusals import Refusals
from flowdist.runtime.run_folder.remote_error_report import ERROR_BYTES_MAX
from flowdist.runtime.wire.addresses import open_doors
from flowdist.runtime.wire.frames import JoinRequest, RemoteErrorReport, ToControllerFrame
from flowdist.runtime.wire.framing import FrameTooLong, encode
from flowdist.runtime.wire.tls import client_context, new_identity

HOSTILE, HONEST = "127.0.0.7", "127.0.0.8"
LARGEST = RemoteErrorReport("gpu07", ReplicaId("trainer", 0), 1, 0, "x" * ERROR_BYTES_MAX, "y" * (64 << 10))

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Scene:
    """A server that reads frames of its peers by an intake. `ends` has the last word on each, by its address."""

    def __init__(self, folder: Path, has_node: bool) -> None:
        self.port = 0
        refusals, graph = Refusals(), RoleGraph("job1", (RoleSpec("trainer", ("true",)),))
        self.has_node = has_node
        self.hosts = HostRegistry(graph, "job1", "run-1", folder, "", (), refusals)
        self.intake = Intake(self.hosts, refusals)
        self.writers: list[asyncio.StreamWriter] = []
        self.readers: list[asyncio.StreamReader] = []
        self.peers: list[asyncio.StreamWriter] = []
        self.frames: list[ToControllerFrame] = []
        self.ended = 0
        self.ends: asyncio.Queue[tuple[str, BaseException | None]] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.readers.append(reader)
        error: BaseException | None = None
        try:
            if await self.intake.open(writer):
                self.hosts._shown[writer] = ("", "the digest of its secret")  # as after the handshake
                if self.has_node:
                    self.hosts.welcome(JoinRequest("gpu07"), Controller(self.hosts._graph).state, writer, 0)
                self.intake.admit(writer)
                while (message := await self.intake.read(reader, writer)) is not None:
                    self.frames.append(message)
        except (msgspec.MsgspecError, TimeoutError) as found:
            error = found
        except asyncio.CancelledError:
            writer.transport.abort()
        await self.intake.end(writer)
        self.ends.put_nowait((writer.get_extra_info("peername")[0], error))

    async def end(self) -> tuple[str, BaseException | None]:
        """Wait for the next end of a connection; return its address, and the error if it has one."""
        self.ended += 1
        return await self.ends.get()

    async def call(self, address: str) -> Peer:
        peer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self.peers.append(peer[1])
        return peer


def play(folder: Path, act: Callable[[Scene], Coroutine[None, None, None]], *, has_node: bool = True) -> Scene:
    async def scene() -> Scene:
        stage = Scene(folder, has_node)
        server = await listen(stage.serve, READ_AHEAD, open_doors(["127.0.0.1"], 0)[0])
        stage.port = server.sockets[0].getsockname()[1]
        try:
            await asyncio.wait_for(act(stage), 60)
        finally:
            server.close()
            for writer in (*stage.peers, *stage.writers):
                writer.transport.abort()
            while stage.ends.qsize() + stage.ended < len(stage.writers):
                await asyncio.sleep(0)
        return stage

    return asyncio.run(scene())


def test_unfinished_frames_of_a_hostile_host_are_closed_and_the_largest_honest_frame_is_read(tmp_path: Path) -> None:
    unfinished = FRAME_MAX.to_bytes(4, "big") + bytes(FRAME_MAX - 1)
    count = 2 * UNFINISHED_MAX // FRAME_MAX

    async def act(stage: Scene) -> None:
        _, honest = await stage.call(HONEST)
        frame = encode(LARGEST)
        honest.write(frame[:-1])
        peers = [await stage.call(HOSTILE) for _ in range(count)]
        for _, writer in peers:
            writer.write(unfinished)
        for _ in range(count // 2):
            assert await stage.end() == (HOSTILE, None)
        assert stage.intake._budget.total <= UNFINISHED_MAX
        honest.write(frame[-1:])
        while not stage.frames:
            await asyncio.sleep(0)
        for _, writer in peers:
            writer.transport.abort()
        for _ in range(count // 2):
            await stage.end()
        while stage.intake._budget.total:
            await asyncio.sleep(0)

    stage = play(tmp_path, act)
    assert stage.frames == [LARGEST]


def test_a_frame_that_is_too_long_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def act(stage: Scene) -> None:
        reader, writer = await stage.call(HOSTILE)
        writer.write((60 << 20).to_bytes(4, "big"))
        _, error = await stage.end()
        assert isinstance(error, FrameTooLong) and str(60 << 20) in str(error)
        assert await reader.read() == b""

    play(tmp_path, act)


def test_a_host_that_comes_with_many_others_waits_for_its_turn_and_nothing_that_it_sends_is_kept(
    tmp_path: Path,
) -> None:
    async def act(stage: Scene) -> None:
        others = [await stage.call(f"127.0.1.{number}") for number in range(NEWCOMERS_MAX)]
        _, last = await stage.call(HONEST)
        while len(stage.readers) <= NEWCOMERS_MAX:
            await asyncio.sleep(0)
        last.write(encode(JoinRequest("gpu08")) * 1_000_000)  # more than the kernel's buffers take
        before = -1
        while before != (before := last.transport.get_write_buffer_size()):  # until the kernel takes no more
            await asyncio.sleep(0.05)
        assert before > 1 << 20 and stage.frames == [] and not stage.readers[-1]._buffer  # type: ignore[attr-defined]
        others[0][1].transport.abort()
        while not stage.frames:
            await asyncio.sleep(0)
        last.transport.abort()

    play(tmp_path, act, has_node=False)


def test_a_host_gets_in_beside_one_that_opens_connections_and_says_nothing(tmp_path: Path) -> None:
    async def act(stage: Scene) -> None:
        silent = [await stage.call(HOSTILE) for _ in range(NEWCOMERS_MAX)]
        _, writer = await stage.call(HONEST)
        writer.write(encode(JoinRequest("gpu08")))
        assert await stage.end() == (HOSTILE, None)
        while not stage.frames:
            await asyncio.sleep(0)
        assert len(silent) == NEWCOMERS_MAX

    assert play(tmp_path, act, has_node=False).frames == [JoinRequest("gpu08")]


def test_a_connection_without_a_node_has_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.05)

    async def act(stage: Scene) -> None:
        _, writer = await stage.call(HOSTILE)
        writer.write(b"\0")
        address, error = await stage.end()
        assert address == HOSTILE and isinstance(error, TimeoutError)

    play(tmp_path, act, has_node=False)


def test_a_peer_that_does_not_read_is_dropped_when_too_much_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.05)

    async def act(stage: Scene) -> None:
        _, writer = await stage.call(HOSTILE)
        writer.write(encode(JoinRequest()))
        while not stage.frames:
            await asyncio.sleep(0)
        ours, sent = stage.writers[0], 0
        while stage.intake.may_send(ours):
            ours.write(bytes(1 << 20))
            sent += 1
            assert ours.transport.get_write_buffer_size() <= UNSENT_MAX + (1 << 20)
        assert sent > UNSENT_MAX >> 20
        assert await stage.end() == (HOSTILE, None)

    play(tmp_path, act)


def test_a_host_that_sends_too_fast_is_read_later_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BURST", 5)
    monkeypatch.setattr(limits, "RATE", 100)

    async def act(stage: Scene) -> None:
        _, writer = await stage.call(HOSTILE)
        begun_s = time.monotonic()
        writer.write(encode(JoinRequest()) * 25)
        while len(stage.frames) < 25:
            await asyncio.sleep(0)
        assert time.monotonic() - begun_s >= 0.15

    play(tmp_path, act)


def test_a_peer_with_tls_that_does_not_read_is_gone_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    identity = new_identity()

    async def act(stage: Scene) -> None:
        ended = asyncio.Event()

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await stage.intake.open(writer)
            writer.write(b"y")
            assert isinstance(writer.transport, Channel)
            await writer.transport.encrypt(identity.context)
            stage.intake.admit(writer)
            while stage.intake.may_send(writer):
                writer.write(bytes(64 << 10))
            writer.close()
            assert not stage.intake.may_send(writer)
            await stage.intake.end(writer)
            assert not stage.intake.may_send(writer)
            ended.set()

        server = await listen(serve, READ_AHEAD, open_doors(["127.0.0.1"], 0)[0])
        reader, peer = await asyncio.open_connection(*server.sockets[0].getsockname())
        stage.peers.append(peer)
        await reader.readexactly(1)
        await peer.start_tls(client_context(identity.certificate))
        await ended.wait()
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(1 << 20):
                pass
        server.close()

    play(tmp_path, act)
