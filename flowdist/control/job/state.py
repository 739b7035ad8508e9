"""State of a job: one mutable `JobState`, written by the controller alone.

A *world* is what forms, restarts and ends as one: a gang, several roles with one RANK space, or a single replica of a
role without gang (R4). An *incident* is one cause with all the worlds that restart because of it.

A change *touches* worlds and roles, and settling visits only these: an event about one node costs the same in a job of
ten nodes and in one of ten thousand. Counts that this needs are kept up to date; `control/invariants` recounts them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from flowdist.control.job.deadlines import Deadlines, Due
from flowdist.control.job.facts import Charge, Fact, Failure, Incident, OldRestore, PastFailure
from flowdist.control.job.parts import (
    LIVE_PHASES,
    OVER_PHASES,
    PHASES,
    UP_PHASES,
    CandidateIndex,
    Node,
    Notice,
    Replica,
    ReplicaPhase,
    Role,
    Snapshot,
    Stall,
    World,
    WorldPhase,
)
from flowdist.control.protocol.effects import Decided, Effect, Level, Outcome, StopReplica, What
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.graph import FailureKind, RoleGraph
from flowdist.graph.capacity import Capacity

__all__ = [  # re-exports the other types of the state, so that most modules import from here alone
    "OVER_PHASES", "PHASES", "Charge", "Failure", "Incident", "JobState", "Node", "Notice", "PastFailure", "Replica",
    "ReplicaPhase", "Role", "Snapshot", "World", "WorldPhase",
]  # fmt: skip


@dataclass(slots=True)
class JobState:
    """Everything that the controller knows of a job: `ending` is its outcome once decided, `outcome` at the end."""

    graph: RoleGraph
    missing: dict[NodeName, None]  # nodes that are expected and have not joined; one that is lost is not expected
    roles: dict[str, Role] = field(default_factory=dict)
    worlds: dict[WorldName, World] = field(default_factory=dict)
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    node_order: dict[NodeName, int] = field(default_factory=dict)
    usable: list[tuple[int, NodeName]] = field(default_factory=list)  # order and name of each usable node, sorted
    free: dict[NodeName, Capacity] = field(default_factory=dict)  # of each usable node that is not cordoned
    suspected: dict[NodeName, None] = field(default_factory=dict)  # usable nodes whose heartbeats are overdue
    leaving: dict[NodeName, None] = field(default_factory=dict)  # usable nodes that are drained or preempted
    warming: dict[NodeName, None] = field(default_factory=dict)  # nodes that still import the modules of the workers
    candidate_indexes: list[CandidateIndex] = field(default_factory=list)  # one for each need and placement of a role
    incidents: list[Incident] = field(default_factory=list)
    open: dict[int, None] = field(default_factory=dict)  # numbers of the open incidents
    restores: list[OldRestore] = field(default_factory=list)  # generations that went back behind their checkpoint
    due: Deadlines = field(default_factory=Deadlines)
    admitted: bool = False  # the minima of all roles have been placed once (R2)
    epoch: int = 1
    now: int = 0
    ending: Outcome | None = None
    ending_reason: str = ""
    ending_failed: tuple[ReplicaId, ...] = ()  # replicas whose failure ends the job
    ending_at_once: bool = False  # all roles stop at once: after a failure, or if the operator cancels at once
    outcome: Outcome | None = None
    suspended: dict[ReplicaId, None] = field(default_factory=dict)  # replicas whose workers wait for their next start
    live_at: dict[int, int] = field(default_factory=dict)  # how many replicas live, by the depth of their role
    facts: list[Fact] = field(default_factory=list)  # recorded and not judged yet, in order
    effects: list[Effect] = field(default_factory=list)  # of the event that is being handled
    touched: dict[WorldName, None] = field(default_factory=dict)  # worlds that settling has to visit
    touched_roles: dict[str, None] = field(default_factory=dict)
    unsatisfied: dict[str, None] = field(default_factory=dict)  # roles that found no room for a replica
    placement_changed: bool = False  # a seat was given, freed or added: unsatisfied roles may find room

    def open_incidents(self) -> list[Incident]:
        """Return the open incidents, in the order in which they opened."""
        return [self.incidents[number - 1] for number in self.open]

    def incident(self, number: int) -> Incident:
        """Return the incident of that number, open or closed. The first incident has number 1."""
        return self.incidents[number - 1]

    def role_of(self, replica: ReplicaId) -> Role:
        return self.roles[replica.role]

    def roles_of(self, world: World) -> list[Role]:
        if len(world.roles) == 1:
            return [self.roles[world.roles[0]]]
        return [self.roles[name] for name in world.roles]

    def is_gang(self, world: World) -> bool:
        """Return whether the replicas of the world share one generation (R4)."""
        return self.roles[world.roles[0]].spec.gang

    def replicas_of(self, role: Role) -> list[Replica]:
        """Return all replicas of the role, with a seat or without, in the order of their indexes."""
        return [self.replicas[replica] for replica in role.replicas]

    def worlds_of(self, role: Role) -> list[World]:
        return [self.worlds[world] for world in role.worlds]

    def members_of(self, world: World) -> list[Replica]:
        """Return the members of the world's present or last generation, in the order of their ranks."""
        return [self.replicas[replica] for replica in world.members]

    def in_order(self, worlds: Iterable[WorldName]) -> list[WorldName]:
        """Return the names of these worlds in the order of the graph."""
        names = list(worlds)
        if len(names) > 1:
            names.sort(key=lambda name: self.worlds[name].order)
        return names

    def touch(self, world: World) -> None:
        """Have settling visit the world and its roles, because something about the world has changed."""
        self.touched[world.name] = None
        for role in world.roles:
            self.touched_roles[role] = None

    def touch_role(self, role: Role) -> None:
        """Have settling visit the role, and those of its worlds that wait or may grow, because the role has changed."""
        self.touched_roles[role.spec.name] = None
        if not role.spec.gang:
            self.touched.update(role.waiting)
        elif self.worlds[role.worlds[0]].phase in ("waiting", "running"):
            self.touched[role.worlds[0]] = None

    def turn(self, world: World, phase: WorldPhase) -> None:
        """Set the phase of a world, renew the lists of waiting worlds, and touch the world. No other function does."""
        for name in world.roles:
            if phase == "waiting":
                self.roles[name].waiting[world.name] = None
            else:
                self.roles[name].waiting.pop(world.name, None)
        world.phase = phase
        self.touch(world)

    def set_phase(self, replica: Replica, phase: ReplicaPhase) -> None:
        """Set the phase of a replica, renew all counts that depend on it, and touch its world; none else does."""
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

    def set_stalled(self, replica: Replica, by: Stall) -> None:
        """Record what is missing ("progress", "output", "start"; empty: nothing); no other function does."""
        world = self.worlds[replica.world]
        if replica.stalled:
            world.stalls[replica.stalled] -= 1
        replica.stalled = by
        if by:
            world.stalls[by] += 1

    def end_attempt(self, replica: Replica, phase: ReplicaPhase = "gone") -> None:
        """Record that nothing of the replica's attempt runs: set its phase, and drop its readiness deadline."""
        self.set_phase(replica, phase)
        self.forget_readiness(replica)

    def forget_readiness(self, replica: Replica) -> None:
        """Clear the deadline by which the replica has to be ready, if there is one."""
        if self.roles[replica.id.role].spec.has_readiness:
            self.due.clear(Due("ready", str(replica.id)))

    def dismiss(self, replica: Replica) -> None:
        """Order the suspended workers of the replica to be killed; do nothing if it has none.

        Callers need the seat for something else, or will start the replica with new processes. No order is sent to a
        lost node. The agent starts nothing on the node before these workers have ended.
        """
        if replica.id in self.suspended:
            del self.suspended[replica.id]
            assert replica.node is not None
            if self.nodes[replica.node].usable:
                self.emit(StopReplica(replica.node, replica.id, replica.attempt, 0))

    def note_failure(
        self,
        replica: Replica,
        kind: FailureKind,
        why: str,
        *,
        exit_code: int = 0,
        signal: str | None = None,
        was_told: bool = False,
        has_timed_out: bool = False,
        world: WorldName = "",
    ) -> None:
        """Record that a replica failed by itself, now, as a fact to be judged; its unbroken membership ends.

        `why` is one line for the user. `was_told`: it had an order to stop. `has_timed_out`: its process group gave up
        a collective. `world` is its world, if it is not known which of several members has failed.
        """
        replica.member_since = 0
        self.facts.append(
            Failure(replica.id, kind, why, exit_code, signal, replica.node, self.now, was_told, has_timed_out, world)
        )

    def note(self, what: What, about: NodeName | ReplicaId | str, text: str, level: Level = "info") -> None:
        """Record what has happened in words for the user, which are shown when the fact is judged. See `Decided`."""
        self.facts.append(Decided(what, str(about), text, level))

    def emit(self, effect: Effect) -> None:
        """Add an effect to those that the event at hand leads to."""
        self.effects.append(effect)

    def decided(
        self,
        what: What,
        about: NodeName | ReplicaId | str,
        text: str,
        level: Level = "info",
        *,
        incident: Incident | None = None,
    ) -> None:
        """Add a decision to the effects of the event at hand; `Decided` explains the arguments."""
        self.effects.append(Decided(what, str(about), text, level, None if incident is None else incident.number))
