"""The control channel: every message between controller, agents, supervisor, other hosts and the command line.

There is one typed decoder for each direction, so that a message of the wrong direction or type is refused.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Literal

import msgspec

from flowdist.control.job.facts import Operation as OperatorRequest
from flowdist.control.protocol.effects import Outcome, StartReplica
from flowdist.control.protocol.events import NodeGone, NodePreempted, ReplicaExited
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.protocol.messages import ToAgent, ToController
from flowdist.graph import RoleGraph
from flowdist.record.status import Decision, Status
from flowdist.runtime.wire.endpoint import DeathProof
from flowdist.runtime.wire.framing import encode as encode
from flowdist.runtime.wire.framing import read_frame, receive_frame
from flowdist.runtime.wire.handshake import Refused
from flowdist.runtime.wire.log_messages import LogAnswer, LogRequest

Direction = Literal["up", "down"]  # to the controller, from it


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Subscription to all lines of the journal but the first `skip`, on its host. Others get `NodeNews`."""

    skip: int = 0


Operation = OperatorRequest | NodePreempted | NodeGone


class Operate(msgspec.Struct, frozen=True, tag=True):
    """An order of the operator, or the supervisor's notice about a node; with `answer`, `Answered` follows."""

    event: Operation
    answer: bool = False


class Answered(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Operate`: the controller's decisions about the event."""

    n: int  # the number of the event in the journal
    said: tuple[Decision, ...]


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Query for the status of the job; the answer is `Described`."""


class Described(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Describe`."""

    status: Status


class Injected(msgspec.Struct, frozen=True, tag=True):
    """Notice that a fault was injected: the journal gets a line about it, the pure controller does not see it."""

    spec: str  # the fault, as the user wrote it
    target: str  # what it has hit


class LinkFault(msgspec.Struct, frozen=True, tag=True):
    """The supervisor's request to disturb, from now on, the connection between controller and agent of a node."""

    node: str
    why: str  # identifies the fault among others of the node
    cut: tuple[Direction, ...] = ()  # directions in which every frame is lost
    delay_ns: int = 0  # how much later every frame arrives
    loss: float = 0.0  # the probability that a packet is dropped


class HealLink(msgspec.Struct, frozen=True, tag=True):
    """The supervisor's request to end the LinkFault with this `node` and `why`."""

    node: str
    why: str


class RemoteFault(msgspec.Struct, frozen=True, tag=True):
    """A fault that the host of a node carries out now, on the node itself or on workers of an attempt there."""

    node: NodeName
    kind: str  # as in the fault grammar
    arg: str = ""
    duration_ns: int | None = None  # how long a node stays away or a worker is paused; None: for good
    replica: ReplicaId | None = None  # None: the node itself is hit
    attempt: int = 0
    local_rank: int | None = None  # of the only worker that is hit; None: all workers of the replica

    @property
    def target(self) -> str:
        """Return what is hit: the name of the node, or the folder of the workers, relative to the folder of the run."""
        if self.replica is None:
            return self.node
        rank = f"/{self.local_rank}" if self.local_rank is not None else ""
        return f"{self.replica}/attempt_{self.attempt}{rank}"


class Place(msgspec.Struct, frozen=True):
    """A place in the journal, behind a line: the bytes up to there, and the check of that line.

    Each check depends on all lines before it (`record.reader`): two journals with the same place agree up to there.
    """

    size: int = 0  # 0: before the first line
    check: str = ""


class JoinRequest(msgspec.Struct, frozen=True, tag=True):
    """Request of another host to bring a node into the job, whose name is made from `host`.

    A host that connects again has named its node in the handshake. It sends the `place` of its last news: after a crash
    of the controller's machine, which may lose lines, the journal can have others there.
    """

    host: str = ""
    place: Place = Place()
    shows_progress: bool = False


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Answer to `JoinRequest`; from `now_ns`, the time of the job, the host sets its clock."""

    node: NodeName
    number: int  # among the nodes of the job
    incarnation: int
    run_id: str
    graph: RoleGraph
    now_ns: int


class NodeNews(msgspec.Struct, frozen=True, tag=True):
    """Content of the journal about the node of a host, up to a place: the attempts that start there, in order.

    Any order for the node makes news, also one that starts nothing: its place shows that the host has obeyed it.
    """

    place: Place
    starts: tuple[StartReplica, ...] = ()


class Digest(msgspec.Struct, frozen=True, tag=True):
    """The controller's messages of the last second, for hosts that show the progress of the job."""

    said: tuple[Decision, ...]
    left_out: int = 0  # how many more there were


class JobOver(msgspec.Struct, frozen=True, tag=True):
    """The job has ended, at `t_ns` of its time, because of the `failed` replicas; `exits` are reports about these."""

    t_ns: int
    outcome: Outcome
    reason: str
    failed: tuple[ReplicaId, ...] = ()
    exits: tuple[ReplicaExited, ...] = ()


class RemoteErrorReport(msgspec.Struct, frozen=True, tag=True):
    """Report about a failed worker on another host: the texts of its error file and of the last lines of its stderr."""

    node: NodeName
    replica: ReplicaId
    attempt: int
    local_rank: int
    error: str  # empty: there is no error file, or it is too large
    last_lines: str


class Farewell(msgspec.Struct, frozen=True, tag=True):
    """Notice to a joined host that the controller ends before the job does, with the reason."""

    reason: str


class JournalLine(msgspec.Struct, frozen=True, tag=True):
    """One line of the journal, as it was written."""

    line: bytes


HostFrame = JoinRequest | DeathProof | RemoteErrorReport | LogAnswer
LocalFrame = Operate | Describe | Injected | LinkFault | HealLink | RemoteFault | LogRequest
ToControllerFrame = ToController | Watch | LocalFrame | HostFrame
FromControllerFrame = (
    ToAgent | JournalLine | Welcome | Refused | NodeNews | Digest | JobOver | Farewell | RemoteFault | LogRequest
)

TO_CONTROLLER: msgspec.msgpack.Decoder[ToControllerFrame] = msgspec.msgpack.Decoder(ToControllerFrame)
_FROM_CONTROLLER = msgspec.msgpack.Decoder(FromControllerFrame)
_ANSWER = msgspec.msgpack.Decoder(Answered | Described | LogAnswer)


async def read_to_controller(reader: asyncio.StreamReader) -> ToControllerFrame | None:
    """Wait for the next message to the controller; None if the connection has ended, MsgspecError for a bad frame."""
    body = await read_frame(reader)
    return None if body is None else TO_CONTROLLER.decode(body)


async def read_from_controller(reader: asyncio.StreamReader) -> FromControllerFrame | None:
    """Wait for the next message from the controller; None if the connection has ended, MsgspecError for a bad frame."""
    body = await read_frame(reader)
    return None if body is None else _FROM_CONTROLLER.decode(body)


def read_answer(connection: socket.socket) -> Answered | Described | LogAnswer | None:
    """Wait on a blocking socket for the answer to a command; None if the connection has ended.

    TimeoutError if none comes within the timeout of the socket.
    """
    body = receive_frame(connection)
    return _ANSWER.decode(body) if body else None
