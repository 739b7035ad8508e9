"""Transfers between the vaults of two nodes, each over a connection of its own, and the handshake before them.

The handshake is that of the control channel: with a token, both sides prove that they know it, and what follows is
encrypted if the listening side can make a certificate. A host's own secret is for the controller alone, and is not
shown. After the handshake come one request, its answer, and the bytes of the shard as they are. A peer that stands
still for STALL_S has failed. A request waits for its turn for as long as `Wait` comes every WAIT_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from flowdist.errors import FlowdistError
from flowdist.runtime.vault.memory import Block
from flowdist.runtime.vault.messages import OF_PEER, Fetch, Go, No, Shard, Store, Stored, Wait, about
from flowdist.runtime.wire.addresses import endpoint_of
from flowdist.runtime.wire.dialing import dial
from flowdist.runtime.wire.endpoint import ControllerEndpoint, keep_alive
from flowdist.runtime.wire.framing import encode, read_frame
from flowdist.runtime.wire.handshake import (
    FRAME_MAX,
    FROM_CLIENT,
    HANDSHAKE_S,
    Credentials,
    Refused,
    ServerHandshake,
)
from flowdist.runtime.wire.tls import Identity, encrypt

STALL_S = 10.0
WAIT_S = 5.0
ANSWER_S = 60.0  # the other vault may wait for room, and checks digests; one that stands still fails the handshake
PIECE_BYTES = 256 << 10
BAD_PEER = (OSError, EOFError, msgspec.MsgspecError, RecursionError, FlowdistError)


class PeerFailed(Exception):
    """A transfer has failed; the text says why. `is_bad`: what was sent has arrived damaged."""

    def __init__(self, why: str, *, is_bad: bool = False) -> None:
        super().__init__(why)
        self.is_bad = is_bad


class Job(NamedTuple):
    """The job whose vaults may connect, and this one of them: its node, and its identity if it can encrypt."""

    job: str
    run: str
    token: str
    node: str
    identity: Identity | None


async def store(job: Job, address: str, shard: Shard, block: Block, digest: int) -> None:
    """Have the vault at an address hold a copy, and wait until it has checked the digest; PeerFailed if it does not."""
    async with _dialed(job, address) as (reader, writer):
        writer.write(encode(about(Store, shard, bytes=block.size, digest=digest)))
        if isinstance(await _answer(reader), Stored):
            return  # it has the copy already
        await send(writer, block)
        if not isinstance(await _answer(reader), Stored):
            raise PeerFailed("it does not say that it holds the copy")


class Offered(NamedTuple):
    """A copy that a vault is about to send."""

    size: int
    digest: int
    reader: asyncio.StreamReader


@contextlib.asynccontextmanager
async def fetching(job: Job, address: str, shard: Shard) -> AsyncIterator[Offered]:
    """Return a context manager with a copy that the vault at an address sends, to be `receive`d; PeerFailed if not."""
    async with _dialed(job, address) as (reader, writer):
        writer.write(encode(about(Fetch, shard)))
        answer = await _answer(reader)
        if not isinstance(answer, Go) or answer.bytes <= 0:
            raise PeerFailed("it does not send what it was asked for")
        yield Offered(answer.bytes, answer.digest, reader)


@contextlib.asynccontextmanager
async def _dialed(job: Job, address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        host, port = endpoint_of(address, 0)
        place = ControllerEndpoint(host, port, job.job, job.run)
        reader, writer = await dial(place, Credentials(job.token, job.node))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
    except TimeoutError:
        raise PeerFailed("it does not answer") from None
    except BAD_PEER as error:
        raise PeerFailed(f"{error}") from None


async def _answer(reader: asyncio.StreamReader) -> Go | Stored:
    answer: Wait | Go | Stored | No = Wait()
    while isinstance(answer, Wait):
        async with asyncio.timeout(ANSWER_S):
            body = await read_frame(reader, FRAME_MAX)
        if body is None:
            raise ConnectionResetError("it has closed the connection")
        answer = OF_PEER.decode(body)
    if isinstance(answer, No):
        raise PeerFailed(answer.why, is_bad=answer.is_bad)
    return answer


async def admit(job: Job, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Do the handshake with a vault that has connected, and return whether it may ask; BAD_PEER if it is none."""
    keep_alive(writer.get_extra_info("socket"))
    certificate = job.identity.certificate if job.identity is not None else b""
    handshake = ServerHandshake(job.job, job.run, job.token, certificate)
    async with asyncio.timeout(HANDSHAKE_S):
        for answer_to in (handshake.challenge, handshake.verify):
            answer = answer_to(FROM_CLIENT.decode(await read_frame(reader, FRAME_MAX) or b""))
            writer.write(encode(answer))
            if isinstance(answer, Refused):
                return False
            if answer_to == handshake.challenge and job.identity is not None:
                await encrypt(writer, job.identity.context)
    return True


async def ask_to_wait(writer: asyncio.StreamWriter) -> None:
    """Tell a peer every WAIT_S that its request waits for its turn, until this is cancelled or the peer is gone."""
    while not writer.is_closing():
        writer.write(encode(Wait()))
        await asyncio.sleep(WAIT_S)


async def send(writer: asyncio.StreamWriter, block: Block) -> None:
    """Send the bytes of a block; TimeoutError if the other side does not read."""
    with mmap.mmap(block.file.fileno(), block.size, access=mmap.ACCESS_READ) as content:
        for start in range(0, block.size, PIECE_BYTES):
            writer.write(content[start : start + PIECE_BYTES])
            async with asyncio.timeout(STALL_S):
                await writer.drain()


async def receive(reader: asyncio.StreamReader, block: Block) -> None:
    """Read the bytes of a block; TimeoutError if the other side does not send, EOFError if it ends."""
    block.file.seek(0)
    left = block.size
    while left:
        async with asyncio.timeout(STALL_S):
            piece = await reader.read(min(left, PIECE_BYTES))
        if not piece:
            raise EOFError("it has closed the connection")
        block.file.write(piece)
        left -= len(piece)
