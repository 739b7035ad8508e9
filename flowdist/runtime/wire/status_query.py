"""Queries of the command line to the controller, and the controller's answers, in frames of the control channel."""

from __future__ import annotations

import socket

import msgspec

from flowdist.record.status import Decision, Status
from flowdist.runtime.wire.framing import receive_frame


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Query for the status of the job; the answer is `Described`."""


class Described(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Describe`."""

    status: Status


class Decided(msgspec.Struct, frozen=True, tag=True):
    """Answer to an order of the operator, which is event `n` of the journal: what the controller decided."""

    n: int
    said: tuple[Decision, ...]


_ANSWER = msgspec.msgpack.Decoder(Decided | Described)


def read_answer(connection: socket.socket) -> Decided | Described | None:
    """Wait for the next answer and return it; None when the connection ends.

    Raises:
        TimeoutError: The timeout of the socket passed.
    """
    body = receive_frame(connection)
    return _ANSWER.decode(body) if body else None
