"""Texts that say what the job waits for, for its user. A job that makes no progress can always name a reason."""

from __future__ import annotations

from flowdist.control.incidents.suspects import awaited_nodes
from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import JobState, Role, World
from flowdist.control.membership.formation import closed_gates, why_not_admitted
from flowdist.control.membership.versions import why_not_fresh
from flowdist.control.placement.placement import explain
from flowdist.control.protocol.ids import replica_of
from flowdist.graph import format_duration


def waiting_for(job: JobState) -> list[str]:
    """Return what the job waits for, one line each: `held_up_by`, and each running task. Empty if the job is over."""
    running = ("running", "ready")
    tasks = [r for r in job.replicas.values() if r.phase in running and job.role_of(r.id).spec.kind == "task"]
    return [*held_up_by(job), *(f"{replica.id} to finish" for replica in tasks)]


def held_up_by(job: JobState) -> list[str]:
    """Return what keeps something from running, one line each: nodes, starts and stops, gates, incidents, room."""
    if job.outcome is not None:
        return []
    if not job.admitted and job.ending is None:
        return (
            [f"nodes to join: {', '.join(job.missing)}"] if job.missing else [f"room to start: {why_not_admitted(job)}"]
        )
    lines = [f"{replica.id} to start" for replica in job.replicas.values() if replica.phase == "starting"]
    lines += [f"{replica.id} to stop" for replica in job.replicas.values() if replica.phase == "stopping"]
    lines += [f"{name} to get ready{_needed_version(job, name)}" for name in _due_names(job, "ready")]
    lines += _first_versions(job)
    for incident in job.open_incidents():
        if names := awaited_nodes(job, incident):
            lines.append(f"{', '.join(names)} to be heard, or lost: incident {incident.number} may follow from that")
        elif any(each.awaits_upstream for each in incident.deferred):
            lines.append(f"a failure upstream that would excuse incident {incident.number}")
    lines += [f"{name} to leave its nodes" for name in _due_names(job, "drain")]
    for world in job.worlds.values():
        for role in job.roles_of(world):
            lines += _reasons_of_world(job, role, world)
    return lines


def _needed_version(job: JobState, name: str) -> str:
    """Return `: ` and which version a replica still needs before it is ready (R23); empty if it needs none."""
    replica = job.replicas[replica_of(name)]
    why = why_not_fresh(job, replica) if job.role_of(replica.id).spec.versions is not None else ""
    return f": {why}" if why else ""


def _first_versions(job: JobState) -> list[str]:
    """Return the roles that have published no version although replicas of other roles need one (R23)."""
    lines = []
    for role in job.roles.values():
        edge = role.spec.versions
        if edge is not None and job.roles[edge.role].version < 0 and role.count("running"):
            lines.append(f"{edge.role} to publish a first version, without which {role.spec.name} does not get ready")
    return lines


def _due_names(job: JobState, what: str) -> list[str]:
    """Return the names for which a deadline of this kind is set."""
    return [due.name for due in job.due if due.what == what]


def _reasons_of_world(job: JobState, role: Role, world: World) -> list[str]:
    """Return what keeps this role of a world from running: store, incident, gates, or room; empty if nothing does."""
    if world.phase == "opening":
        return [f"the store of {world.name} (generation {world.generation})"]
    if world.phase != "waiting" or role.outcome is not None or job.ending is not None:
        return []
    if world.incident is not None:
        incident = job.incident(world.incident)
        if incident.phase == "stopping":
            return [f"all of incident {incident.number} to stop before {world.name} starts again"]
        until = job.due.at(Due("backoff", str(incident.number)))
        if until is not None:
            return [f"back-off of {world.name} until {format_duration(until)}"]
    if gates := closed_gates(job, role):
        return [f"{world.name} waits for {gate}" for gate in gates]
    return [f"room for {world.name}: {explain(job, role)}"]
