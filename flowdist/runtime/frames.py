"""The control channel: 4 bytes of length, then msgpack. One decoder per direction, typed, so that junk is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from flowdist.control.events import (
    CancelRequested,
    CordonRequested,
    DrainRequested,
    NodeGone,
    NodePreempted,
    ScaleRequested,
    UncordonRequested,
)
from flowdist.control.messages import ToAgent, ToController
from flowdist.runtime.disturbances import Disturb, Heal

LENGTH_MAX = 64 << 20


class Watch(msgspec.Struct, frozen=True, tag=True):
    """The supervisor's first frame: send me every line of the journal but the first `skip`."""

    skip: int = 0


Operation = (
    CancelRequested | ScaleRequested | DrainRequested | CordonRequested | UncordonRequested | NodePreempted | NodeGone
)


class Operate(msgspec.Struct, frozen=True, tag=True):
    """An event that comes from outside the nodes: the operator, or a living parent that proves a death."""

    event: Operation


class Injected(msgspec.Struct, frozen=True, tag=True):
    """A fault was carried out: a line for the journal, not for control."""

    spec: str
    target: str


class JournalLine(msgspec.Struct, frozen=True, tag=True):
    """One line of the journal, as it was written."""

    line: bytes


FromSupervisor = Watch | Operate | Injected | Disturb | Heal

_TO_CONTROLLER = msgspec.msgpack.Decoder(ToController | FromSupervisor)
_FROM_CONTROLLER = msgspec.msgpack.Decoder(ToAgent | JournalLine)
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Any) -> bytes:
    """One frame."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(4, "big") + body


async def read_to_controller(reader: asyncio.StreamReader) -> ToController | FromSupervisor | None:
    """The next frame for the controller; None at the end of the connection."""
    body = await _read(reader)
    return None if body is None else _TO_CONTROLLER.decode(body)


async def read_from_controller(reader: asyncio.StreamReader) -> ToAgent | JournalLine | None:
    """The next frame from the controller; None at the end of the connection."""
    body = await _read(reader)
    return None if body is None else _FROM_CONTROLLER.decode(body)


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        if length > LENGTH_MAX:
            return None
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
