"""What the controller knows: one mutable JobState, written by the controller alone.

A *world* is what forms, restarts and ends as one: a gang, several roles with one RANK space, or a single replica of a
role without gang (R4). An *incident* is one cause with all the worlds that restart because of it.

Whatever changes is *touched*, and settling visits what is touched: an event about one node costs the same among ten
nodes and among ten thousand. What would have to be counted for that is kept. `invariants.py` counts it again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from flowdist.control.job.candidates import CandidateIndex
from flowdist.control.job.deadlines import Deadlines, Due
from flowdist.control.protocol.effects import Effect, Level, Notify, Outcome, StartReplica, StopReplica
from flowdist.control.protocol.events import CheckpointOffered
from flowdist.control.protocol.ids import Addresses, NodeName, ReplicaId, WorldName
from flowdist.graph import Capacity, FailureKind, Gate, Need, NodeSpec, RoleGraph, RoleSpec, offered

ReplicaPhase = Literal[
    "waiting",  # nothing of it runs; it may be placed and start
    "starting",  # told to start, not heard of yet
    "running",
    "ready",  # runs and has passed its readiness check
    "stopping",  # told to stop, not heard of yet
    "gone",  # its attempt is over; its incident decides what comes next
    "succeeded",
    "ended",  # will not run again, without success: ignored, or stopped at the end
]
LIVE_PHASES: frozenset[str] = frozenset({"starting", "running", "ready", "stopping"})
UP_PHASES: frozenset[str] = frozenset({"starting", "running", "ready"})
OVER_PHASES: frozenset[str] = frozenset({"succeeded", "ended"})
PHASES: tuple[ReplicaPhase, ...] = (
    *("waiting", "starting", "running", "ready", "stopping", "gone", "succeeded", "ended"),
)

WorldPhase = Literal[
    "waiting",  # for gates, nodes, the join window or back-off
    "opening",  # members are chosen, the store is being bound
    "running",  # all members were told to start
    "stopping",  # all members were told to stop, to start again or to end
    "succeeded",
    "ended",
]


class Failure(NamedTuple):
    """One replica's failure, as judged. `why` is one line for people: `exit code 3: ValueError: ...`."""

    replica: ReplicaId
    kind: FailureKind
    why: str
    exit_code: int = 0
    signal: str | None = None


class PastFailure(NamedTuple):
    """A failure of a replica on a node, which may tell against the two together, or against the node (R22)."""

    at_ns: int
    kind: str
    replica: ReplicaId | None  # None: the node itself was lost
    node: NodeName


@dataclass(slots=True)
class Node:
    """A node that has joined. `usable` is false once it is silent, gone, left or unkillable; it may join again.

    `free` is what is left when everything placed on it, and everything stuck on it, has its share, without GPUs that
    are bad.
    """

    spec: NodeSpec
    address: str
    incarnation: int
    order: int  # ties in placement go to the lowest: known nodes as they are listed, others as they come
    free: Capacity
    usable: bool = True
    cordoned: str = ""  # why it takes no more; empty: it does
    habit: str = ""  # the kind of the failures that it was cordoned for
    lost_because: str = ""  # of one that is not usable, as it was told last
    is_unheard: bool = False  # since a controller took over: what runs there is not known (R21)
    is_leaving: bool = False  # drained or preempted: what is there goes elsewhere
    replicas: dict[ReplicaId, None] = field(default_factory=dict)  # placed here
    stores: dict[WorldName, None] = field(default_factory=dict)  # worlds whose store is here
    stuck: dict[tuple[ReplicaId, int], tuple[int, ...]] = field(
        default_factory=dict
    )  # outlive SIGKILL, with their GPUs
    failures: list[PastFailure] = field(default_factory=list)
    bad_gpus: dict[int, str] = field(default_factory=dict)  # by number: why nobody is given it any more


@dataclass(slots=True)
class Replica:
    """One member of a role. `node` is where its attempt runs, or where its place is kept; None when it has none."""

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
    stop_grace_ns: int = 0  # of the stop that it was told last
    is_elastic: bool = False  # its workers can leave their generation and stay what they are
    stays: int = 0  # how many of its attempts its workers came to in place
    in_place: bool = False  # that is what the stop that it was told last wants of them
    stalled: str = ""  # what was missed of it: progress, output or start (R15)
    stalled_ns: int = 0  # when that was reported
    has_spoken: bool = False  # there was output of it before it stalled
    told: Addresses = ()  # addresses that it was started with or told since
    failures: list[PastFailure] = field(default_factory=list)

    @property
    def restarts(self) -> int:
        """How often its workers were started again; who stays in place is not."""
        return max(0, self.attempt - 1 - self.stays)

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE_PHASES

    @property
    def is_up(self) -> bool:
        """Runs, or is about to, and nobody has told it to stop."""
        return self.phase in UP_PHASES


@dataclass(slots=True)
class Notice:
    """A world is to leave some nodes in order: what it was asked and has answered (R14)."""

    kind: Literal["drained", "preempted"]
    nodes: dict[NodeName, None]
    because: str
    asked: dict[ReplicaId, None]  # who has not answered yet
    steps: list[int | None] = field(default_factory=list)  # the answers
    stop_at: int | None = None  # the step that was named
    staying: dict[ReplicaId, None] = field(default_factory=dict)  # who has not left the agreed step yet


@dataclass(slots=True)
class World:
    """What restarts as one. `pool` is every replica that may be a member, in the order of ranks."""

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
        """How many of its replicas run, or are about to, and were not told to stop."""
        return self.counts["starting"] + self.counts["running"] + self.counts["ready"]

    @property
    def live(self) -> int:
        """How many of its replicas run, or are about to, or have not ended yet."""
        return self.up + self.counts["stopping"]

    @property
    def is_closing(self) -> bool:
        """A member has succeeded: it neither grows nor shrinks nor moves any more (R17)."""
        return self.counts["succeeded"] > 0


class Held(NamedTuple):
    """A failure that is not judged before it is known whether a node that may have caused it is lost (R8)."""

    failure: Failure
    reason: str  # what people are told of it
    caused: bool  # something upstream, or in the same incident, is the root cause
    is_final: bool  # it would end the job, or its role, as it seemed then
    at_ns: int


class Charge(NamedTuple):
    """An incident that a budget was charged for. `level` counts the escalations before it: 0 is the role's own."""

    opened_ns: int
    level: int


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
    spent: dict[int, list[int]] = field(default_factory=dict)  # by level: when what is, or will be, charged opened
    rooted: list[int] = field(default_factory=list)  # incidents that it is the root cause of, until they are excused
    lost_in: list[int] = field(default_factory=list)  # incidents in which one of its replicas was lost
    backoff_step: int = 0
    last_counted_ns: int | None = None
    addresses: dict[str, str] = field(default_factory=dict)  # by port, as last told
    stale: bool = False  # the addresses may be others by now
    portless: dict[ReplicaId, None] = field(default_factory=dict)  # have a seat, and ports yet to be chosen
    warning_sent: bool = False  # it was said that the role finds no room
    is_cold: bool = False  # it was said that its workers are not forked
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
        """How many replicas have a seat, or need none any more."""
        return self.seats + self.unseated["succeeded"] + self.unseated["ended"]


@dataclass(slots=True)
class Incident:
    """One cause with all that restarts because of it. Free ones are membership changes (R8)."""

    number: int
    opened_ns: int
    kind: str  # a failure kind, or one of health.CHOSEN_KINDS
    root: str  # what failed, left or came: "trainer/0", "node1"
    root_role: str | None  # whose budget is charged; None for membership changes
    reason: str
    counted: bool
    level: int = 0  # of the budget: how often it was escalated (R11)
    backoff_ns: int = 0
    worlds: dict[WorldName, None] = field(default_factory=dict)  # the restart set
    awaited: dict[WorldName, None] = field(default_factory=dict)  # of these, not known yet to be gone, or to run again
    lost: dict[ReplicaId, str] = field(default_factory=dict)  # replicas that failed or were lost in it, and how
    bereft: dict[WorldName, None] = field(default_factory=dict)  # worlds that lost a member with its node
    restarted: dict[ReplicaId, None] = field(default_factory=dict)  # replicas that it made start a new attempt
    stayed: dict[ReplicaId, None] = field(default_factory=dict)  # of these, whose workers came to it in place
    in_doubt: dict[NodeName, int] = field(
        default_factory=dict
    )  # it may follow from the loss of one of these: since when
    asked: dict[WorldName, NodeName] = field(default_factory=dict)  # worlds whose nodes are in doubt, but for this one
    held: list[Held] = field(default_factory=list)  # what is judged when these are heard, or answer; as it happened
    phase: Literal["stopping", "starting", "closed"] = "stopping"
    closed_ns: int | None = None
    charged_to: str | None = None
    result: str = ""  # "recovered", or why it did not

    @property
    def is_open(self) -> bool:
        return self.phase != "closed"


@dataclass(slots=True)
class JobState:
    """Everything. `ending` is where the job is on its way to; `outcome` is set when nothing runs any more."""

    graph: RoleGraph
    missing: dict[NodeName, None]  # nodes that are expected and have not joined; one that is lost is not expected
    roles: dict[str, Role] = field(default_factory=dict)
    worlds: dict[WorldName, World] = field(default_factory=dict)
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    node_order: dict[NodeName, int] = field(default_factory=dict)
    usable: list[tuple[int, NodeName]] = field(default_factory=list)  # nodes that are, in their order
    free: dict[NodeName, Capacity] = field(default_factory=dict)  # of nodes that take more
    suspected: dict[NodeName, None] = field(default_factory=dict)  # usable nodes that are overdue
    leaving: dict[NodeName, None] = field(default_factory=dict)  # usable nodes that are drained or preempted
    warming: dict[NodeName, None] = field(default_factory=dict)  # nodes that still import what workers will want
    candidate_indexes: list[CandidateIndex] = field(default_factory=list)  # of these nodes, by what roles ask for
    incidents: list[Incident] = field(default_factory=list)
    open: dict[int, None] = field(default_factory=dict)  # numbers of the open incidents
    due: Deadlines = field(default_factory=Deadlines)
    admitted: bool = False  # the minima of all roles have been placed once (R2)
    epoch: int = 1
    now: int = 0
    ending: Outcome | None = None
    ending_reason: str = ""
    ending_at_once: bool = False  # no grace and no order: a failure, or an operator in a hurry
    outcome: Outcome | None = None
    suspended: dict[ReplicaId, None] = field(
        default_factory=dict
    )  # have workers that wait in place for their next start
    live_at: dict[int, int] = field(default_factory=dict)  # how many replicas live, by the depth of their role
    effects: list[Effect] = field(default_factory=list)  # of the event that is being handled
    touched: dict[WorldName, None] = field(default_factory=dict)  # worlds that settling has to visit
    touched_roles: dict[str, None] = field(default_factory=dict)
    unsatisfied: dict[str, None] = field(default_factory=dict)  # roles that found no room for a replica
    placement_changed: bool = False  # a seat was given, freed or added: those who found no room may find some

    def open_incidents(self) -> list[Incident]:
        return [self.incidents[number - 1] for number in self.open]

    def incident(self, number: int) -> Incident:
        return self.incidents[number - 1]

    def role_of(self, replica: ReplicaId) -> Role:
        return self.roles[replica.role]

    def roles_of(self, world: World) -> list[Role]:
        if len(world.roles) == 1:
            return [self.roles[world.roles[0]]]
        return [self.roles[name] for name in world.roles]

    def replicas_of(self, role: Role) -> list[Replica]:
        return [self.replicas[replica] for replica in role.replicas]

    def worlds_of(self, role: Role) -> list[World]:
        return [self.worlds[world] for world in role.worlds]

    def members_of(self, world: World) -> list[Replica]:
        return [self.replicas[replica] for replica in world.members]

    def replicas_in(self, world: World) -> list[Replica]:
        """Members of it or not."""
        return [self.replicas[replica] for replica in world.pool]

    def in_order(self, worlds: Iterable[WorldName]) -> list[WorldName]:
        """The worlds in the order of the graph."""
        names = list(worlds)
        if len(names) > 1:
            names.sort(key=lambda name: self.worlds[name].order)
        return names

    def touch(self, world: World) -> None:
        """Something about the world has changed: settling visits it, and its roles."""
        self.touched[world.name] = None
        for role in world.roles:
            self.touched_roles[role] = None

    def touch_role(self, role: Role) -> None:
        """Something about the role as a whole has changed: settling visits its worlds that wait, or may grow."""
        self.touched_roles[role.spec.name] = None
        if not role.spec.gang:
            self.touched.update(role.waiting)
        elif self.worlds[role.worlds[0]].phase in ("waiting", "running"):
            self.touched[role.worlds[0]] = None

    def turn(self, world: World, phase: WorldPhase) -> None:
        """The one place where a world's phase changes."""
        for name in world.roles:
            if phase == "waiting":
                self.roles[name].waiting[world.name] = None
            else:
                self.roles[name].waiting.pop(world.name, None)
        world.phase = phase
        self.touch(world)

    def set_phase(self, replica: Replica, phase: ReplicaPhase) -> None:
        """The one place where a replica's phase changes: what is counted stays right."""
        if replica.stalled and phase not in UP_PHASES:
            self.set_stalled(replica, "")
        role, world = self.roles[replica.id.role], self.worlds[replica.world]
        counts, was = role.seated if replica.node is not None else role.unseated, replica.phase
        counts[was] -= 1
        counts[phase] += 1
        world.counts[was] -= 1
        world.counts[phase] += 1
        if replica.node is None and (phase in OVER_PHASES) != (was in OVER_PHASES):
            if phase in OVER_PHASES:
                del role.vacant[bisect_left(role.vacant, replica.id.index)]
            else:
                insort(role.vacant, replica.id.index)
        self.live_at[role.depth] += (phase in LIVE_PHASES) - (was in LIVE_PHASES)
        replica.phase = phase
        self.touch(world)

    def set_stalled(self, replica: Replica, by: str, has_spoken: bool = False) -> None:
        """The one place where it is written down that a replica has stalled, or with an empty `by` that it has not."""
        world = self.worlds[replica.world]
        if replica.stalled:
            world.stalls[replica.stalled] -= 1
            world.spoken -= replica.has_spoken
        replica.stalled, replica.has_spoken = by, has_spoken
        if by:
            world.stalls[by] += 1
            world.spoken += has_spoken

    def end_attempt(self, replica: Replica, phase: ReplicaPhase = "gone") -> None:
        """Nothing of its attempt runs any more."""
        self.set_phase(replica, phase)
        self.forget_readiness(replica)

    def forget_readiness(self, replica: Replica) -> None:
        """It need not get ready any more."""
        if self.roles[replica.id.role].spec.ready is not None:
            self.due.clear(Due("ready", str(replica.id)))

    def dismiss(self, replica: Replica) -> None:
        """Workers that wait in place end: the seat is wanted, or the replica is to begin afresh.

        Its agent starts nothing before they are gone.
        """
        if replica.id in self.suspended:
            del self.suspended[replica.id]
            assert replica.node is not None
            if self.nodes[replica.node].usable:
                self.emit(StopReplica(replica.node, replica.id, replica.attempt, 0))

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def notify(self, text: str, level: Level = "info") -> None:
        self.effects.append(Notify(text, level))

    def check(self) -> None:
        """AssertionError, with the names of what is wrong, when an invariant does not hold."""
        from flowdist.control.invariants.invariants import check_job  # circular: the invariants are about this class

        check_job(self)


def new_node(spec: NodeSpec, address: str, incarnation: int, order: int) -> Node:
    """A node on which nothing is placed."""
    return Node(spec, address, incarnation, order, offered(spec))
