"""What the controller knows: one mutable JobState, written by the controller alone.

A *world* is what forms, restarts and ends as one: a gang, or a single replica of a role without gang (R4). An
*incident* is one cause with all the worlds that restart because of it. `invariants.py` asserts what must hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flowdist.control.deadlines import Deadlines, Due
from flowdist.control.effects import Effect, Notify, Outcome, StartReplica
from flowdist.control.events import CheckpointOffered
from flowdist.control.ids import Addresses, NodeName, ReplicaId, WorldName
from flowdist.graph import Capacity, NodeSpec, RoleGraph, RoleSpec, needed, offered, subtract

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

WorldPhase = Literal[
    "waiting",  # for gates, nodes, the join window or back-off
    "opening",  # members are chosen, the store is being bound
    "running",  # all members were told to start
    "stopping",  # all members were told to stop, to start again or to end
    "succeeded",
    "ended",
]


@dataclass(slots=True)
class Node:
    """A node that has joined. `usable` is false once it is silent, gone, left or unkillable; it may join again."""

    spec: NodeSpec
    address: str
    incarnation: int
    order: int  # ties in placement go to the lowest: known nodes as they are listed, others as they come
    usable: bool = True
    replicas: dict[ReplicaId, None] = field(default_factory=dict)  # placed here
    stuck: dict[ReplicaId, tuple[int, ...]] = field(default_factory=dict)  # outlive SIGKILL, with their GPUs


@dataclass(slots=True)
class Replica:
    """One member of a role. `node` is where its attempt runs, or where its place is kept; None when it has none."""

    id: ReplicaId
    world: WorldName
    phase: ReplicaPhase = "waiting"
    attempt: int = 0
    node: NodeName | None = None
    gpus: tuple[int, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    ports_node: NodeName | None = None  # where they were chosen: they are kept for later attempts there
    member_since: int = 0  # generation since which it has been a member without a break; 0: it is none
    step: int = -1
    order: StartReplica | None = None  # that of its present attempt
    started_ns: int = 0  # when that was given
    told: Addresses = ()  # addresses that it was started with or told since

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE_PHASES

    @property
    def is_up(self) -> bool:
        """Runs, or is about to, and nobody has told it to stop."""
        return self.phase in UP_PHASES


@dataclass(slots=True)
class World:
    """A gang, or one replica of a role without gang. `pool` is every replica that may be a member."""

    name: WorldName
    role: str
    pool: tuple[ReplicaId, ...]
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
    checkpoint: CheckpointOffered | None = None  # the latest that was accepted (R19)
    checkpoints: int = 0  # how many were accepted


@dataclass(slots=True)
class Role:
    """Bookkeeping of one role. `target` is its maximum, as the operator last set it."""

    spec: RoleSpec
    target: int
    depth: int  # in start order: a role starts after all roles of lower depth that it has a gate on
    worlds: tuple[WorldName, ...]
    replicas: tuple[ReplicaId, ...]
    charges: list[int] = field(default_factory=list)  # when the incidents that were charged had opened, in ns
    backoff_step: int = 0
    last_counted_ns: int | None = None
    addresses: dict[str, str] = field(default_factory=dict)  # by port, as last told
    complained: bool = False  # it was said that the role finds no room
    outcome: Literal["succeeded", "failed", "ignored", "stopped"] | None = None


@dataclass(slots=True)
class Incident:
    """One cause with all that restarts because of it. Free ones are membership changes (R8)."""

    number: int
    opened_ns: int
    kind: str  # a failure kind, or one of recovery.CHOSEN_KINDS
    root: str  # what failed, left or came: "trainer/0", "node1"
    root_role: str | None  # whose budget is charged; None for membership changes
    reason: str
    counted: bool
    worlds: dict[WorldName, None] = field(default_factory=dict)  # the restart set
    lost: dict[ReplicaId, str] = field(default_factory=dict)  # replicas that failed or were lost in it, and how
    restarted: dict[ReplicaId, None] = field(default_factory=dict)  # replicas that it made start a new attempt
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
    known_nodes: dict[NodeName, None]  # expected; a node that is lost is not expected until it joins again
    roles: dict[str, Role] = field(default_factory=dict)
    worlds: dict[WorldName, World] = field(default_factory=dict)
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    node_order: dict[NodeName, int] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    open: dict[int, None] = field(default_factory=dict)  # numbers of the open incidents
    due: Deadlines = field(default_factory=Deadlines)
    admitted: bool = False  # the minima of all roles have been placed once (R2)
    now: int = 0
    ending: Outcome | None = None
    ending_reason: str = ""
    ending_at_once: bool = False  # no grace and no order: a failure, or an operator in a hurry
    outcome: Outcome | None = None
    effects: list[Effect] = field(default_factory=list)  # of the event that is being handled

    def open_incidents(self) -> list[Incident]:
        return [self.incidents[number - 1] for number in self.open]

    def incident(self, number: int) -> Incident:
        return self.incidents[number - 1]

    def role_of(self, replica: ReplicaId) -> Role:
        return self.roles[replica.role]

    def replicas_of(self, role: Role) -> list[Replica]:
        return [self.replicas[replica] for replica in role.replicas]

    def worlds_of(self, role: Role) -> list[World]:
        return [self.worlds[world] for world in role.worlds]

    def members_of(self, world: World) -> list[Replica]:
        return [self.replicas[replica] for replica in world.members]

    def end_attempt(self, replica: Replica, phase: ReplicaPhase = "gone") -> None:
        """Nothing of its attempt runs any more."""
        replica.phase = phase
        self.due.clear(Due("ready", str(replica.id)))

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def notify(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        self.effects.append(Notify(text, level))

    def check(self) -> None:
        """AssertionError, with the names of what is wrong, when an invariant does not hold."""
        from flowdist.control.invariants import check_job  # circular: the invariants are about this class

        check_job(self)


def free_on(job: JobState, name: NodeName) -> Capacity:
    """What the node has left when everything placed on it, and everything stuck on it, has its share."""
    node = job.nodes[name]
    free = offered(node.spec)
    for replica in [*node.replicas, *node.stuck]:
        free = subtract(free, needed(job.role_of(replica).spec.resources))
    return free


def new_job(graph: RoleGraph, known_nodes: tuple[NodeName, ...]) -> JobState:
    """The state before the first event."""
    job = JobState(graph, dict.fromkeys(known_nodes))
    job.node_order = {name: i for i, name in enumerate(known_nodes)}
    depths: dict[str, int] = {}
    for spec in graph.roles:
        depths[spec.name] = 1 + max((depths[gate.role] for gate in spec.gates), default=-1)
        ids = tuple(ReplicaId(spec.name, index) for index in range(spec.max_replicas))
        pools = {spec.name: ids} if spec.gang else {str(replica): (replica,) for replica in ids}
        job.roles[spec.name] = Role(spec, spec.max_replicas, depths[spec.name], tuple(pools), ids)
        for name, pool in pools.items():
            job.worlds[name] = World(name, spec.name, pool)
            for replica in pool:
                job.replicas[replica] = Replica(replica, name)
    return job
