"""What a verb asks the controller, and what it is answered, in the frames of the control channel."""

from __future__ import annotations

import socket

import msgspec

from flowdist.record.status import Decision, Status


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants to know how the job is: Described."""


class Described(msgspec.Struct, frozen=True, tag=True):
    status: Status


class Decided(msgspec.Struct, frozen=True, tag=True):
    """What the controller said about an order of the operator, which is event `n` of the journal."""

    n: int
    said: tuple[Decision, ...]


_ANSWER = msgspec.msgpack.Decoder(Decided | Described)


def read_answer(link: socket.socket) -> Decided | Described | None:
    """The next answer, for who waits for it; None at the end of the connection. TimeoutError as the socket has it."""
    length = int.from_bytes(_read_exactly(link, 4), "big")
    body = _read_exactly(link, length) if length else b""
    return _ANSWER.decode(body) if body else None


def _read_exactly(link: socket.socket, length: int) -> bytes:
    """Nothing, if the connection ends before."""
    data = bytearray()
    while len(data) < length:
        if not (more := link.recv(min(length - len(data), 1 << 20))):
            return b""
        data += more
    return bytes(data)
