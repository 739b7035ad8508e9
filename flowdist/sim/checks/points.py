"""Points that a campaign should have reached: in what state of the job faults hit, and what followed from them.

A campaign in which no node ever died during a restore has not tested restores. Each run notes which it saw, and when.
"""

from __future__ import annotations

from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import AnswerCheckpoint, StartReplica
from flowdist.control.protocol.events import CheckpointOffered
from flowdist.control.protocol.ids import ReplicaId
from flowdist.faults.grammar import Fault
from flowdist.graph import RoleGraph, fits, needed, offered
from flowdist.record.journal import Record
from flowdist.sim.engine.context import Context
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

HARM = (
    "kill",
    "exit",
    "oom",
    "hang",
    "lost",
    "leave",
    "preempt",
    "pause",
    "partition",
    "cut-to",
)  # others only disturb


def reachable(graph: RoleGraph, *, has_spare: bool) -> tuple[str, ...]:
    """Those that faults can bring about in this topology. `has_spare`: without a fault it leaves a node for another."""
    loads = [spec.workload for spec in graph.roles if spec.kind == "task"]
    saves = [load for load in loads if load.checkpoint_every_ns < load.steps * load.step_ns]
    not_here = {
        SAVING: not any(load.checkpoint_ns for load in saves),
        RESTORING: not any(load.restore_ns for load in saves),
        SPARE: not has_spare,
        STALE: not any(spec.simulate for spec in graph.roles),  # only user code outlives its world
    }
    return tuple(point for point in POINTS if not not_here.get(point, False))


class Points:
    """Of one run. `seen` has the time, in ns, at which each was reached first."""

    def __init__(self, ctx: Context, work: Work, seen: dict[str, int]) -> None:
        self._ctx, self._work, self.seen = ctx, work, seen
        self.has_spare = False  # at the last start there was one
        self._incidents = 0
        self._lost = 0

    def hit(self, fault: Fault) -> None:
        """A fault has found its target."""
        if fault.kind not in HARM:
            return
        job, work, now = self._ctx.job, self._work, self._ctx.queue.now
        if fault.target == "controller":
            if fault.kind == "kill" and (job.open or self._recovers()):
                self._see(CONTROLLER)
            return
        models = work.models.values()
        restores = any(model.is_restoring(now) for model in models)
        if restores:
            self._see(RESTORING)
        elif job.open or self._recovers():
            self._see(REFORMING)
        elif work.phase() == "starting":
            self._see(STARTING)
        if work.is_saving:
            self._see(SAVING)

    def offered(self, replica: ReplicaId, attempt: int) -> None:
        """User code commits. Of an attempt that is over, as control knows, it is refused, or not even heard (R19)."""
        state = self._ctx.job.replicas[replica]
        if state.attempt != attempt or not state.is_live:
            self._see(STALE)

    def hear(self, job: JobState, line: Record) -> None:
        """Control has decided something."""
        if type(line.event) is CheckpointOffered:
            if not any(isinstance(effect, AnswerCheckpoint) and effect.accepted for effect in line.effects):
                self._see(STALE)
            return
        if job.open or len(job.incidents) > self._incidents:
            self._note_incidents(job)
        for effect in line.effects:
            if type(effect) is StartReplica:
                had, self.has_spare = self.has_spare, _has_spare(job)
                if had and not self.has_spare and job.incidents:
                    self._see(SPARE)
                break

    def _note_incidents(self, job: JobState) -> None:
        """One that opens, or loses more, while worlds have not come back from what was before is the second of two."""
        lost = 0
        for number in job.open:
            lost += len(job.incidents[number - 1].lost)
        fresh = job.incidents[self._incidents :]
        if fresh and self._recovers(before=fresh[0].opened_ns):
            self._see(DOUBLE)
        if not fresh and lost > self._lost and any(job.now > incident.opened_ns for incident in job.open_incidents()):
            self._see(DOUBLE)
        self._incidents, self._lost = len(job.incidents), lost

    def _recovers(self, before: int | None = None) -> bool:
        """A world of the incidents so far, or of those before that time, has not begun to step again."""
        job, models = self._ctx.job, self._work.models
        for incident in job.incidents[-4:]:
            if before is not None and incident.opened_ns >= before:
                continue
            worlds = [models[name] for name in incident.worlds if name in models and job.worlds[name].live]
            if any(not model.begins or model.begins[-1] < incident.opened_ns for model in worlds):
                return True
        return False

    def _see(self, point: str) -> None:
        self.seen.setdefault(point, self._ctx.queue.now)


def _has_spare(job: JobState) -> bool:
    """A node on which nothing is, that takes a replica of some task."""
    tasks = [needed(spec.resources) for spec in job.graph.roles if spec.kind == "task"]
    nodes = (node for node in job.nodes.values() if node.usable and not node.cordoned and not node.is_leaving)
    return any(not node.replicas and any(fits(need, offered(node.spec)) for need in tasks) for node in nodes)
