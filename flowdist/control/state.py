"""What the controller knows: one mutable JobState, written by the controller alone.

A *world* is what forms, restarts and ends as one: a gang, or a single replica of a role without gang (R4). An
*incident* is one cause with all the worlds that restart because of it. `invariants.py` asserts what must hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flowdist.control.effects import Outcome
from flowdist.control.events import CheckpointOffered
from flowdist.control.ids import Addresses, NodeName, ReplicaId, WorldName
from flowdist.graph import Capacity, NodeSpec, RoleGraph, RoleSpec

ReplicaPhase = Literal[
    "waiting",  # nothing of it runs; it may be placed
    "starting",  # told to start, not heard of yet
    "running",
    "ready",  # runs and has passed its readiness check
    "stopping",  # told to stop, not heard of yet
    "gone",  # its attempt is over, the next has not begun
    "succeeded",
    "ended",  # will not run again, without success: ignored, stopped at the end, or shrunk away
]
LIVE_PHASES: frozenset[str] = frozenset({"starting", "running", "ready", "stopping"})

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
    joined: int  # order of joining: ties in placement go to the lowest
    usable: bool = True
    stuck_gpus: tuple[int, ...] = ()  # held by a worker that outlives SIGKILL
    stuck: Capacity = Capacity(0, 0, 0)


@dataclass(slots=True)
class Replica:
    """One member of a role. `node` is where its attempt runs, or where its place is kept; None when it has none."""

    id: ReplicaId
    world: WorldName
    phase: ReplicaPhase = "waiting"
    attempt: int = 0
    node: NodeName | None = None
    last_node: NodeName | None = None
    gpus: tuple[int, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    member_since: int = 0  # generation of its world since which it has been a member without a break
    step: int = -1
    ready_by_ns: int | None = None
    told: Addresses = ()  # addresses that it was started with or told since

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE_PHASES


@dataclass(slots=True)
class World:
    """A gang, or one replica of a role without gang."""

    name: WorldName
    role: str
    phase: WorldPhase = "waiting"
    generation: int = 0
    members: tuple[ReplicaId, ...] = ()  # of the present generation
    store_node: NodeName | None = None
    store_port: int | None = None
    incident: int | None = None  # the open incident that it belongs to
    not_before_ns: int | None = None  # back-off
    window_ends_ns: int | None = None  # join window (R2)
    pending_until_ns: int | None = None  # pending timeout (R12)
    cooldown_until_ns: int | None = None  # before growing (R13)
    finish_by_ns: int | None = None  # R17
    formed_ns: int | None = None  # when the present generation ran in full
    progressed: bool = False  # a new step was reported in the present generation
    step: int = -1  # the most advanced step ever reported
    free_row: int = 0  # free incidents in a row (R8)
    gone_for_good: bool = False  # the stop under way is its last


@dataclass(slots=True)
class Role:
    """Bookkeeping of one role. `target` is its maximum, as the operator last set it."""

    spec: RoleSpec
    target: int
    charges: list[int] = field(default_factory=list)  # when counted incidents were charged, in ns
    charged: int = 0  # how many ever
    backoff_step: int = 0
    last_counted_ns: int | None = None
    outcome: Literal["succeeded", "failed", "ignored", "stopped"] | None = None
    checkpoint: CheckpointOffered | None = None  # the latest that was accepted


@dataclass(slots=True)
class Incident:
    """One cause with all that restarts because of it. Free ones are membership changes (R8)."""

    number: int
    opened_ns: int
    kind: str  # a failure kind, or "joined", "scaled"
    root: str  # what failed, left or came: "trainer/0", "node1"
    root_role: str | None  # whose budget is charged; None for membership changes
    reason: str
    counted: bool
    worlds: dict[WorldName, None] = field(default_factory=dict)  # the restart set
    lost: dict[ReplicaId, None] = field(default_factory=dict)  # replicas that failed or were lost in it
    restarted: dict[ReplicaId, None] = field(default_factory=dict)  # replicas that it made start a new attempt
    backoff_until_ns: int | None = None
    phase: Literal["stopping", "starting", "closed"] = "stopping"
    closed_ns: int | None = None
    charged_to: str | None = None
    result: str = ""  # "recovered", or why it did not


@dataclass(slots=True)
class JobState:
    """Everything. `ending` is the outcome that the job is on its way to; `outcome` is set when nothing runs any more."""

    graph: RoleGraph
    known_nodes: dict[NodeName, None]  # expected to join; a node that is lost is not expected until it joins again
    roles: dict[str, Role] = field(default_factory=dict)
    worlds: dict[WorldName, World] = field(default_factory=dict)
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    admitted: bool = False  # the minima of all roles have been placed once (R2)
    admission_until_ns: int | None = None
    now: int = 0
    ending: Outcome | None = None
    ending_reason: str = ""
    outcome: Outcome | None = None

    def open_incidents(self) -> list[Incident]:
        return [incident for incident in self.incidents if incident.phase != "closed"]

    def worlds_of(self, role: str) -> list[World]:
        return [world for world in self.worlds.values() if world.role == role]

    def check(self) -> None:
        """AssertionError, with the names of what is wrong, when an invariant does not hold."""
        from flowdist.control.invariants import check_job  # circular: the invariants are about this class

        check_job(self)
