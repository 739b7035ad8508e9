"""Requests of the operator: scale, drain, cordon, uncordon and cancel. A refusal is a notice with the reason."""

from __future__ import annotations

from typing import assert_never

from flowdist.control.incidents.ending import begin_ending, hurry
from flowdist.control.incidents.retiring import retire
from flowdist.control.job.facts import Change, Operation
from flowdist.control.job.state import JobState, Role, World
from flowdist.control.membership.drain import drain
from flowdist.control.membership.formation import abandon_openings
from flowdist.control.placement.bad_nodes import cordon, uncordon
from flowdist.control.placement.placement import unplace
from flowdist.control.protocol import events as ev
from flowdist.graph import RoleSpec
from flowdist.graph.sizes import spelled


def apply_operation(job: JobState, event: Operation) -> None:
    """Carry out a request of the operator, or notify the operator of why it is refused."""
    match event:
        case ev.ScaleRequested():
            _scale(job, event)
        case ev.CancelRequested():
            begin_ending(job, event.outcome, event.reason)
            if event.now:
                hurry(job)
        case ev.DrainRequested():
            drain(job, event)
        case ev.CordonRequested() | ev.UncordonRequested():
            node = job.nodes.get(event.node)
            if node is None:
                job.decided("cordon_refused", event.node, f"{event.node} is no node of the job", "refused")
            elif isinstance(event, ev.UncordonRequested):
                uncordon(job, event.node)
            elif not node.cordoned:
                cordon(job, event.node, "by the operator")
        case _:
            assert_never(event)


def _scale(job: JobState, event: ev.ScaleRequested) -> None:
    """Set the number of replicas that a role aims for, or refuse; without a gang the highest indexes stop."""
    role = job.roles.get(event.role)
    if role is None or job.ending is not None or role.outcome is not None:
        job.decided(
            "scale_refused", event.role, f"scale {event.role}={event.replicas} is refused: no such role runs", "refused"
        )
        return
    if why := why_no_size(role.spec, event.replicas):
        job.decided("scale_refused", event.role, f"scale {event.role}={event.replicas} is refused: {why}", "refused")
        return
    role.target, role.scalings = event.replicas, role.scalings + 1
    job.decided(
        "role_scaled",
        event.role,
        f"{event.role}: scaled to {event.replicas} replica{'s' * (event.replicas != 1)} by the operator",
    )
    if role.spec.gang:
        _scale_gang(job, job.worlds[role.worlds[0]], role)
        return
    job.touch_role(role)
    running = [replica for replica in job.replicas_of(role) if replica.node is not None]
    for replica in running[event.replicas :]:
        retire(job, job.worlds[replica.world], "shrunk", role.spec.grace_ns)
        if not replica.is_live and replica.phase in ("waiting", "gone"):
            unplace(job, replica)


def why_no_size(role: RoleSpec, replicas: int) -> str:
    """Return why the role cannot have so many replicas, as text for the operator; empty if it can."""
    if not role.min_replicas <= replicas <= role.max_replicas:
        return f"{role.name} has replicas={role.min_replicas}:{role.max_replicas}"
    return f"its mesh {spelled(role.parallel)} needs multiples of {role.step}" if replicas % role.step else ""


def _scale_gang(job: JobState, world: World, role: Role) -> None:
    """Let a running gang grow to its new target without cool-down, or record that its last members are removed."""
    job.touch(world)
    members = [replica for replica in world.members if replica.role == role.spec.name]
    if len(members) != role.target:
        abandon_openings(job, [world.name])
    if world.phase != "running" or world.is_closing:
        return
    if role.target >= len(members):
        world.grow_at_once = True
        return
    leaving = [str(replica) for replica in members[role.target :]]
    job.facts.append(Change("scaled", leaving[-1], f"removed by the operator: {', '.join(leaving)}", (world.name,)))
