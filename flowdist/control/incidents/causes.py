"""Attribution of a failure to the incident that caused it: no budget pays for such a failure (R7, R8)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Set
from itertools import takewhile

from flowdist.control.incidents.applied_rules import drop_backoff
from flowdist.control.job.state import Charge, Failure, Incident, JobState, Replica, Role
from flowdist.control.placement.bad_nodes import forget_failure
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.rules import PEER_KINDS, step_without_last
from flowdist.graph import FailureKind

# Kinds of failure that no other replica or node can cause.
OWN_KINDS: frozenset[FailureKind] = frozenset({"oom", "start_failed"})
# Kinds of failure of a replica that is lost with its node.
LOSS_KINDS: frozenset[str] = frozenset({"node_lost", "unkillable"})


def note_lost(job: JobState, incident: Incident, lost: dict[ReplicaId, str]) -> None:
    """Record in the incident and their roles how these replicas, if not recorded yet, failed or were lost in it."""
    for replica, why in lost.items():
        incident.lost.setdefault(replica, why)
    for name in dict.fromkeys(replica.role for replica in lost):
        numbers = job.roles[name].lost_in
        index = bisect_left(numbers, incident.number)
        if incident.number not in numbers[index : index + 1]:
            numbers.insert(index, incident.number)


def upstream_incident(job: JobState, replica: Replica) -> Incident | None:
    """Return the latest incident of an upstream role that caused a failure of this replica now (R7); or None.

    It is not older than `cause_window`, nor than the replica's attempt: else the upstream was up again. One that has
    restarted the replica already does not count.
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
    """Return whether the failure follows from the loss of a node with a peer, or an upstream, of the replica (R8).

    The loss has to be recorded already, and later than the start of the present attempt. If the replica had an order to
    stop (`failure.was_told`), any such loss counts, also that of a peer of its gang: the replica may fail before that
    order arrives. Otherwise only the loss of an upstream within `cause_window` counts, without which the replica kept
    running. Only an exit or a signal can follow from a loss.
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
    """Return whether a world of the role has lost a member since then (ns), after `replica` was restarted last."""
    for number in reversed(role.lost_in):
        incident = job.incident(number)
        if incident.opened_ns < since or replica.id in incident.restarted:
            break
        if not incident.bereft.keys().isdisjoint(role.worlds):
            return True
    return False


def dependents_of(job: JobState, incident: Incident) -> set[str]:
    """Return the names of the roles that depend, over any number of gates, on a role that failed or was lost in it."""
    lost = {replica.role for replica in incident.lost}
    if not any(job.roles[name].dependents for name in lost):
        return set()
    return {name for name, role in job.roles.items() if not role.upstream.keys().isdisjoint(lost)}


def refund_dependents(job: JobState, incident: Incident, dependents: Set[str]) -> None:
    """Take back recent charges to these roles, because their failures follow from `incident`, and notify the user (R7).

    Recent means that the charged incident opened less than `cause_window` ago. Failures of these roles in such
    incidents no longer count against nodes, either (R22).

    This is the only decision that is ever undone. A dependent may be reported, judged and running again some
    milliseconds after its failure. To wait for the end of the window instead would delay each of its restarts by 2 s.
    """
    since = job.now - job.graph.options.cause_window_ns
    recent = list(takewhile(lambda other: other.opened_ns >= since, reversed(job.incidents)))
    for other in recent:
        if other.counted and other.root_role in dependents:
            _refund(job, other)
            job.decided(
                "incident_excused",
                other.root,
                f"incident {other.number} was caused by {incident.root}: not counted",
                incident=other,
            )
    for other in recent:
        for replica in other.lost if other is not incident else ():
            if replica.role in dependents:
                forget_failure(job, job.replicas[replica], other.opened_ns)


def _refund(job: JobState, incident: Incident) -> None:
    """Take the charge of an incident back: from the role's budget, its charges and its back-off. End the back-off."""
    assert incident.root_role is not None
    role = job.roles[incident.root_role]
    role.spent[incident.level].remove(incident.opened_ns)
    role.backoff_step = step_without_last(role.backoff_step)
    if incident.charged_to is not None:
        role.charges.remove(Charge(incident.opened_ns, incident.level))
    incident.counted, incident.charged_to = False, None
    drop_backoff(job, incident)
