"""The connections of the listening side: what goes through them, how they end, and what they keep."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import threading
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from flowdist.runtime.controller.channel import Channel, listen
from flowdist.runtime.wire.addresses import open_doors
from flowdist.runtime.wire.tls import Identity, client_context, new_identity
from tests.choosing import examples

LIMIT = 32 << 10
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def identity() -> Identity:
    pytest.importorskip("cryptography")
    return new_identity()


def play(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], call: Callable[[int], None]
) -> None:
    """Serve the connections of `call`, which runs in a thread and gets the port, until it returns."""

    async def scene() -> None:
        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            finally:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                ended.release()

        ended = asyncio.Semaphore(0)
        async with await listen(served, LIMIT, open_doors(["127.0.0.1"], 0)[0]) as server:
            await asyncio.to_thread(call, server.sockets[0].getsockname()[1])
            await asyncio.wait_for(ended.acquire(), 30)

    asyncio.run(scene())


async def encrypted(writer: asyncio.StreamWriter, identity: Identity) -> None:
    writer.write(b"!")  # the peer begins TLS now
    assert isinstance(writer.transport, Channel)
    await writer.transport.encrypt(identity.context)


def connected(port: int, identity: Identity | None) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 30)
    if identity is None:
        return connection
    assert connection.recv(1) == b"!"
    return client_context(identity.certificate).wrap_socket(connection)


@pytest.mark.parametrize("seed", range(examples(4, 40)))
@pytest.mark.parametrize("is_encrypted", [True, False])
def test_what_is_sent_arrives_in_both_directions_whatever_its_pieces(
    identity: Identity, seed: int, is_encrypted: bool
) -> None:
    rng, tls = random.Random(seed), identity if is_encrypted else None
    sent = rng.randbytes(rng.choice([0, 1, 1000, 3 * LIMIT, 30 * LIMIT]))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if tls is not None:
            await encrypted(writer, tls)
        assert (writer.get_extra_info("sslcontext") is not None) == is_encrypted
        (length,) = struct.unpack("!I", await reader.readexactly(4))
        writer.write(await reader.readexactly(length))
        writer.close()
        await writer.wait_closed()

    def call(port: int) -> None:
        with connected(port, tls) as connection:
            whole = struct.pack("!I", len(sent)) + sent
            while whole:
                size = rng.randint(1, 2 * LIMIT)
                connection.sendall(whole[:size])
                whole = whole[size:]
            got = bytearray()
            while data := connection.recv(1 << 16):  # with TLS, an end without a close_notify would raise
                got += data
            assert got == sent

    play(echo, call)


def test_a_peer_that_ends_is_an_end_of_the_stream(identity: Identity) -> None:
    heard = []

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await encrypted(writer, identity)
        heard.append(await reader.read())

    def end_in_order(port: int) -> None:
        connection = connected(port, identity)
        assert isinstance(connection, ssl.SSLSocket)
        connection.sendall(b"last words")
        connection.unwrap().close()  # waits for the end of the other side

    def be_killed(port: int) -> None:
        connection = connected(port, identity)
        connection.sendall(b"last words")
        connection.close()

    for call in (end_in_order, be_killed):
        play(read, call)
    assert heard == [b"last words"] * 2


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(500), b""])
def test_a_peer_that_does_not_speak_tls_is_an_error(identity: Identity, garbage: bytes) -> None:
    errors = []

    async def shake_hands(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await encrypted(writer, identity)
        except OSError as error:
            errors.append(error)

    def call(port: int) -> None:
        with connected(port, None) as connection:
            assert connection.recv(1) == b"!"
            connection.sendall(garbage)

    play(shake_hands, call)
    assert len(errors) == 1


def test_bytes_that_the_peer_has_not_sent_end_the_connection(identity: Identity) -> None:
    heard = []

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await encrypted(writer, identity)
        heard.append(await reader.read())

    def call(port: int) -> None:
        connection = connected(port, identity)
        connection.sendall(b"mine")
        with socket.socket(fileno=connection.detach()) as raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record of TLS that nobody has encrypted
            raw.settimeout(30)
            while raw.recv(1 << 12):
                pass

    play(read, call)
    assert heard == [b"mine"]


def test_a_peer_that_does_not_read_makes_the_writer_wait_and_one_that_is_not_read_waits(identity: Identity) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await encrypted(writer, identity)
        writer.transport.set_write_buffer_limits(64 << 10)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    writer.write(bytes(64 << 10))
                    await writer.drain()
        assert writer.transport.get_write_buffer_size() < 1 << 20
        assert len(reader._buffer) <= 4 * LIMIT  # type: ignore[attr-defined]
        over.set()

    def call(port: int) -> None:
        with connected(port, identity) as connection:
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                while True:
                    connection.sendall(bytes(1 << 20))
            over.wait(30)

    over = threading.Event()
    play(flood, call)


def test_an_idle_connection_with_tls_keeps_no_buffer_of_its_own(identity: Identity) -> None:
    """asyncio's TLS keeps one of 256 KiB; a thousand hosts have two thousand connections."""
    count, sizes = 50, []
    context = client_context(identity.certificate)

    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await encrypted(writer, identity)
            served.release()
            await reader.read()

        served = asyncio.Semaphore(0)
        async with await listen(serve, LIMIT, open_doors(["127.0.0.1"], 0)[0]) as server:
            port = server.sockets[0].getsockname()[1]

            def call() -> ssl.SSLSocket:
                connection = socket.create_connection(("127.0.0.1", port), 30)
                assert connection.recv(1) == b"!"
                return context.wrap_socket(connection)

            peers = [await asyncio.to_thread(call)]
            tracemalloc.start()
            peers += [await asyncio.to_thread(call) for _ in range(count)]
            for _ in range(count + 1):
                await served.acquire()
            sizes.append(tracemalloc.get_traced_memory()[0] / count)
            tracemalloc.stop()
            for peer in peers:
                peer.close()

    asyncio.run(scene())
    assert sizes[0] < 16 << 10, sizes
