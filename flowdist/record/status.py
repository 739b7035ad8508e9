"""Status of a job at one moment, as a value that can be sent and shown: in the terminal, in --json, as metrics."""

from __future__ import annotations

from collections import Counter, deque
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from flowdist.control.fleet.values import FleetState, Member
from flowdist.control.job.facts import Incident, IncidentPhase
from flowdist.control.job.parts import PHASES, Node, Replica, ReplicaPhase, Role, RoleOutcome, Stall, World, WorldPhase
from flowdist.control.job.state import JobState
from flowdist.control.membership.versions import why_not_fresh
from flowdist.control.membership.waiting import held_up_by
from flowdist.control.protocol.effects import Decided, Level, Outcome, StartReplica
from flowdist.control.protocol.events import ReplicaProgressed, ReplicaStepped
from flowdist.control.protocol.ids import NodeName, WorldName
from flowdist.control.rules import budget_used
from flowdist.control.snapshots.keeping import newest_snapshot
from flowdist.graph import SECOND, WHOLE, VersionEdge
from flowdist.graph.role_graph import RoleKind
from flowdist.record.accounts import Bucket, Spent, goodput_of
from flowdist.record.journal import Record

JobPhase = Literal["starting", "running", "ending"] | Outcome
MemberPhase = Literal["submitting", "waiting", "starting", "joined", "leaving"]
NodePhase = Literal["up", "cordoned", "leaving", "unheard", "still", "lost", "expected"]
Count = Annotated[int, Meta(ge=0)]  # of anything, nanoseconds too
Step = Annotated[int, Meta(ge=-1)]  # -1: none yet
SAID_MAX = 50
RATE_WINDOW_NS = 30 * SECOND


class Decision(msgspec.Struct, frozen=True):
    """Decision of the controller (see `effects.Decided`), with its time in nanoseconds since the start of the job."""

    t_ns: Count
    text: str
    level: Level = "info"
    what: str = ""
    about: str = ""
    incident: int | None = None

    @classmethod
    def of(cls, t_ns: int, decided: Decided) -> Decision:
        """Return the decision with its time."""
        return cls(t_ns, decided.text, decided.level, decided.what, decided.about, decided.incident)


class RoleStatus(msgspec.Struct, frozen=True):
    """Role in numbers, at one moment.

    `target` is the present number of wanted replicas. `phases` counts the replicas in each phase, without zeros.
    `workers` counts processes that run. `generation` and `step` are the highest of the role's worlds. `steps_per_s` is
    None if unknown. `restarts` counts restarts of replicas. `charged` counts the incidents that were ever charged, and
    `used` what the role's own `budget` counts now, an incident that is still open included. Without a restart policy
    `budget` is None.
    """

    name: str
    kind: RoleKind
    outcome: RoleOutcome | None
    min_replicas: Count
    max_replicas: Count
    target: Count
    has_readiness: bool
    phases: dict[ReplicaPhase, Count]
    workers: Count
    generation: Count
    step: Step
    steps_per_s: Annotated[float, Meta(ge=0)] | None
    restarts: Count
    charged: Count
    budget: Count | None
    used: Count = 0


class WorldStatus(msgspec.Struct, frozen=True):
    """World of a gang, or of several roles; `size` is its WORLD_SIZE, 0 if it is down; `checkpoints` were accepted.

    `snapshot` is the step of the newest whole snapshot in memory (-1: none), of which each shard has `copies` at least.
    """

    name: WorldName
    phase: WorldPhase
    generation: Count
    size: Count
    checkpoints: Count
    snapshot: Step = -1
    copies: Count = 0


class ReplicaStatus(msgspec.Struct, frozen=True):
    """Replica at one moment: its phase, present attempt, node (None: it has no seat), and last step."""

    name: str
    phase: ReplicaPhase
    attempt: Count
    node: NodeName | None
    step: Step
    stalled: Stall  # which sign of life is missing; empty: none
    has_seat_to_come: bool  # the replica waits for a seat: its number is below the target of the role
    is_stopped: bool = False  # a worker of it is stopped, by SIGSTOP or a debugger


class VersionStatus(msgspec.Struct, frozen=True):
    """Versions of the role `of` that the live replicas of `role` have (R23); -1: none.

    `published` is the last one of `of`, `replicas` has those that present attempts have acknowledged, and `waiting` why
    a replica that runs is not ready with its version.
    """

    role: str
    of: str
    max_staleness: Count
    published: Step
    replicas: dict[str, Step]
    waiting: dict[str, str]


class NodeStatus(msgspec.Struct, frozen=True):
    """Node and its resources at one moment; `because` says why it is cordoned or lost, or what stands still."""

    name: NodeName
    phase: NodePhase
    because: str = ""
    replicas: Count = 0
    cpu: float = 0.0
    cpu_free: float = 0.0
    gpu: int = 0
    gpu_free: int | float = 0
    heard_s_ago: float | None = None  # only the driver knows it
    bad_gpus: tuple[str, ...] = ()  # each with its reason


class MemberStatus(msgspec.Struct, frozen=True):
    """Member of a job on an engine, by the engine's `reference`; `because`: why it waits, or is to be replaced."""

    name: str
    phase: MemberPhase
    pool: str = ""
    reference: str = ""
    host: str = ""
    because: str = ""


class IncidentStatus(msgspec.Struct, frozen=True):
    """Open incident, since `opened_ns` of the job: kind, root cause, phase, and how many worlds it still awaits."""

    number: Count
    opened_ns: Count
    phase: IncidentPhase
    kind: str
    root: str
    reason: str
    awaits: Count


class RestartCount(msgspec.Struct, frozen=True):
    """Number of restarts of a role's replicas by incidents of the kind `cause`, except for workers that stayed."""

    role: str
    cause: str
    replicas: Count


class Status(msgspec.Struct, frozen=True):
    """Status of a job: everything that is shown while it runs."""

    name: str
    run_id: str
    now_ns: Count
    epoch: Count
    state: JobPhase
    reason: str
    roles: tuple[RoleStatus, ...]
    worlds: tuple[WorldStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    nodes: tuple[NodeStatus, ...]
    incidents: dict[str, Count]  # number of incidents, by kind
    open_incidents: tuple[IncidentStatus, ...]
    restarts: tuple[RestartCount, ...]
    held_up_by: tuple[str, ...]
    said: tuple[Decision, ...]
    time_ns: dict[str, dict[Bucket, Count]] = {}  # by role and bucket; empty: unknown
    goodput: Annotated[float, Meta(ge=0, le=1)] | None = None  # of the tasks whose work is known; None: of none
    versions: tuple[VersionStatus, ...] = ()  # of roles with `versions=`
    members: tuple[
        MemberStatus, ...
    ] = ()  # of a job whose hosts an engine starts; only who can read its fleet knows them
    lost_work_ns: dict[str, Count] = {}  # by role: the time of its worlds, as in a report; empty: unknown


class RecentDecisions:
    """Last `SAID_MAX` messages of the controller, and the recent steps of each role, if it hears every line."""

    def __init__(self) -> None:
        self.said: deque[Decision] = deque(maxlen=SAID_MAX)
        self._steps: dict[str, deque[tuple[int, int]]] = {}  # by role: time and step of its most advanced replica
        self._counts: dict[str, deque[tuple[int, int]]] = {}  # the same of counted steps, for roles that report none

    def hear(self, record: Record) -> None:
        """Keep the messages and the step of the line; a start of a replica resets the rate of its role."""
        for effect in record.effects:
            if isinstance(effect, Decided):
                self.said.append(Decision.of(record.t_ns, effect))
            elif isinstance(effect, StartReplica):
                self._steps.pop(effect.replica.role, None)  # the replica resumes from an earlier step
                self._counts.pop(effect.replica.role, None)
        event = record.event
        if isinstance(event, ReplicaProgressed):
            self._counts.pop(event.replica.role, None)
            _add_step(self._steps.setdefault(event.replica.role, deque()), record.t_ns, event.step)
        elif isinstance(event, ReplicaStepped) and event.replica.role not in self._steps:
            _add_step(self._counts.setdefault(event.replica.role, deque()), record.t_ns, event.steps)

    def steps_per_s(self, role: str, now: int) -> float | None:
        """Return the role's steps per second in the last half minute, or of its last two; None: unknown."""
        steps = self._steps.get(role) or self._counts.get(role)
        if steps is None or len(steps) < 2:
            return None
        (first_ns, first), (last_ns, last) = steps[0], steps[-1]
        until = last_ns if now - last_ns < RATE_WINDOW_NS else now  # without progress the rate falls
        return (last - first) / ((until - first_ns) / SECOND) if until > first_ns else None


def _add_step(steps: deque[tuple[int, int]], t_ns: int, step: int) -> None:
    """Add a step and its time if it is further, and drop those that are too old for the rate."""
    if not steps or step > steps[-1][1]:
        steps.append((t_ns, step))
    while t_ns - steps[0][0] > RATE_WINDOW_NS and len(steps) > 2:
        steps.popleft()


def status_of(
    job: JobState,
    lately: RecentDecisions,
    run_id: str = "",
    now: int | None = None,
    spent: Spent | None = None,
    lost: dict[str, int] | None = None,
) -> Status:
    """Return the status of a job at one moment; `lately` has heard the same events, `now` is None for the last event.

    `spent` (ns by role and bucket up to `now`) and `lost` (ns of work by role) are None if unknown.
    """
    now = job.now if now is None else max(now, job.now)
    return Status(
        name=job.graph.name,
        run_id=run_id,
        now_ns=now,
        epoch=job.epoch,
        state=_state(job),
        reason=job.ending_reason,
        roles=tuple(role_status(job, role, now, lately.steps_per_s(name, now)) for name, role in job.roles.items()),
        worlds=tuple(_world(job, world) for world in job.worlds.values() if len(world.pool) > 1 or job.is_gang(world)),
        replicas=tuple(_replica(job, replica) for replica in job.replicas.values()),
        nodes=(
            *(_node(name, node) for name, node in job.nodes.items()),
            *(NodeStatus(name, "expected") for name in job.missing if name not in job.nodes),
        ),
        incidents=dict(sorted(Counter(incident.kind for incident in job.incidents).items())),
        open_incidents=tuple(_incident(incident) for incident in job.open_incidents()),
        restarts=_restarts(job),
        held_up_by=tuple(held_up_by(job)),
        said=tuple(lately.said),
        time_ns=spent or {},
        goodput=goodput_of(job.graph, spent) if spent is not None else None,
        versions=tuple(_versions(job, role, edge) for role in job.roles.values() if (edge := role.spec.versions)),
        lost_work_ns=lost or {},
    )


def members_of(fleet: FleetState) -> tuple[MemberStatus, ...]:
    """Return the members of a fleet that have not ended."""
    return tuple(
        MemberStatus(
            each.name, _member_phase(each), each.pool, each.reference, each.host, each.waits or each.leaving
        )
        for each in fleet.members
        if not each.ended
    )  # fmt: skip


def _member_phase(member: Member) -> MemberPhase:
    if not member.reference:
        return "submitting"
    if member.is_pending:
        return "waiting"
    if member.leaving:
        return "leaving"
    return "joined" if member.has_joined else "starting"


def _versions(job: JobState, role: Role, edge: VersionEdge) -> VersionStatus:
    live = [replica for replica in job.replicas_of(role) if replica.is_live]
    waiting = [replica for replica in live if replica.phase == "running"]
    return VersionStatus(
        role.spec.name,
        edge.role,
        edge.max_staleness,
        job.roles[edge.role].version,
        {str(replica.id): replica.version for replica in live},
        {str(replica.id): why for replica in waiting if (why := why_not_fresh(job, replica))},
    )


def _restarts(job: JobState) -> tuple[RestartCount, ...]:
    found = ((each.role, i.kind) for i in job.incidents for each in i.restarted if each not in i.stayed)
    counts = Counter(found)
    return tuple(RestartCount(role, cause, count) for (role, cause), count in sorted(counts.items()))


def _replica(job: JobState, replica: Replica) -> ReplicaStatus:
    has_seat_to_come = replica.phase == "waiting" and replica.id.index < job.role_of(replica.id).target
    node = job.nodes.get(replica.node or "")
    return ReplicaStatus(
        *(str(replica.id), replica.phase, replica.attempt, replica.node, replica.step, replica.stalled),
        has_seat_to_come,
        is_stopped=node is not None and replica.is_live and replica.id in node.stopped,
    )


def _state(job: JobState) -> JobPhase:
    """Return the outcome of the job, or its present phase: starting (no world has started yet), running or ending."""
    if job.outcome is not None:
        return job.outcome
    if job.ending is not None:
        return "ending"
    return "running" if any(world.generation for world in job.worlds.values()) else "starting"


def role_status(job: JobState, role: Role, now: int, steps_per_s: float | None = None) -> RoleStatus:
    """Return the status of a role at `now`. `steps_per_s` is shown unless the role is over; None: unknown."""
    spec = role.spec
    worlds = job.worlds_of(role)
    replicas = job.replicas_of(role)
    return RoleStatus(
        name=spec.name,
        kind=spec.kind,
        outcome=role.outcome,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        target=role.target,
        has_readiness=spec.has_readiness,
        phases={phase: role.count(phase) for phase in PHASES if role.count(phase)},
        workers=sum(replica.procs for replica in replicas if replica.is_live and replica.phase != "starting"),
        generation=max(world.generation for world in worlds),
        step=max(world.step for world in worlds),
        steps_per_s=steps_per_s if role.outcome is None else None,
        restarts=sum(replica.restarts for replica in replicas),
        charged=len(role.charges),
        budget=spec.restart.max_restarts if spec.restart is not None else None,
        used=budget_used(spec, role.spent, now),
    )


def _world(job: JobState, world: World) -> WorldStatus:
    running = world.members if world.phase == "running" else ()
    size = sum(job.replicas[replica].procs for replica in running)
    newest = newest_snapshot(world)
    in_memory = (-1, 0) if newest is None else (newest.step, newest.least)
    return WorldStatus(world.name, world.phase, world.generation, size, world.checkpoints, *in_memory)


def _node(name: NodeName, node: Node) -> NodeStatus:
    """Return the status of a node that has joined at some time: phase with reason, replicas, free resources."""
    phase: NodePhase = "up"
    gpu_free = sum(node.free.devices) / WHOLE
    if not node.usable:
        phase = "lost"
    elif node.stands_still:
        phase = "still"
    elif node.is_leaving:
        phase = "leaving"
    elif node.cordoned:
        phase = "cordoned"
    elif node.awaits_inventory:
        phase = "unheard"
    return NodeStatus(
        name,
        phase,
        because=(node.stands_still or node.cordoned) if node.usable else node.lost_because,
        replicas=len(node.replicas),
        cpu=node.spec.cpu,
        cpu_free=node.free.mcpu / 1000,
        gpu=node.spec.gpu,
        gpu_free=int(gpu_free) if gpu_free.is_integer() else gpu_free,
        bad_gpus=tuple(f"GPU {gpu}: {reason}" for gpu, reason in node.bad_gpus.items()),
    )


def _incident(incident: Incident) -> IncidentStatus:
    return IncidentStatus(
        incident.number,
        incident.opened_ns,
        incident.phase,
        incident.kind,
        incident.root,
        incident.reason,
        len(incident.awaited),
    )
