"""Points that a campaign should reach: states of the job in which a fault hit, and what followed.

A campaign in which no node ever died during a restore has not tested restores. Each run notes which points it reached,
and when.
"""

from __future__ import annotations

from bisect import bisect_left

from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import CheckpointOffered
from flowdist.control.protocol.ids import ReplicaId, WorldName
from flowdist.faults.grammar import Fault
from flowdist.faults.kinds import having
from flowdist.graph import RoleGraph
from flowdist.graph.capacity import fits, needed, offered
from flowdist.record.journal import Record
from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.work import Work

STARTING = "failure while starting"
REFORMING = "failure during re-formation"
SAVING = "failure during a checkpoint"
RESTORING = "failure during restore"
CONTROLLER = "controller loss in recovery"
SPARE = "last spare used"
STALE = "a stale generation tried to commit"
DOUBLE = "double fault inside a recovery"
POINTS = (STARTING, REFORMING, SAVING, RESTORING, CONTROLLER, SPARE, STALE, DOUBLE)


def reachable(graph: RoleGraph, *, has_spare: bool) -> tuple[str, ...]:
    """Return the points that faults can bring about; with `has_spare`, some node stays empty without faults."""
    loads = [spec.workload for spec in graph.roles if spec.kind == "task"]
    saves = [load for load in loads if load.checkpoint_every_ns < load.steps * load.step_ns]
    not_here = {
        SAVING: not any(load.checkpoint_ns for load in saves),
        RESTORING: not any(load.restore_ns for load in saves),
        SPARE: not has_spare,
        STALE: not any(spec.simulate for spec in graph.roles),  # only user code outlives its world
    }
    return tuple(point for point in POINTS if not not_here.get(point, False))


class Orders:
    """When, in ns, each generation of each world was ordered to start. `hear` takes each decision of a run.

    Worlds have recovered from an incident when they step again with a generation that was ordered after it opened. The
    generation before may step until it has been stopped; those steps are no recovery.
    """

    def __init__(self) -> None:
        self._ordered: dict[tuple[WorldName, int], int] = {}

    def hear(self, line: Record) -> None:
        """Note the generations that a decision orders to start."""
        for effect in line.effects:
            if type(effect) is StartReplica:
                self._ordered.setdefault((effect.world, effect.generation), line.t_ns)

    def steps_again(self, world: WorldName, model: WorldModel, opened_ns: int) -> int | None:
        """Return when (ns) a world stepped again with a generation ordered at `opened_ns` or later; None: not yet."""
        first = bisect_left(model.begun, opened_ns, key=lambda generation: self._ordered[world, generation])
        return model.begins[first] if first < len(model.begins) else None


class Points:
    """Points that one run reaches. `seen` holds the time in ns at which each was reached first, by name."""

    def __init__(self, ctx: Context, work: Work, seen: dict[str, int]) -> None:
        self._ctx, self._work, self.seen = ctx, work, seen
        self.has_spare = False  # when an attempt was started last, a usable node was empty
        self._incidents = 0  # incidents at the last decision
        self._lost = 0  # replicas that were lost in open incidents then
        self._orders = Orders()

    def hit(self, fault: Fault) -> None:
        """Note the points that a fault reaches, by the state of the job just before it hits."""
        if fault.kind not in having("harms"):
            return
        job, work, now = self._ctx.job, self._work, self._ctx.queue.now
        if fault.target == "controller":
            if fault.kind == "kill" and (job.open or self._recovers()):
                self._see(CONTROLLER)
            return
        if any(model.is_restoring(now) for model in work.models.values()):
            self._see(RESTORING)
        elif job.open or self._recovers():
            self._see(REFORMING)
        elif work.phase() == "starting":
            self._see(STARTING)
        if work.is_saving:
            self._see(SAVING)

    def offered(self, replica: ReplicaId, attempt: int) -> None:
        """Note that user code of an attempt commits, which is stale if the attempt is over (R19)."""
        state = self._ctx.job.replicas[replica]
        if state.attempt != attempt or not state.is_live:
            self._see(STALE)

    def hear(self, job: JobState, line: Record) -> None:
        """Note the points that a decision reaches, of which `job` is the state afterwards."""
        if type(line.event) is CheckpointOffered:
            if not line.accepts:
                self._see(STALE)
            return
        self._orders.hear(line)
        if job.open or len(job.incidents) > self._incidents:
            self._note_incidents(job)
        for effect in line.effects:
            if type(effect) is StartReplica:
                had, self.has_spare = self.has_spare, _has_spare(job)
                if had and not self.has_spare and job.incidents:
                    self._see(SPARE)
                break

    def _note_incidents(self, job: JobState) -> None:
        """Note a double fault: while a world recovers, an incident opens, or an earlier one loses more replicas."""
        lost = sum([len(job.incidents[number - 1].lost) for number in job.open])
        fresh = job.incidents[self._incidents :]
        if fresh and self._recovers(before=fresh[0].opened_ns):
            self._see(DOUBLE)
        if not fresh and lost > self._lost and any(job.now > incident.opened_ns for incident in job.open_incidents()):
            self._see(DOUBLE)
        self._incidents, self._lost = len(job.incidents), lost

    def _recovers(self, before: int | None = None) -> bool:
        """Return whether a world of one of the last four incidents (opened before a time in ns) does not step yet."""
        job, models = self._ctx.job, self._work.models
        for incident in job.incidents[-4:]:
            if before is not None and incident.opened_ns >= before:
                continue
            worlds = [name for name in incident.worlds if name in models and job.worlds[name].live]
            if any(self._orders.steps_again(name, models[name], incident.opened_ns) is None for name in worlds):
                return True
        return False

    def _see(self, point: str) -> None:
        self.seen.setdefault(point, self._ctx.queue.now)


def _has_spare(job: JobState) -> bool:
    tasks = [needed(spec.resources) for spec in job.graph.roles if spec.kind == "task"]
    nodes = (node for node in job.nodes.values() if node.usable and not node.cordoned and not node.is_leaving)
    return any(not node.replicas and any(fits(need, offered(node.spec)) for need in tasks) for node in nodes)
