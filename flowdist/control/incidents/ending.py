"""End of the job: decided once; then everything is stopped; the job is over when nothing runs any more (R18).

After success, and when the operator cancels, dependents stop first, layer by layer, each with its full grace (R6).
"""

from __future__ import annotations

from collections.abc import Iterable

from flowdist.control.job.deadlines import Deadlines, Due
from flowdist.control.job.state import JobState, Replica, Role, World
from flowdist.control.placement.placement import unplace
from flowdist.control.protocol.effects import CloseStore, FinishJob, Level, Outcome, StopReplica, What
from flowdist.control.protocol.ids import ReplicaId

ENDS: dict[Outcome, tuple[What, str]] = {
    "succeeded": ("job_succeeded", "the job has succeeded"),
    "failed": ("job_failed", "the job fails"),
    "cancelled": ("job_cancelled", "the job is cancelled"),
}


def begin_ending(
    job: JobState, outcome: Outcome, reason: str, failed: str | None = None, replicas: Iterable[ReplicaId] = ()
) -> None:
    """Decide, once, that the job ends, close incidents, drop deadlines and notices; `settle_ending` stops the rest."""
    if job.ending is not None:
        return
    job.ending, job.ending_reason, job.ending_failed = outcome, reason, tuple(replicas)
    if failed is not None:
        job.roles[failed].outcome = "failed"
    job.ending_at_once = outcome == "failed"
    for number in list(job.open):
        incident = job.incident(number)
        incident.phase, incident.closed_ns, incident.result = "closed", job.now, "the job ended"
        incident.suspects.clear()
        incident.deferred.clear()
        for name in incident.worlds:
            job.worlds[name].incident = None
    job.open.clear()
    job.due = Deadlines()
    for world in job.worlds.values():
        world.notice = None
    what, words = ENDS[outcome]
    level: Level = "error" if outcome == "failed" else "info"
    job.decided(what, failed or "", f"{words}: {reason}" if reason else words, level)


def hurry(job: JobState) -> None:
    """Order every live replica to be killed without grace, in any order of roles, also one that is stopping already."""
    job.ending_at_once = True
    for replica in job.replicas.values():
        stop(job, replica, 0, again=True)


def stop(job: JobState, replica: Replica, grace_ns: int, *, again: bool = False, in_place: bool = False) -> None:
    """Set a replica that runs to "stopping" and send its agent the order; with `again`, also one that stops already.

    `grace_ns` is between SIGTERM and SIGKILL. `in_place`: the workers leave their generation and wait for the next one.
    """
    if not (replica.is_up or (again and replica.is_live)):
        return
    assert replica.node is not None
    job.set_phase(replica, "stopping")
    replica.stop_grace_ns, replica.in_place = grace_ns, in_place
    job.forget_readiness(replica)
    hangs = job.worlds[replica.world].hangs
    job.emit(StopReplica(replica.node, replica.id, replica.attempt, grace_ns, hangs, in_place))


def settle_ending(job: JobState) -> None:
    """Stop what has to stop next in a job that ends, and finish the job when nothing is live any more.

    Next are the deepest roles in start order of which a replica is live; all roles after a failure or if it is urgent.
    """
    for name in list(job.suspended):
        _end_suspended(job, job.replicas[name])
    deepest = max((depth for depth, live in job.live_at.items() if live), default=None)
    if deepest is None:
        _finish(job)
        return
    for role in sorted(job.roles.values(), key=lambda role: -role.depth):
        up = role.count("starting") + role.count("running") + role.count("ready")
        if up and (job.ending_at_once or role.depth == deepest):
            for replica in job.replicas_of(role):
                stop(job, replica, _grace(job, role))


def _end_suspended(job: JobState, replica: Replica) -> None:
    """Order the suspended workers of a replica to be killed: as "stopping" it is live, so the job is not over (R18)."""
    del job.suspended[replica.id]
    assert replica.node is not None
    job.turn(job.worlds[replica.world], "stopping")
    job.set_phase(replica, "stopping")
    replica.stop_grace_ns, replica.in_place = 0, False
    job.emit(StopReplica(replica.node, replica.id, replica.attempt, 0))


def _grace(job: JobState, role: Role) -> int:
    """Return the time (ns) between SIGTERM and SIGKILL for the role, by the outcome that is decided for the job."""
    if job.ending == "failed":
        return role.spec.stop_grace_ns
    return role.spec.drain_ns if job.ending == "succeeded" else role.spec.grace_ns


def close_store(job: JobState, world: World) -> None:
    """Order the store of the world's present generation to be closed, and forget it. No worker may use it any more."""
    if world.store_node is not None and job.nodes[world.store_node].usable:
        job.emit(CloseStore(world.store_node, world.name, world.generation))
    forget_store(job, world)


def forget_store(job: JobState, world: World) -> None:
    """Forget the node and port of a store that is ordered to close, dead, or lost with its node."""
    if world.store_node is not None:
        job.nodes[world.store_node].stores.pop(world.name, None)
    world.store_node, world.store_port = None, None


def _finish(job: JobState) -> None:
    """Close stores, free seats, and end a job of which nothing is live any more with `FinishJob` (R18)."""
    for world in job.worlds.values():
        close_store(job, world)
        world.incident = world.notice = None
        if world.phase != "succeeded":
            job.turn(world, "ended")
    for replica in job.replicas.values():
        if replica.phase != "succeeded":
            job.set_phase(replica, "ended")
        unplace(job, replica)
    for role in job.roles.values():
        role.outcome = role.outcome or "stopped"
    assert job.ending is not None
    job.outcome = job.ending
    job.emit(FinishJob(job.ending, job.ending_reason))


def judge_success(job: JobState, roles: Iterable[Role]) -> None:
    """Record which of these roles have succeeded, and end the job when every primary task has (R18)."""
    done = [role for role in roles if role.outcome is None and role.spec.kind == "task" and _is_done(job, role)]
    for role in done:
        role.outcome = "succeeded"
        job.placement_changed = True
        job.due.clear(Due("pending", role.spec.name))
        job.decided("role_succeeded", role.spec.name, f"{role.spec.name}: succeeded")
    primaries = [role for role in job.roles.values() if role.spec.primary and role.spec.kind == "task"] if done else []
    if primaries and all(role.outcome == "succeeded" for role in primaries):
        names = ", ".join(role.spec.name for role in primaries)
        begin_ending(job, "succeeded", f"every primary task has succeeded ({names})")


def _is_done(job: JobState, role: Role) -> bool:
    """Return whether a task has succeeded (R18).

    A gang has succeeded when its world has. In a role without a gang, one replica has to have succeeded, the minimum
    has to be over (succeeded or ended), and every other replica has to wait without a seat.
    """
    if role.spec.gang:
        return job.worlds[role.worlds[0]].phase == "succeeded"
    succeeded, over = role.count("succeeded"), role.count("succeeded") + role.count("ended")
    total = over + role.unseated["waiting"]
    return succeeded > 0 and over >= role.spec.min_replicas and total == len(role.replicas)
