"""Frames, 4 bytes of length, big-endian, then one msgpack message; and lines, where one line is one message.

Frames are read from an asyncio stream, a blocking socket, or chunks that a selector delivers. The module does not
import asyncio, because guardians use it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import asyncio

LENGTH_BYTES = 4
LENGTH_MAX = 64 << 20
CHUNK_BYTES = 1 << 20
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Return the frame of a message."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class FrameTooLong(msgspec.ValidationError):
    """A peer has announced a frame that is longer than its reader accepts; nothing of it is read."""

    def __init__(self, length: int, length_max: int) -> None:
        super().__init__(f"a frame has {length} bytes, at most {length_max}")


async def read_frame(
    reader: asyncio.StreamReader, length_max: int = LENGTH_MAX, note: Callable[[int], None] | None = None
) -> bytes | bytearray | None:
    """Return the body of the next frame; None if the connection has ended.

    `note` gets the bytes of an unfinished body so far, and 0 at its end; an OSError from it ends the connection.
    FrameTooLong if the body is longer than `length_max` bytes: the caller has to close the connection.
    """
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        if length > length_max:
            raise FrameTooLong(length, length_max)
        if note is None:
            return await reader.readexactly(length)
        first = await reader.read(min(length, CHUNK_BYTES))
        if len(first) == length:
            return first
        body = bytearray(first)
        note(len(body))
        while len(body) < length and (chunk := await reader.read(min(length - len(body), CHUNK_BYTES))):
            body += chunk
            note(len(body))
        note(0)
        return body if len(body) == length else None
    except (EOFError, OSError):
        return None


def receive_frame(connection: socket.socket, length_max: int = LENGTH_MAX) -> bytes | None:
    """Wait for the next frame's body from a blocking socket; None if the connection has ended, or it is too long.

    OSError if the connection breaks, or its timeout is over.
    """
    prefix = _receive(connection, LENGTH_BYTES)
    if prefix is None:
        return None
    length = int.from_bytes(prefix, "big")
    return _receive(connection, length) if length <= length_max else None


def _receive(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(min(count - len(data), CHUNK_BYTES))
        if not more:
            return None
        data += more
    return bytes(data)


class FrameBuffer:
    """Splitter of a byte stream, which arrives in chunks of any size, into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add a chunk and return the bodies of the frames that it completes, in order."""
        self._buffer += data
        bodies: list[bytes] = []
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[LENGTH_BYTES:end]))
            del self._buffer[:end]
        return bodies


class LineBuffer:
    """Splitter of a byte stream into lines; it keeps the incomplete last line until the rest of it arrives."""

    def __init__(self) -> None:
        self._partial = b""

    @property
    def waiting(self) -> int:
        """The length in bytes of the incomplete last line."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Add the bytes that were read and return the lines that they complete, without the newline."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        return lines

    def flush(self) -> bytes:
        """Return the incomplete last line, empty if there is none, and forget it."""
        partial, self._partial = self._partial, b""
        return partial
