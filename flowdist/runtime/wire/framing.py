"""Frames: 4 bytes of length, big-endian, then one msgpack message.

There is one format and three ways to read it: from an asyncio stream, from a blocking socket, and from chunks of bytes
as a selector delivers them. The module does not import asyncio, because guardians and fork servers use it.
"""

from __future__ import annotations

import socket
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


async def read_frame(reader: asyncio.StreamReader, length_max: int = LENGTH_MAX) -> bytes | None:
    """Return the body of the next frame; None if the connection has ended, or if the body has over `length_max` bytes.

    A frame that is too long is not read: the caller has to close the connection.
    """
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        return await reader.readexactly(length) if length <= length_max else None
    except (EOFError, OSError):
        return None


def receive_frame(connection: socket.socket, length_max: int = LENGTH_MAX) -> bytes | None:
    """Wait for the next frame from a blocking socket and return its body.

    Returns:
        The body; None if the connection has ended, or if the body has over `length_max` bytes.

    Raises:
        OSError: The socket failed, or its timeout passed.
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
