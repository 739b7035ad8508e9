"""The control channel: 4 bytes of length, then msgpack. One decoder per direction, typed, so that junk is refused."""

from __future__ import annotations

import asyncio

import msgspec

from flowdist.control.protocol.events import (
    CancelRequested,
    CordonRequested,
    DrainRequested,
    NodeGone,
    NodePreempted,
    ScaleRequested,
    UncordonRequested,
)
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.protocol.messages import ToAgent, ToController
from flowdist.graph import RoleGraph
from flowdist.runtime.injection.link_faults import HealLink, LinkFault
from flowdist.runtime.injection.remote_faults import RemoteFault
from flowdist.runtime.wire.endpoint import DeathProof
from flowdist.runtime.wire.handshake import Refused
from flowdist.runtime.wire.handshake import encode as encode
from flowdist.runtime.wire.status_query import Describe

LENGTH_MAX = 64 << 20


class Watch(msgspec.Struct, frozen=True, tag=True):
    """The supervisor's first frame: send me every line of the journal but the first `skip`.

    `digest` is the SHA-256 of these lines, where they may be others by now: a crash of the machine may have taken some.
    """

    skip: int = 0
    digest: bytes = b""


Operation = (
    CancelRequested | ScaleRequested | DrainRequested | CordonRequested | UncordonRequested | NodePreempted | NodeGone
)


class Operate(msgspec.Struct, frozen=True, tag=True):
    """An event that comes from outside the nodes: the operator, or a living parent that proves a death.

    With `answer`, what was decided is answered: Decided.
    """

    event: Operation
    answer: bool = False


class Injected(msgspec.Struct, frozen=True, tag=True):
    """A fault was carried out: a line for the journal, not for control."""

    spec: str
    target: str


class JoinRequest(msgspec.Struct, frozen=True, tag=True):
    """Another host brings a node: `host` is its name, `uid` tells it apart from others of that name.

    `node` is set when it comes again and has its name already.
    """

    host: str
    uid: str
    node: NodeName = ""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The answer: how the node is called, the number of its first incarnation, and what the job is."""

    node: NodeName
    number: int  # among the nodes of the job
    incarnation: int
    run_id: str
    graph: RoleGraph
    known_nodes: tuple[NodeName, ...]


class RemoteErrorReport(msgspec.Struct, frozen=True, tag=True):
    """What a worker on another host has left of itself before it failed: its error file and its last lines."""

    node: NodeName
    replica: ReplicaId
    attempt: int
    local_rank: int
    error: str
    last_lines: str


class Farewell(msgspec.Struct, frozen=True, tag=True):
    """The controller ends before the job does."""

    reason: str


class JournalLine(msgspec.Struct, frozen=True, tag=True):
    """One line of the journal, as it was written."""

    line: bytes


ToControllerFrame = (
    ToController
    | Watch
    | Operate
    | Injected
    | LinkFault
    | HealLink
    | Describe
    | JoinRequest
    | DeathProof
    | RemoteErrorReport
    | RemoteFault
)
FromControllerFrame = ToAgent | JournalLine | Welcome | Refused | Farewell | RemoteFault

_TO_CONTROLLER = msgspec.msgpack.Decoder(ToControllerFrame)
_FROM_CONTROLLER = msgspec.msgpack.Decoder(FromControllerFrame)


async def read_to_controller(reader: asyncio.StreamReader) -> ToControllerFrame | None:
    """The next frame for the controller; None at the end of the connection."""
    body = await read_frame(reader)
    return None if body is None else _TO_CONTROLLER.decode(body)


async def read_from_controller(reader: asyncio.StreamReader) -> FromControllerFrame | None:
    """The next frame from the controller; None at the end of the connection."""
    body = await read_frame(reader)
    return None if body is None else _FROM_CONTROLLER.decode(body)


async def read_frame(reader: asyncio.StreamReader, length_max: int = LENGTH_MAX) -> bytes | None:
    """What is in the next frame; None at the end of the connection, and for one that is longer than that."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(length) if length <= length_max else None
    except (asyncio.IncompleteReadError, OSError):
        return None
