"""Vaults of one job know each other by its token; whatever else connects gets nothing, and keeps nobody waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from flowdist.runtime.vault import peers
from flowdist.runtime.vault.memory import Memory, digest
from flowdist.runtime.vault.messages import OF_PEER, Broken, Fetch, Go, Held, No, Shard, Store, Stored, about
from flowdist.runtime.wire.dialing import dial, is_encrypted
from flowdist.runtime.wire.endpoint import ControllerEndpoint
from flowdist.runtime.wire.framing import encode, read_frame
from flowdist.runtime.wire.handshake import ConnectionRejected, Credentials
from flowdist.worker.snapshots.vault_link import NoCopy, Snapshot, getting
from tests.runtime.vault.vaults import MIB, Relay, VaultProcess, as_worker, some_bytes

pytestmark = pytest.mark.real
SHARD = Shard("trainer", 1, 1, 0, 4)
ANSWER_S = 2.0  # of a vault with patience for a test
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def test_with_a_token_nothing_of_a_shard_can_be_read_between_the_hosts(tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a", token="hush" * 8) as a, VaultProcess(tmp_path, "b", token="hush" * 8) as b:
        with Relay(b.port) as relay:
            a.gives_to(("b", relay.address))
            shard = a.put(some_bytes(1, MIB))
            assert isinstance(b.hear(), Held)
        assert len(relay.seen) > MIB
        assert not any(some_bytes(1, MIB)[at : at + 16] in relay.seen for at in range(0, MIB, 64 << 10))
        assert b.get(shard) == some_bytes(1, MIB)


def test_a_vault_with_another_token_gets_and_gives_nothing(tmp_path: Path) -> None:
    async def store(address: str) -> None:
        block = await Memory(4096, 0.0).take(4096)
        with block.file:
            await peers.store(peers.Job("job1", "run-1", "hush" * 8, "a", None), address, SHARD, block, 0)

    with VaultProcess(tmp_path, "a", token="hush" * 8) as a, VaultProcess(tmp_path, "b", token="other" * 8) as b:
        shard = a.put(some_bytes(1))
        with pytest.raises(peers.PeerFailed, match="another token"):
            asyncio.run(store(b.address))
        with pytest.raises(NoCopy, match="another token"):
            b.get(shard, ("a", a.address))


def test_a_host_that_does_not_know_the_token_is_refused(tmp_path: Path) -> None:
    async def connect(port: int) -> None:
        with pytest.raises(ConnectionRejected):
            await dial(ControllerEndpoint("127.0.0.1", port, "job1", "run-1"), Credentials("guess"))

    with VaultProcess(tmp_path, "a", token="hush" * 8) as a:
        asyncio.run(connect(a.port))


@contextlib.asynccontextmanager
async def dialed(vault: VaultProcess) -> AsyncIterator[Streams]:
    reader, writer = await dial(ControllerEndpoint("127.0.0.1", vault.port, "job1", "run-1"), Credentials(node="evil"))
    assert not is_encrypted(writer)  # there is no token
    yield reader, writer
    writer.transport.abort()


async def asked(streams: Streams, request: msgspec.Struct, content: bytes = b"") -> Go | Stored | No | None:
    """Return the answer to a request; to a content that follows `Go`, the answer to that."""
    reader, writer = streams
    writer.write(encode(request))
    body = await read_frame(reader)
    answer = OF_PEER.decode(body) if body is not None else None
    if isinstance(answer, Go) and content:
        writer.write(content)
        body = await read_frame(reader)
        return OF_PEER.decode(body) if body is not None else None
    return answer


def test_a_copy_that_arrives_damaged_or_cut_is_not_held(tmp_path: Path) -> None:
    content = some_bytes(1)
    offer = about(Store, SHARD, bytes=len(content), digest=digest(content))

    async def send(vault: VaultProcess) -> None:
        async with dialed(vault) as streams:
            assert await asked(streams, offer, some_bytes(2)) == No("what has arrived is damaged", is_bad=True)
        async with dialed(vault) as streams:
            assert isinstance(await asked(streams, offer), Go)
            streams[1].write(content[:1000])
            await streams[1].drain()  # and no more
        async with dialed(vault) as streams:
            assert await asked(streams, about(Fetch, SHARD)) == No("it has no such copy")
        async with dialed(vault) as streams:
            assert await asked(streams, offer, content) == Stored()
        async with dialed(vault) as streams:
            assert await asked(streams, offer) == Stored()  # it has it already: nothing has to be sent

    with VaultProcess(tmp_path, "a", limit=10 * MIB) as a:
        asyncio.run(send(a))
        assert a.hear() == about(Broken, SHARD, why="it has no such copy")  # it was asked for
        held = a.hear()
        assert isinstance(held, Held) and held.digest == digest(content)
        assert a.get(SHARD) == content


def test_what_another_host_sends_has_limits(tmp_path: Path) -> None:
    class Wild(msgspec.Struct, tag="Store"):
        world: object = "trainer"
        generation: object = 1
        step: object = 1
        rank: object = 0
        world_size: object = 4
        bytes: object = 1
        digest: object = 1

    bad = [Wild(bytes=-1), Wild(bytes=0), Wild(bytes=1 << 63), Wild(world=""), Wild(world="x" * 256), Wild(rank=-1)]
    bad += [Wild(step=1.5), Wild(digest=None), Wild(world_size=0)]

    async def send(vault: VaultProcess) -> None:
        for wild in bad:
            async with dialed(vault) as streams:
                assert await asked(streams, wild) is None
        async with dialed(vault) as streams:
            answer = await asked(streams, about(Store, SHARD, bytes=1 << 60, digest=1))
            assert isinstance(answer, No) and "the vault may hold 10.0 MiB" in answer.why
        async with dialed(vault) as (reader, writer):
            writer.write(b"\xff\xff\xff\xff")  # a frame of 4 GiB
            assert await reader.read() == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", vault.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()

    with VaultProcess(tmp_path, "a", limit=10 * MIB) as a:
        asyncio.run(send(a))
        a.get(a.put(some_bytes(1)))
        assert len(a.blocks()) == 1


def test_connections_that_say_nothing_are_limited_in_number_and_keep_no_worker_waiting(tmp_path: Path) -> None:
    async def crowd(vault: VaultProcess) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", vault.port) for _ in range(10)]
        reader, writer = await asyncio.open_connection("127.0.0.1", vault.port)
        assert await reader.read() == b""
        assert not silent[0][0].at_eof()  # as they have the time of the handshake
        vault.get(vault.put(some_bytes(1)))
        for _, other in [*silent, (reader, writer)]:
            other.transport.abort()

    with VaultProcess(tmp_path, "a", constants={"PEERS_MAX": 10}) as a:
        asyncio.run(crowd(a))


def test_more_readers_than_a_vault_serves_at_a_time_get_all_their_shards(tmp_path: Path) -> None:
    async def crowd(a: VaultProcess, b: VaultProcess) -> None:
        large, *shards = [a.put(some_bytes(step, (64 if step == 0 else 1) * MIB), step) for step in range(5)]
        async with dialed(a) as streams:
            assert isinstance(await asked(streams, about(Fetch, large)), Go)  # it has its turn, and does not read
            reading = [asyncio.create_task(asyncio.to_thread(read, shard, a)) for shard in shards]
            done, _ = await asyncio.wait(reading, timeout=1.5 * ANSWER_S)
            assert not done
        assert await asyncio.gather(*reading) == [some_bytes(shard.step, MIB) for shard in shards]

    def read(shard: Shard, holder: VaultProcess) -> bytes:
        snapshot = Snapshot(1, shard.step, 4, {"0": [["a", holder.address]]})
        with getting(snapshot, 0) as memory:
            return bytes(memory)

    with (
        VaultProcess(tmp_path, "a", constants={"TRANSFERS_MAX": 1, "WAIT_S": 0.05}) as a,
        VaultProcess(tmp_path, "b", constants={"ANSWER_S": ANSWER_S}) as b,
        as_worker(b),
    ):
        asyncio.run(crowd(a, b))


def test_a_peer_that_sends_nothing_more_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive() -> None:
        block = await Memory(4096, 0.0).take(4096)
        reader = asyncio.StreamReader()
        reader.feed_data(b"x" * 1000)
        with block.file, pytest.raises(TimeoutError):
            await peers.receive(reader, block)

    monkeypatch.setattr(peers, "STALL_S", 0.01)
    asyncio.run(receive())
