"""The vault process: it serves the agent and the workers of its node on one Unix socket, other vaults on a TCP port.

Digests are computed in threads, and bytes are sent in pieces: none of them keeps others waiting. The process depends on
nobody: a worker, an agent or another vault that ends only ends its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import assert_never
from weakref import WeakValueDictionary

import msgspec

from flowdist.runtime.last_words import die_of
from flowdist.runtime.processes.unexpected import start_task, watch_loop
from flowdist.runtime.vault import peers
from flowdist.runtime.vault.buddies import Buddy
from flowdist.runtime.vault.copies import Copies, Copy
from flowdist.runtime.vault.memory import Block, Memory, NoRoom
from flowdist.runtime.vault.messages import (
    FROM_AGENT,
    FROM_LOCAL,
    FROM_PEER,
    FROM_WORKER,
    LINE_MAX,
    Answer,
    Attach,
    Broken,
    Buddies,
    Fetch,
    FromAgent,
    Get,
    Go,
    Listening,
    No,
    Put,
    Release,
    Shard,
    Store,
    Stored,
    about,
    line,
    name_of,
)
from flowdist.runtime.wire.framing import encode, read_frame
from flowdist.runtime.wire.handshake import FRAME_MAX, HANDSHAKE_S

PEERS_MAX = 4096  # connections of other vaults at a time: each node may read the shard of rank 0
TRANSFERS_MAX = 32  # of these that have their turn; each computes a digest first, and has an equal part of the network
MISSING = "it has no such copy"


class Vault:
    """The vault of a node, which listens at `door` for other vaults of the job, and has `memory` for its copies."""

    def __init__(self, job: peers.Job, door: socket.socket, memory: Memory) -> None:
        self._job, self._door, self._memory = job, door, memory
        self._copies = Copies(memory, self._tell)
        self._agent: asyncio.StreamWriter | None = None
        self._buddies: list[Buddy] = []
        self._connected = 0  # other vaults
        self._turns = asyncio.Semaphore(TRANSFERS_MAX)
        self._reading = WeakValueDictionary[Shard, asyncio.Lock]()  # what several workers read is fetched once

    async def serve(self, local: socket.socket) -> None:
        """Serve without end, the processes of this node at the listening Unix socket `local`."""
        watch_loop(die_of)
        here = await asyncio.start_unix_server(self._serve_local, sock=local, limit=LINE_MAX)
        others = await asyncio.start_server(self._serve_peer, sock=self._door, limit=peers.PIECE_BYTES)
        async with others, here:
            await asyncio.Event().wait()

    def _tell(self, message: msgspec.Struct) -> None:
        if self._agent is not None:
            self._agent.write(line(message))

    # The agent and the workers of the node

    async def _serve_local(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            match FROM_LOCAL.decode(await reader.readline()):
                case Attach():
                    await self._serve_agent(reader, writer)
                case Put() as put:
                    await self._put(put, reader, writer)
                case Get() as get:
                    await self._get(get, writer)
            await writer.drain()
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            pass  # no process of this job, or one that ended in the middle of a line
        except Exception as error:
            die_of(error)
        finally:
            writer.close()

    async def _serve_agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._agent = writer
        self._obey(Attach())
        try:
            while order := await reader.readline():
                self._obey(FROM_AGENT.decode(order))
        finally:
            if self._agent is writer:
                self._agent = None

    def _obey(self, order: FromAgent) -> None:
        match order:
            case Attach():
                self._tell(Listening(self._door.getsockname()[1]))
                for held in self._copies.reports():
                    self._tell(held)
            case Release(world, generation, step):
                self._copies.release(world, generation, step)
            case Buddies(world, nodes):
                wanted = [(world, node, address) for node, address in nodes if node != self._job.node]
                of_world = [each for each in self._buddies if each.world == world]
                for buddy in [each for each in of_world if (world, each.node, each.address) not in wanted]:
                    buddy.end()
                    self._buddies.remove(buddy)
                known = [(world, each.node, each.address) for each in self._buddies if each.world == world]
                for named in [each for each in wanted if each not in known]:
                    self._buddies.append(Buddy(*named, self._job, self._copies, self._memory))
            case _:
                assert_never(order)

    async def _put(self, put: Put, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Give a worker memory for its shard, and hold the shard once the worker has written it, all of it."""
        shard = name_of(put)
        known = self._copies.get(shard)
        if known is not None and known.origin == "worker":  # buddies have it, and the controller knows its digest
            writer.write(line(Answer(why=f"rank {shard.rank} has put its shard of step {shard.step} already")))
            return
        try:
            block = await self._copies.take(put.bytes)
        except NoRoom as error:
            writer.write(line(Answer(why=str(error))))
            return
        block.is_reusable = False
        try:
            _give(writer, block.file.fileno(), block.size)
            FROM_WORKER.decode(await reader.readline())  # a worker that has died sends nothing, which is no `Done`
            block.is_reusable = True
            copy = Copy(block, await asyncio.to_thread(block.digest), "worker")
        except BaseException:
            self._memory.free(block)
            raise
        self._copies.hold(shard, copy)
        for buddy in self._buddies:
            if buddy.world == shard.world:
                buddy.wake()

    async def _get(self, get: Get, writer: asyncio.StreamWriter) -> None:
        """Give a worker a good copy of a shard: that of this node, or else of the first holder that has one."""
        shard, failed = name_of(get), []
        async with self._reading.setdefault(shard, asyncio.Lock()):
            if (copy := self._copies.get(shard)) is not None:
                with self._memory.using(copy.block):
                    if await self._copies.is_intact(shard, copy):
                        _give_to_read(writer, copy.block)
                        return
                failed.append(f"{self._job.node}: its copy is damaged")
            for node, address in get.holders:
                if node == self._job.node and not failed:
                    failed.append(f"{node}: {MISSING}")
                    self._tell(about(Broken, shard, why=MISSING))
                if node == self._job.node:
                    continue
                try:
                    copy = await self._fetch(shard, address)
                except NoRoom as error:
                    failed.append(f"{self._job.node}: {error}")
                except peers.PeerFailed as error:
                    failed.append(f"{node}: {error}")
                else:
                    try:
                        _give_to_read(writer, copy.block)
                    except BaseException:  # the worker is gone
                        self._memory.free(copy.block)
                        raise
                    self._copies.hold(shard, copy)
                    return
        why = "; ".join(failed) or f"{self._job.node} has none, and no other holder is known"
        writer.write(line(Answer(why=f"nobody has a good copy of {shard} ({why})")))

    async def _fetch(self, shard: Shard, address: str) -> Copy:
        """Return a copy that another vault has sent; PeerFailed or NoRoom if that fails."""
        async with peers.fetching(self._job, address, shard) as offered:
            block = await self._copies.take(offered.size)
            try:
                await peers.receive(offered.reader, block)
                if await asyncio.to_thread(block.digest, is_awaited=True) != offered.digest:
                    raise peers.PeerFailed("what it has sent is damaged")
            except BaseException:
                self._memory.free(block)
                raise
            return Copy(block, offered.digest, "fetched")

    # Other vaults

    async def _serve_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connected += 1
        try:
            if self._connected <= PEERS_MAX and await peers.admit(self._job, reader, writer):
                async with asyncio.timeout(HANDSHAKE_S):
                    body = await read_frame(reader, FRAME_MAX)
                request = FROM_PEER.decode(body or b"")
                async with self._turn(writer):
                    match request:
                        case Store() as store:
                            await self._store(store, reader, writer)
                        case Fetch() as fetch:
                            await self._send(name_of(fetch), writer)
        except peers.BAD_PEER:
            pass  # the other side knows
        except Exception as error:
            die_of(error)
        finally:
            self._connected -= 1
            writer.close()

    @contextlib.asynccontextmanager
    async def _turn(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        """Return a context manager inside which a peer has its turn; until then it is asked to wait."""
        asking = start_task(peers.ask_to_wait(writer), die_of)
        try:
            async with self._turns:
                asking.cancel()
                yield
        finally:
            asking.cancel()

    async def _store(self, store: Store, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hold a copy for another node, once all of it is here and has its digest."""
        shard = name_of(store)
        known = self._copies.get(shard)
        is_kept = known is not None and known.origin != "fetched" and known.digest == store.digest
        if known is not None and is_kept and await self._copies.is_intact(shard, known):
            writer.write(encode(Stored()))
            return
        try:
            block = await self._copies.take(store.bytes)
        except NoRoom as error:
            writer.write(encode(No(str(error))))
            return
        try:
            writer.write(encode(Go(store.bytes, store.digest)))
            await peers.receive(reader, block)
            digest = await asyncio.to_thread(block.digest)
        except BaseException:
            self._memory.free(block)
            raise
        if digest != store.digest:
            self._memory.free(block)
            writer.write(encode(No("what has arrived is damaged", is_bad=True)))
            return
        self._copies.hold(shard, Copy(block, digest, "vault"))
        writer.write(encode(Stored()))

    async def _send(self, shard: Shard, writer: asyncio.StreamWriter) -> None:
        """Send a copy to another vault, after its digest was checked.

        Whoever asks was told that it is here. So the controller has to learn that it is not.
        """
        copy = self._copies.get(shard)
        if copy is None:
            self._tell(about(Broken, shard, why=MISSING))
            writer.write(encode(No(MISSING)))
            return
        with self._memory.using(copy.block):
            if not await self._copies.is_intact(shard, copy):
                writer.write(encode(No("its copy is damaged")))
                return
            writer.write(encode(Go(copy.block.size, copy.digest)))
            await peers.send(writer, copy.block)


def _give_to_read(writer: asyncio.StreamWriter, block: Block) -> None:
    with block.to_read() as fd:
        _give(writer, fd, block.size)


def _give(writer: asyncio.StreamWriter, fd: int, size: int) -> None:
    """Send a descriptor with its answer, the first one on this connection, so that nothing has to be waited for."""
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as connection:
        socket.send_fds(connection, [line(Answer(size))], [fd])
