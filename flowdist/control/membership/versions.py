"""Versions on edges (R23): a replica is ready only when its own attempt has acknowledged a fresh enough version.

Agents of publisher and holder report on their own connections: an acknowledgement may come before the publication, and
counts from then on. The latest number may be lower than one before, after a restart from an earlier checkpoint.
"""

from __future__ import annotations

from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import OfReadiness
from flowdist.control.job.state import JobState, Replica, Role
from flowdist.control.protocol import events as ev


def note_published(job: JobState, replica: Replica, event: ev.ReplicaPublished) -> None:
    """Record a newer version that a role has published; the replicas that wait for one are judged then."""
    role, order = job.role_of(replica.id), replica.order
    assert order is not None
    if order.generation == role.version_generation and event.version <= role.version:
        return
    is_first = role.version < 0
    role.version, role.version_generation = event.version, order.generation
    role.highest_version = max(role.highest_version, event.version)
    for holder in _running_holders(job, role) if is_first else ():
        await_readiness(job, holder)
    job.facts.append(event)


def _running_holders(job: JobState, publisher: Role) -> list[Replica]:
    """Return the replicas of roles that need versions of this one, as far as they run and are not ready."""
    holders = [job.roles[spec.name] for spec in job.graph.holders_of(publisher.spec.name)]
    return [each for role in holders for each in job.replicas_of(role) if each.phase == "running"]


def note_acknowledged(job: JobState, replica: Replica, event: ev.ReplicaAcknowledged) -> None:
    """Record the version that an attempt has; whether it is ready with it is judged then."""
    if job.role_of(replica.id).spec.versions is not None:
        replica.version = event.version
        job.facts.append(event)


def note_checked(job: JobState, replica: Replica, event: ev.ReplicaReady) -> None:
    """Record that a running attempt has passed the readiness check of its role, if there is one."""
    spec = job.role_of(replica.id).spec
    if replica.phase == "running" and spec.ready is not None:
        replica.is_checked = True
        job.facts.append(event)


def await_readiness(job: JobState, replica: Replica) -> None:
    """Set a running replica's readiness deadline, once there is a version: a learner may load data for an hour."""
    if awaits_readiness(job, replica) and job.ending is None:
        timeout_ns = job.role_of(replica.id).spec.ready_timeout_ns
        job.due.set(Due("ready", str(replica.id)), job.now + timeout_ns)


def awaits_readiness(job: JobState, replica: Replica) -> bool:
    """Return whether a replica that runs could be ready by now, if its workers did all that they have to."""
    spec = job.role_of(replica.id).spec
    return spec.has_readiness and (spec.versions is None or job.roles[spec.versions.role].version >= 0)


def judge_readiness(job: JobState, event: OfReadiness) -> None:
    """Turn running replicas to "ready" whose check has passed with a fresh version; tell once of an old one."""
    if isinstance(event, ev.ReplicaPublished):
        for holder in _running_holders(job, job.role_of(event.replica)):
            _judge_one(job, holder)
    else:
        _judge_one(job, job.replicas[event.replica])


def _judge_one(job: JobState, replica: Replica) -> None:
    spec = job.role_of(replica.id).spec
    if replica.phase != "running" or not (spec.ready is None or replica.is_checked):
        return
    with_version = ""
    if spec.versions is not None:
        if why := why_not_fresh(job, replica):
            if is_stale(job, replica) and not replica.was_refused:
                replica.was_refused = True
                job.decided("version_stale", replica.id, f"{replica.id} is not ready: {why}", "warning")
            return
        publisher = job.roles[spec.versions.role]
        replica.admitted = (replica.version, publisher.version)
        with_version = f" with version {replica.version} of {publisher.spec.name}"
    job.set_phase(replica, "ready")
    job.due.clear(Due("ready", str(replica.id)))
    job.decided("replica_ready", replica.id, f"{replica.id}: ready{with_version}")


def is_stale(job: JobState, replica: Replica) -> bool:
    """Return whether the replica has acknowledged a version that is older than its role allows."""
    edge = job.role_of(replica.id).spec.versions
    behind = edge is not None and job.roles[edge.role].version - replica.version > edge.max_staleness
    return behind and replica.version >= 0


def why_not_fresh(job: JobState, replica: Replica) -> str:
    """Return why the version of a replica, whose role has `versions=`, is not fresh enough; empty if it is."""
    edge = job.role_of(replica.id).spec.versions
    assert edge is not None
    publisher = job.roles[edge.role]
    latest = f"the latest is {publisher.version}"
    if publisher.version < 0:
        return f"{edge.role} has published no version"
    if replica.version < 0:
        return f"it has acknowledged no version of {edge.role}; {latest}"
    if replica.version > publisher.highest_version:
        return f"it has acknowledged version {replica.version} of {edge.role}, which was never published; {latest}"
    if is_stale(job, replica):
        return f"it has version {replica.version} of {edge.role}; {latest}, and max_staleness={edge.max_staleness}"
    return ""
