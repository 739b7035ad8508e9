"""Worlds that end outside of an incident: a replica is ignored, a role waits in vain, or the operator scales down."""

from __future__ import annotations

from typing import Literal

from flowdist.control.incidents.ending import begin_ending, stop
from flowdist.control.incidents.recovery import drop_notice, leave_incident
from flowdist.control.job.state import JobState, Replica, World
from flowdist.control.placement.placement import unplace


def ignore(job: JobState, replica: Replica) -> None:
    """End a failed replica for good, because a rule or a used-up budget says "ignore" (R9); a gang ends with it.

    Otherwise the job fails if a primary task falls below its minimum; others are "ignored" with their last replica.
    """
    role = job.role_of(replica.id)
    world = job.worlds[replica.world]
    for mate in job.roles_of(world) if role.spec.gang else ():
        mate.outcome = "ignored"
        job.placement_changed = True
    retire(job, world, "ended", role.spec.stop_grace_ns)
    if role.spec.gang:
        return
    left = len(role.worlds) - role.count("ended") - len(role.leaving)
    if left >= role.spec.min_replicas:
        return
    if role.spec.primary and role.spec.kind == "task":
        reason = f"role {role.spec.name} has lost {replica.id} and is below its minimum"
        begin_ending(job, "failed", reason, role.spec.name, [replica.id])
    elif not left:
        role.outcome = "ignored"
        job.placement_changed = True


def end_ignored(job: JobState, world: World, gate: str) -> None:
    """End the waiting worlds of roles whose gate never opens; fail the job if one of them is a primary task (R9)."""
    names = ", ".join(world.roles)
    reason = f"{names} waits for {gate}, which was ignored and does not run again"
    roles = job.roles_of(world)
    if any(role.spec.primary and role.spec.kind == "task" for role in roles):
        begin_ending(job, "failed", reason)
        return
    job.decided("role_ended", roles[0].spec.name, f"{reason}; it is ended, too", "warning")
    for role in roles:
        for each in job.worlds_of(role):
            if each.phase == "waiting":
                _end_waiting(job, each)
        if all(each.phase == "ended" for each in job.worlds_of(role)):  # a world that still runs may finish its work
            role.outcome = "ignored"
    job.placement_changed = True


def _end_waiting(job: JobState, world: World) -> None:
    leave_incident(job, world)
    for replica in (job.replicas[name] for name in world.pool):
        job.set_phase(replica, "ended")
        unplace(job, replica)
    job.turn(world, "ended")


def retire(job: JobState, world: World, how: Literal["shrunk", "ended"], grace_ns: int) -> None:
    """Stop a world; `advance` then ends it for good ("ended"), or lets it wait to be scaled up again ("shrunk")."""
    leave_incident(job, world)
    world.retiring = how
    for role in job.roles_of(world):
        if how == "ended":
            role.leaving[world.name] = None
        else:
            role.leaving.pop(world.name, None)
    drop_notice(job, world)
    job.turn(world, "stopping")
    for replica in job.members_of(world):
        stop(job, replica, grace_ns)
