"""Incidents that a failure follows from: such a failure is part of them, and is charged to no role (R7, R8).

Each role knows the incidents that it has a part in, so that a failure costs the same in a long job as in a short one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Set
from itertools import takewhile

from flowdist.control.incidents.backoff import step_without_last
from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import Charge, Failure, Incident, JobState, Replica, Role
from flowdist.control.placement.bad_nodes import forget_failure
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import FailureKind

# Kinds of failure of a process whose peer, or whose server, has died: its connections break.
PEER_KINDS: frozenset[FailureKind] = frozenset({"exit", "signal"})
# Kinds that no other replica or node can cause.
OWN_KINDS: frozenset[FailureKind] = frozenset({"oom", "start_failed"})
LOSS_KINDS: frozenset[str] = frozenset({"node_lost", "unkillable"})


def note_lost(job: JobState, incident: Incident, lost: dict[ReplicaId, str]) -> None:
    """Record that these replicas failed or were lost in the incident, and how."""
    for replica, why in lost.items():
        incident.lost.setdefault(replica, why)
    for name in dict.fromkeys(replica.role for replica in lost):
        numbers = job.roles[name].lost_in
        index = bisect_left(numbers, incident.number)
        if incident.number not in numbers[index : index + 1]:
            numbers.insert(index, incident.number)


def upstream_incident(job: JobState, replica: Replica) -> Incident | None:
    """Return the incident of an upstream role that a failure of this replica, now, belongs to (R7).

    An incident that is older than the present attempt is no cause: what the replica depends on was up again.
    """
    since = max(job.now - job.graph.options.cause_window_ns, replica.started_ns)
    found: Incident | None = None
    for name in job.role_of(replica.id).upstream:
        for number in reversed(job.roles[name].lost_in):
            incident = job.incident(number)
            if incident.opened_ns < since or (found is not None and number <= found.number):
                break
            if replica.id not in incident.restarted:
                found = incident
    return found


def follows_from_loss(job: JobState, failure: Failure) -> bool:
    """Return whether a peer, or what the replica depends on, was lost with its node during this attempt (R8).

    A replica that loses a peer is told to stop, and may fail before that order arrives. A replica that keeps running
    without something that it depends on fails within `cause_window` of the loss.
    """
    if failure.kind not in PEER_KINDS:
        return False
    replica = job.replicas[failure.replica]
    role = job.role_of(replica.id)
    recent = job.now - job.graph.options.cause_window_ns
    since = replica.started_ns if failure.was_told else max(replica.started_ns, recent)
    roles = [job.roles[name] for name in role.upstream]
    if failure.was_told and role.spec.gang:
        roles += job.roles_of(job.worlds[replica.world])
    return any(_was_lost(job, replica, each, since) for each in roles)


def _was_lost(job: JobState, replica: Replica, role: Role, since: int) -> bool:
    """Return whether a node took a replica of the role along since then, and `replica` has not restarted for that."""
    for number in reversed(role.lost_in):
        incident = job.incident(number)
        if incident.opened_ns < since or replica.id in incident.restarted:
            break
        if not incident.bereft.keys().isdisjoint(role.worlds):
            return True
    return False


def dependents_of(job: JobState, incident: Incident) -> set[str]:
    """Return the names of the roles that depend on a role of which the incident has lost a replica."""
    lost = {replica.role for replica in incident.lost}
    if not any(job.roles[name].dependents for name in lost):
        return set()
    return {name for name, role in job.roles.items() if not role.upstream.keys().isdisjoint(lost)}


def refund_dependents(job: JobState, incident: Incident, dependents: Set[str]) -> None:
    """Take back charges for failures of dependents that were judged less than `cause_window` ago (R7).

    This is the one thing that is ever undone. A dependent may be reported, judged and running again some milliseconds
    after its failure. To wait for the end of the window instead would delay each of its restarts by 2 s.
    """
    since = job.now - job.graph.options.cause_window_ns
    recent = list(takewhile(lambda other: other.opened_ns >= since, reversed(job.incidents)))
    for other in recent:
        if other.counted and other.root_role in dependents:
            _refund(job, other)
            job.notify(f"incident {other.number} was caused by {incident.root}: not counted")
    for other in recent:
        for replica in other.lost if other is not incident else ():
            if replica.role in dependents:
                forget_failure(job, job.replicas[replica], other.opened_ns)


def _refund(job: JobState, incident: Incident) -> None:
    assert incident.root_role is not None
    role = job.roles[incident.root_role]
    role.spent[incident.level].remove(incident.opened_ns)
    role.backoff_step = step_without_last(role.backoff_step)
    if incident.charged_to is not None:
        role.charges.remove(Charge(incident.opened_ns, incident.level))
    incident.counted, incident.charged_to = False, None
    job.due.clear(Due("backoff", str(incident.number)))
    job.touched.update(incident.worlds)
