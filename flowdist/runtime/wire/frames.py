"""The control channel: every message between controller, agents, supervisor, other hosts and the command line.

There is one typed decoder for each direction, so that a message of the wrong direction or type is refused.
"""

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
from flowdist.runtime.wire.endpoint import DeathProof
from flowdist.runtime.wire.fault_messages import HealLink, LinkFault, RemoteFault
from flowdist.runtime.wire.framing import encode as encode
from flowdist.runtime.wire.framing import read_frame
from flowdist.runtime.wire.handshake import Refused
from flowdist.runtime.wire.status_query import Describe


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Subscription to the journal: send every line but the first `skip`, and every new one.

    `digest` is the SHA-256 of the skipped lines where they may have changed: a crash of the machine may have lost some.
    """

    skip: int = 0
    digest: bytes = b""


Operation = (
    CancelRequested | ScaleRequested | DrainRequested | CordonRequested | UncordonRequested | NodePreempted | NodeGone
)


class Operate(msgspec.Struct, frozen=True, tag=True):
    """An event that does not come from an agent: an order of the operator, or a proof of death by a living parent.

    With `answer`, the controller answers with its decisions (`Decided`).
    """

    event: Operation
    answer: bool = False


class Injected(msgspec.Struct, frozen=True, tag=True):
    """Notice that a fault was injected: the journal gets a line about it, the pure controller does not see it."""

    spec: str
    target: str


class JoinRequest(msgspec.Struct, frozen=True, tag=True):
    """Request of another host to bring a node into the job.

    `host` is the name of the host; `uid` distinguishes it from others of that name. `node` is empty at first; a host
    that connects again sends the name that it was given.
    """

    host: str
    uid: str
    node: NodeName = ""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Answer to `JoinRequest`: the name of the node, the number of its first incarnation, and the job."""

    node: NodeName
    number: int  # among the nodes of the job
    incarnation: int
    run_id: str
    graph: RoleGraph
    known_nodes: tuple[NodeName, ...]


class RemoteErrorReport(msgspec.Struct, frozen=True, tag=True):
    """Report about a failed worker on another host: its error file and the last lines of its output."""

    node: NodeName
    replica: ReplicaId
    attempt: int
    local_rank: int
    error: str
    last_lines: str


class Farewell(msgspec.Struct, frozen=True, tag=True):
    """Notice that the controller ends before the job does."""

    reason: str


class JournalLine(msgspec.Struct, frozen=True, tag=True):
    """One line of the journal, as it was written."""

    line: bytes


FaultFrame = Injected | LinkFault | HealLink | RemoteFault
HostFrame = JoinRequest | DeathProof | RemoteErrorReport
ToControllerFrame = ToController | Watch | Operate | Describe | FaultFrame | HostFrame
FromControllerFrame = ToAgent | JournalLine | Welcome | Refused | Farewell | RemoteFault

_TO_CONTROLLER = msgspec.msgpack.Decoder(ToControllerFrame)
_FROM_CONTROLLER = msgspec.msgpack.Decoder(FromControllerFrame)


async def read_to_controller(reader: asyncio.StreamReader) -> ToControllerFrame | None:
    """Return the next frame for the controller; None when the connection ends."""
    body = await read_frame(reader)
    return None if body is None else _TO_CONTROLLER.decode(body)


async def read_from_controller(reader: asyncio.StreamReader) -> FromControllerFrame | None:
    """Return the next frame from the controller; None when the connection ends."""
    body = await read_frame(reader)
    return None if body is None else _FROM_CONTROLLER.decode(body)
