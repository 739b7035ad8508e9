"""Nodes, replicas, worlds and roles: the parts of a job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from flowdist.control.job.candidates import CandidateIndex
from flowdist.control.job.facts import Charge, PastFailure
from flowdist.control.job.phases import LIVE_PHASES, PHASES, UP_PHASES, ReplicaPhase, WorldPhase
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import CheckpointOffered
from flowdist.control.protocol.ids import Addresses, NodeName, ReplicaId, WorldName
from flowdist.graph import Gate, NodeSpec, RoleSpec
from flowdist.graph.capacity import Capacity, Need, offered


@dataclass(slots=True)
class Node:
    """A node that has joined.

    `usable` is false once the node is silent, gone, left or unkillable; it may join again. `free` is its capacity less
    that of every placed replica, of processes that outlive SIGKILL, and of bad GPUs.
    """

    spec: NodeSpec
    address: str
    incarnation: int
    order: int  # ties in placement go to the lowest: known nodes as they are listed, others as they come
    free: Capacity
    usable: bool = True
    cordoned: str = ""  # why it takes no more replicas; empty: it takes more
    habit: str = ""  # the kind of the failures that it was cordoned for
    lost_because: str = ""  # why it is not usable
    is_unheard: bool = False  # since a controller took over: what runs there is not known (R21)
    is_leaving: bool = False  # drained or preempted: what is there goes elsewhere
    replicas: dict[ReplicaId, None] = field(default_factory=dict)  # placed here
    stores: dict[WorldName, None] = field(default_factory=dict)  # worlds whose store is here
    stuck: dict[tuple[ReplicaId, int], tuple[int, ...]] = field(
        default_factory=dict
    )  # outlive SIGKILL, with their GPUs
    failures: list[PastFailure] = field(default_factory=list)
    bad_gpus: dict[int, str] = field(default_factory=dict)  # by number: why it is given to no replica


@dataclass(slots=True)
class Replica:
    """One member of a role. `node` is where its attempt runs, or where its seat is kept; None without a seat."""

    id: ReplicaId
    world: WorldName
    phase: ReplicaPhase = "waiting"
    attempt: int = 0
    procs: int = 0  # workers, in the generation that it was a member of last
    node: NodeName | None = None
    gpus: tuple[int, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    ports_node: NodeName | None = None  # where they were chosen: they are kept for later attempts there
    member_since: int = 0  # generation since which it has been a member without a break; 0: it is none
    step: int = -1
    order: StartReplica | None = None  # that of its present attempt
    started_ns: int = 0  # when that was given
    stop_grace_ns: int = 0  # of its last order to stop
    is_elastic: bool = False  # its workers can leave their generation and stay what they are
    stays: int = 0  # how many of its attempts began with suspended workers
    in_place: bool = False  # its last order to stop was to leave its generation in place
    stalled: str = ""  # what was missed of it: progress, output or start (R15)
    stalled_ns: int = 0  # when that was reported
    has_spoken: bool = False  # there was output of it before it stalled
    told: Addresses = ()  # addresses that it was started with or told since
    failures: list[PastFailure] = field(default_factory=list)

    @property
    def restarts(self) -> int:
        """Return how often its workers were started again. Workers that stay in place are not."""
        return max(0, self.attempt - 1 - self.stays)

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE_PHASES

    @property
    def is_up(self) -> bool:
        """Return whether it runs, or is about to, and has no order to stop."""
        return self.phase in UP_PHASES


@dataclass(slots=True)
class Notice:
    """Request to a world to leave some nodes in order, and the answers of its members (R14)."""

    kind: Literal["drained", "preempted"]
    nodes: dict[NodeName, None]
    because: str
    asked: dict[ReplicaId, None]  # members that have not answered yet
    steps: list[int | None] = field(default_factory=list)  # the answers
    stop_at: int | None = None  # the step that was named
    staying: dict[ReplicaId, None] = field(default_factory=dict)  # members that have not left the agreed step yet


@dataclass(slots=True)
class World:
    """The unit of restart. `pool` is every replica that may be a member, in the order of ranks."""

    name: WorldName
    roles: tuple[str, ...]
    pool: tuple[ReplicaId, ...]
    order: int
    phase: WorldPhase = "waiting"
    generation: int = 0
    members: tuple[ReplicaId, ...] = ()  # of the present generation
    store_node: NodeName | None = None
    store_port: int | None = None
    incident: int | None = None  # the open incident that it belongs to
    grow_at_once: bool = False  # the operator asked: no cool-down (R13)
    formed_ns: int | None = None  # when all members of the present generation ran
    step: int = -1  # the most advanced step ever reported
    progressed: bool = False  # a new step was reported in the present generation
    free_row: int = 0  # free incidents in a row (R8)
    retiring: Literal["", "shrunk", "ended"] = ""  # what the stop under way is for, if not for a restart
    notice: Notice | None = None
    hangs: bool = False  # it was found to hang: its stacks are written when it is stopped (R15)
    checkpoint: CheckpointOffered | None = None  # the latest that was accepted (R19)
    checkpoints: int = 0  # how many were accepted
    counts: dict[ReplicaPhase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    stalls: Counter[str] = field(default_factory=Counter)  # how many have stalled, by what was missed of them
    spoken: int = 0  # how many of those had shown output before

    @property
    def up(self) -> int:
        """Return how many of its replicas run, or are about to, and have no order to stop."""
        return self.counts["starting"] + self.counts["running"] + self.counts["ready"]

    @property
    def live(self) -> int:
        """Return how many of its replicas run, or are about to, or have not ended yet."""
        return self.up + self.counts["stopping"]

    @property
    def is_closing(self) -> bool:
        """Return whether a member has succeeded: the world neither grows nor shrinks nor moves any more (R17)."""
        return self.counts["succeeded"] > 0


@dataclass(slots=True)
class Role:
    """Bookkeeping of one role. `target` is its maximum, as the operator last set it."""

    spec: RoleSpec
    order: int
    target: int
    need: Need
    depth: int  # in start order: a role starts after all roles of lower depth that it has a gate on
    worlds: tuple[WorldName, ...]
    replicas: tuple[ReplicaId, ...]
    waiting: dict[WorldName, None]  # which of its worlds are
    leaving: dict[WorldName, None]  # which of them end for good and are not gone yet
    vacant: list[int]  # which of its replicas have no seat and may get one, in order
    candidates: CandidateIndex  # the nodes that may take one more of it
    dependents: tuple[tuple[str, Gate], ...]
    upstream: dict[str, None]  # every role that it depends on, over any number of gates
    after: dict[str, None]  # every role that has to succeed before it starts
    charges: list[Charge] = field(default_factory=list)
    spent: dict[int, list[int]] = field(default_factory=dict)  # by level: opening times of incidents that it pays for
    rooted: list[int] = field(default_factory=list)  # numbers of the incidents that it pays for
    lost_in: list[int] = field(default_factory=list)  # incidents in which one of its replicas was lost
    backoff_step: int = 0
    last_counted_ns: int | None = None
    addresses: dict[str, str] = field(default_factory=dict)  # by port, as last told
    stale: bool = False  # the addresses may be others by now
    portless: dict[ReplicaId, None] = field(default_factory=dict)  # have a seat, and ports yet to be chosen
    warning_sent: bool = False  # a notice says that the role finds no room
    is_cold: bool = False  # a notice says that its workers are not forked
    outcome: Literal["succeeded", "failed", "ignored", "stopped"] | None = None
    shown: tuple[bool, ...] = (False,) * 4  # started, ready, succeeded, lost: as its dependents know it
    has_minimum: bool = False  # as its own worlds know it
    seated: dict[ReplicaPhase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    unseated: dict[ReplicaPhase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    seats: int = 0

    def count(self, phase: ReplicaPhase) -> int:
        return self.seated[phase] + self.unseated[phase]

    @property
    def occupied(self) -> int:
        """Return how many replicas have a seat, or need none any more."""
        return self.seats + self.unseated["succeeded"] + self.unseated["ended"]


def new_node(spec: NodeSpec, address: str, incarnation: int, order: int) -> Node:
    """Return a node on which nothing is placed."""
    return Node(spec, address, incarnation, order, offered(spec))
