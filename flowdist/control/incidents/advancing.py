"""Progress of open incidents: wait until all of the restart set has stopped (R6), then until all of it runs again."""

from __future__ import annotations

from collections.abc import Iterable

from flowdist.control.incidents.ending import close_store
from flowdist.control.incidents.judging import conclude_deferred, conclude_resolved
from flowdist.control.incidents.recovery import close, settled_result
from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import Incident, JobState, Replica, World
from flowdist.control.placement.bad_nodes import moves_away
from flowdist.control.placement.placement import unplace
from flowdist.control.protocol.ids import NodeName, WorldName


def advance(job: JobState, names: Iterable[WorldName]) -> None:
    """Advance the open incidents of these worlds, which have changed, and reset those that retire and have stopped."""
    changed: dict[int, list[WorldName]] = {}
    for name in names:
        world = job.worlds[name]
        if world.retiring:
            _reset_if_gone(job, world)
        if world.incident is not None:
            changed.setdefault(world.incident, []).append(name)
    for number in sorted(changed):
        _advance_incident(job, job.incident(number), changed[number])


def _advance_incident(job: JobState, incident: Incident, changed: list[WorldName]) -> None:
    """Advance one open incident: let its restart set start, or close the incident.

    Failures that wait for the last steps of their world are judged as soon as the world has stopped. In the phase
    "stopping", wait until no replica of the restart set is live and no deferred failure blocks a restart. Then judge
    the failures that are still deferred, and turn to the phase "starting" (R6). In the phase "starting", reset each
    changed world that has stopped, and close the incident when all of its worlds are settled. `incident.awaited` has
    the worlds that are still waited for. Only its first one is looked at, so that an event costs the same in an
    incident of ten worlds and of thousands.
    """
    if any(each.awaits_steps for each in incident.deferred):
        conclude_resolved(job, incident)
    if incident.phase == "stopping" and not any(each.blocks for each in incident.deferred):
        while incident.awaited and not job.worlds[next(iter(incident.awaited))].live:
            incident.awaited.pop(next(iter(incident.awaited)))
        if not incident.awaited and incident.deferred:
            # Nothing of the restart set is live, so each suspect has answered or is lost. The judgement may end the
            # job, or stop more worlds, for which the incident waits then.
            conclude_deferred(job, incident, incident.deferred)
        if not incident.awaited and not incident.deferred and incident.is_open:
            incident.phase = "starting"
            incident.awaited = dict(incident.worlds)
            changed = list(incident.worlds)
            job.touched.update(incident.worlds)
    if incident.phase == "starting":
        for name in changed:
            _reset_if_gone(job, job.worlds[name])
        while incident.awaited and _is_settled(job, job.worlds[next(iter(incident.awaited))]):
            incident.awaited.pop(next(iter(incident.awaited)))
        if not incident.awaited:
            close(job, incident, settled_result(job, incident), has_settled=True)


def _reset_if_gone(job: JobState, world: World) -> None:
    """Reset a stopping world in which nothing is live, so that it waits again, or ends if it retires for good.

    The store of the world is closed. Each replica that has to leave its node, or whose world retires, loses its seat.
    """
    if world.phase != "stopping" or world.live:
        return
    members = job.members_of(world)
    close_store(job, world)
    job.due.clear(Due("finish", world.name))
    job.due.clear(Due("cooldown", world.name))
    world.formed_ns = None
    for replica in members:
        job.set_phase(replica, "waiting" if world.retiring != "ended" else "ended")
        if world.retiring or _loses_its_seat(job, replica, replica.node):
            unplace(job, replica)
    for role in job.roles_of(world):
        role.leaving.pop(world.name, None)
    job.turn(world, "ended" if world.retiring == "ended" else "waiting")
    world.retiring = ""


def _loses_its_seat(job: JobState, replica: Replica, name: NodeName | None) -> bool:
    """Return whether the replica has to leave node `name` (None: no seat to lose) before it starts again (R22)."""
    if name is None:
        return False
    node = job.nodes[name]
    if any(gpu in node.bad_gpus for gpu in replica.gpus):
        return True
    return not node.usable or node.is_leaving or moves_away(job, replica, name)


def _is_settled(job: JobState, world: World) -> bool:
    """Return whether the incident of this world, in the phase "starting", need not wait for the world any longer.

    A world is settled when it has ended, and when each of its members runs (and is ready, if its role has a readiness
    check) or has succeeded. A waiting replica of a role without a gang is settled without a node, too, if its role has
    its minimum: the incident does not wait for a seat that may never be free.
    """
    if world.phase == "running":
        counts, roles = world.counts, job.roles_of(world)
        up = counts["ready"] + counts["succeeded"] + counts["running"]
        if len(roles) == 1:
            return up - (counts["running"] if roles[0].spec.has_readiness else 0) == len(world.members)
        return up - sum(role.count("running") for role in roles if role.spec.has_readiness) == len(world.members)
    role = job.roles[world.roles[0]]
    if world.phase == "waiting" and not role.spec.gang:
        return job.replicas[world.pool[0]].node is None and role.seats >= role.spec.min_replicas
    return world.phase in ("succeeded", "ended")
