"""The end of the job: it is decided once, then everything is stopped, and only when nothing runs any more is it over.

After a failure all are stopped at once. After success, and when the operator cancels, dependents go first, layer by
layer against the start order, each with its full time to end well (R6, R18).
"""

from __future__ import annotations

from flowdist.control.deadlines import Due
from flowdist.control.effects import CloseStore, FinishJob, Outcome, StopReplica
from flowdist.control.state import JobState, Replica, Role


def begin_ending(job: JobState, outcome: Outcome, reason: str) -> None:
    """The first cause wins: a job that is ending does not change its mind."""
    if job.ending is not None:
        return
    job.ending, job.ending_reason = outcome, reason
    job.ending_at_once = outcome == "failed"
    for number in list(job.open):
        incident = job.incident(number)
        incident.phase, incident.closed_ns, incident.result = "closed", job.now, "the job ended"
        for name in incident.worlds:
            job.worlds[name].incident = None
    job.open.clear()
    job.due.clear_all()
    words = {"succeeded": "the job has succeeded", "failed": "the job fails", "cancelled": "the job is cancelled"}
    job.notify(f"{words[outcome]}: {reason}" if reason else words[outcome], "error" if outcome == "failed" else "info")


def hurry(job: JobState) -> None:
    """The operator does not want to wait: SIGKILL for everything that runs."""
    job.ending_at_once = True
    for replica in job.replicas.values():
        if replica.is_live and replica.node is not None:
            replica.phase = "stopping"
            job.emit(StopReplica(replica.node, replica.id, replica.attempt, 0))


def settle_ending(job: JobState) -> None:
    """Stop what is next to stop; finish when nothing runs."""
    live = [replica for replica in job.replicas.values() if replica.is_live]
    if not live:
        _finish(job)
        return
    deepest = max(job.role_of(replica.id).depth for replica in live)
    for replica in sorted(live, key=lambda replica: -job.role_of(replica.id).depth):
        role = job.role_of(replica.id)
        if replica.is_up and (job.ending_at_once or role.depth == deepest):
            assert replica.node is not None
            replica.phase = "stopping"
            job.due.clear(Due("ready", str(replica.id)))
            job.emit(StopReplica(replica.node, replica.id, replica.attempt, _grace(job, role)))


def _grace(job: JobState, role: Role) -> int:
    if job.ending == "failed":
        return role.spec.stop_grace_ns
    return role.spec.drain_ns if job.ending == "succeeded" else role.spec.grace_ns


def _finish(job: JobState) -> None:
    for world in job.worlds.values():
        if world.store_node is not None and job.nodes[world.store_node].usable:
            job.emit(CloseStore(world.store_node, world.name, world.generation))
        world.store_node, world.store_port, world.incident = None, None, None
        if world.phase != "succeeded":
            world.phase = "ended"
    for replica in job.replicas.values():
        _end(job, replica)
    for role in job.roles.values():
        role.outcome = role.outcome or "stopped"
    assert job.ending is not None
    job.outcome = job.ending
    job.emit(FinishJob(job.ending, job.ending_reason))


def _end(job: JobState, replica: Replica) -> None:
    if replica.phase != "succeeded":
        replica.phase = "ended"
    if replica.node is not None:
        job.nodes[replica.node].replicas.pop(replica.id, None)
        replica.node, replica.gpus = None, ()


def judge_success(job: JobState) -> None:
    """Roles whose work is done have succeeded; the job has when every primary task has (R18)."""
    for role in job.roles.values():
        if role.outcome is None and role.spec.kind == "task" and _is_done(job, role):
            role.outcome = "succeeded"
            job.due.clear(Due("pending", role.spec.name))
            job.notify(f"{role.spec.name}: succeeded")
    primaries = [role for role in job.roles.values() if role.spec.primary and role.spec.kind == "task"]
    if primaries and all(role.outcome == "succeeded" for role in primaries):
        names = ", ".join(role.spec.name for role in primaries)
        begin_ending(job, "succeeded", f"every primary task has succeeded ({names})")


def _is_done(job: JobState, role: Role) -> bool:
    if role.spec.gang:
        return job.worlds[role.worlds[0]].phase == "succeeded"
    replicas = job.replicas_of(role)
    over = [replica for replica in replicas if replica.phase in ("succeeded", "ended")]
    unseated = [replica for replica in replicas if replica.phase == "waiting" and replica.node is None]
    return (
        any(replica.phase == "succeeded" for replica in over)
        and len(over) >= role.spec.min_replicas
        and len(over) + len(unseated) == len(replicas)
    )
