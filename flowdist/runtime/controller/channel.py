"""The listening side's connections: streams of asyncio, over TCP or TLS, with one receive buffer for all of them.

A controller has two connections for each of a thousand hosts, which send small messages. asyncio's own TLS takes a
buffer for each, and twenty steps in Python for each message. Here OpenSSL decrypts a message, through buffers in
memory, in the callback in which it arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from flowdist.runtime.wire.addresses import BACKLOG

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Channel(asyncio.BufferedProtocol, asyncio.Transport):
    """One connection: the transport of the streams, and the protocol of the socket's transport below.

    It begins without encryption. `close` sends the rest, and waits for the end of the peer, which may still read; so
    the caller calls `abort` in the end. Other channels of the event loop may use `buffer`, where bytes arrive, too.
    """

    def __init__(self, streams: asyncio.StreamReaderProtocol, buffer: memoryview) -> None:
        super().__init__()
        self._streams, self._buffer = streams, buffer
        self._tls: ssl.SSLObject | None = None
        self._handshake: asyncio.Future[None] | None = None  # until it is over
        self._is_closing = self._has_ended = False  # by this side, and by the peer

    # The protocol of the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._below = transport
        self._streams.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._tls is None:
            self._streams.data_received(bytes(self._buffer[:nbytes]))
            return
        self._incoming.write(self._buffer[:nbytes])
        try:
            if self._handshake is None or self._shakes_hands(self._tls, self._handshake):
                self._read(self._tls)
        except ssl.SSLError as error:
            self._fail(error)

    def eof_received(self) -> bool | None:
        if self._tls is None:
            return self._streams.eof_received()
        self._end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(exc or ConnectionResetError("the peer has gone while TLS began"))
        self._streams.connection_lost(exc)

    def pause_writing(self) -> None:
        self._streams.pause_writing()

    def resume_writing(self) -> None:
        self._streams.resume_writing()

    # TLS

    async def encrypt(self, context: ssl.SSLContext) -> None:
        """Begin TLS as the server, now, and wait until the peer has done its part; OSError if it cannot."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._context, self._tls = context, context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake = asyncio.get_running_loop().create_future()
        if self._below.is_closing():
            raise ConnectionResetError("the peer has gone before TLS began")
        await self._handshake
        self._handshake = None

    def _shakes_hands(self, tls: ssl.SSLObject, handshake: asyncio.Future[None]) -> bool:
        """Continue the handshake, and return whether it is over."""
        if handshake.done():
            return not handshake.cancelled()
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._flush()
        handshake.set_result(None)
        return True

    def _read(self, tls: ssl.SSLObject) -> None:
        """Give the streams what has arrived; at the end of the peer, end this side too."""
        with contextlib.suppress(ssl.SSLWantReadError):
            while self._incoming.pending or tls.pending():
                data = tls.read(len(self._buffer))
                if not data:
                    self._end()
                    break
                if not self._is_closing:
                    self._streams.data_received(data)
        if self._outgoing.pending:
            self._flush()

    def _flush(self) -> None:
        self._below.write(self._outgoing.read())

    def _fail(self, error: ssl.SSLError) -> None:
        """End a connection on which something has arrived that the peer's TLS has not sent."""
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(error)
        self._has_ended = True
        self.close()

    def _end(self) -> None:
        """Tell the streams that the peer has ended, and close the connection."""
        if not self._has_ended:
            self._has_ended = True
            self._streams.eof_received()
        self.close()

    # The transport of the streams

    def write(self, data: Any) -> None:
        if self._tls is None:
            self._below.write(data)
        elif not self._is_closing:
            written = self._tls.write(data)
            while written < len(data):
                written += self._tls.write(memoryview(data)[written:])
            self._flush()

    def close(self) -> None:
        if self._tls is not None and not self._is_closing:
            self._is_closing = True
            with contextlib.suppress(ssl.SSLError):  # the peer has not ended yet, or TLS has not begun
                self._tls.unwrap()
            self._flush()
        if self._tls is None or self._has_ended:
            self._below.close()

    def abort(self) -> None:
        self._below.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._below.is_closing()

    def can_write_eof(self) -> bool:
        return self._tls is None

    def write_eof(self) -> None:
        self._below.write_eof()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext" and self._tls is not None:
            return self._context
        return self._below.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def is_reading(self) -> bool:
        return self._below.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()


async def listen(serve: Serve, limit: int, door: socket.socket) -> asyncio.Server:
    """Accept connections, and serve each by a task of its own, with a `Channel` as the transport of its streams.

    `limit` is how many bytes a connection may have sent before they are read; twice as many are kept.
    """
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(limit))

    def channel() -> Channel:
        reader = asyncio.StreamReader(limit, loop)
        return Channel(asyncio.StreamReaderProtocol(reader, serve, loop), buffer)

    return await loop.create_server(channel, sock=door, backlog=BACKLOG)
