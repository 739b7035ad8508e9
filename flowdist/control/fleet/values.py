"""Values that cross the border of the fleet: pools, members as an engine shows them, nodes of the job, orders."""

from __future__ import annotations

from typing import Literal

import msgspec

from flowdist.control.job.state import JobState
from flowdist.control.protocol.ids import NodeName
from flowdist.graph import NODE_MEMBER

Phase = Literal["pending", "running", "ended"]
Cause = Literal["", "succeeded", "failed", "cancelled", "time limit", "preempted", "node failed"]


class Size(msgspec.Struct, frozen=True):
    """Size of a member: cpu in whole cores, a number of GPUs, memory in bytes (0: whatever the engine gives)."""

    cpu: int = 1
    gpu: int = 0
    memory: int = 0


class Pool(msgspec.Struct, frozen=True):
    """Members that are alike, and the roles that may run on them. The pool of all roles has an empty name."""

    name: str
    roles: tuple[str, ...]
    min_members: int
    max_members: int
    size: Size


class Launch(msgspec.Struct, frozen=True):
    """One member that an engine starts."""

    member: str  # its name, unique in its run, such as `m3`
    title: str  # the name by which people recognise it in the engine's own lists
    pool: str
    size: Size  # what it needs
    command: tuple[str, ...]  # its command line, without secrets
    avoid: tuple[str, ...] = ()  # hosts on which the engine must not start it
    logs: str = ""  # the folder for what it prints


class Seen(msgspec.Struct, frozen=True):
    """A member as its engine shows it."""

    phase: Phase  # whether it waits for a machine, runs, or is over
    host: str = ""  # the engine's name of its machine; empty: none, or not known
    cause: Cause = ""  # why it is over; empty if it is not, or the engine has forgotten
    reason: str = ""  # the engine's own words for its state, such as `TIMEOUT` or `Resources`
    is_host_drained: bool = False  # the engine wants its machine empty
    is_ending: bool = False  # it runs, and is being ended: it will be over, or wait again


class NodeSeen(msgspec.Struct, frozen=True):
    """The node of a member as the job has it. `is_leaving`: it is drained or preempted; `cordoned` says why."""

    node: NodeName
    member: str
    is_usable: bool
    is_leaving: bool = False
    cordoned: str = ""
    replicas: int = 0
    lost_because: str = ""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Order to submit the member, which `Fleet.members` has. `avoid` are hosts on which it must not start."""

    member: str
    pool: str
    avoid: tuple[str, ...] = ()


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Order to cancel a member. `because` is for people; `again`: it was ordered before, and it still exists."""

    member: str
    reference: str
    because: str
    again: bool = False


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Order to move all work off a node."""

    node: NodeName
    because: str


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Text for people about what the fleet does and why."""

    text: str
    level: Literal["event", "warning", "error"] = "event"


class GiveUp(msgspec.Struct, frozen=True, tag=True):
    """Order to end the job, because the engine gives it no members any more, or somebody has cancelled all of them."""

    because: str
    outcome: Literal["cancelled", "failed"]


Order = Submit | Cancel | Drain | Tell | GiveUp


class Member(msgspec.Struct):
    """One member. Times are in ns since the start of the job; None: it has not happened."""

    name: str
    pool: str
    avoid: tuple[str, ...] = ()
    reference: str = ""  # the engine's name of it; empty: it is being submitted
    host: str = ""
    is_pending: bool = True  # it waits for a machine, or its engine has not shown it yet
    waits: str = ""  # why it waits, in the engine's words; empty: it does not, or the engine does not say
    waits_ns: int = 0  # since when it waits for that reason
    told: tuple[str, ...] = ()  # the reasons that people were told of
    has_joined: bool = False  # it has brought a node since it last started
    lost_ns: int | None = None  # its node is lost since then, although the engine shows it running
    idle_ns: int | None = None  # its node has had no replica since then
    leaving: str = ""  # why it is to be replaced; empty: it is not
    leaving_ns: int = 0
    asked_ns: int | None = None  # when its node was last ordered to drain
    cancelled_ns: int | None = None  # when its cancellation was last ordered
    ended: str = ""  # why it does not count any more; empty: it counts
    is_gone: bool = False  # the engine has shown that nothing of it runs


class PoolState(msgspec.Struct):
    """State of one pool."""

    failures: int = 0  # members in a row that were refused, or ended before they had joined
    retry_ns: int = 0  # no member is submitted before
    unwanted: int = 0  # members that somebody has cancelled outside flowdist
    target: int = -1  # the size that the roles last asked for; -1: none yet
    scalings: int = 0  # of its roles, when `unwanted` was last cleared


class FleetState(msgspec.Struct):
    """Everything that the fleet remembers. `avoided` are hosts on which no member starts, each until a time in ns."""

    members: list[Member] = msgspec.field(default_factory=list)
    pools: dict[str, PoolState] = msgspec.field(default_factory=dict)
    avoided: dict[str, int] = msgspec.field(default_factory=dict)
    number: int = 0  # of the member that was submitted last
    endpoint: str = ""  # where the members look for the controller
    is_given_up: bool = False

    def counting(self, pool: str) -> list[Member]:
        """Return the members of a pool that have not ended, in the order of their numbers."""
        return [member for member in self.members if member.pool == pool and not member.ended]


class JobSeen(msgspec.Struct, frozen=True):
    """The job as the fleet sees it: the replicas that each role wants (0 once it is over), and the members' nodes.

    `is_ending`: no member is submitted any more. `scalings`: by role, how often the operator has scaled it.
    """

    targets: dict[str, int]
    nodes: tuple[NodeSeen, ...]
    is_ending: bool = False
    scalings: dict[str, int] = {}


def job_seen(job: JobState) -> JobSeen:
    """Return what the fleet needs to know of a job."""
    targets = {name: role.target if role.outcome is None else 0 for name, role in job.roles.items()}
    nodes = tuple(
        NodeSeen(
            name,
            member,
            node.usable,
            node.is_leaving,
            node.cordoned,
            sum(job.replicas[replica].is_live for replica in node.replicas),
            node.lost_because,
        )
        for name, node in job.nodes.items()
        if (member := dict(node.spec.labels).get(NODE_MEMBER, ""))
    )
    scalings = {name: role.scalings for name, role in job.roles.items()}
    return JobSeen(targets, nodes, job.ending is not None or job.outcome is not None, scalings)
