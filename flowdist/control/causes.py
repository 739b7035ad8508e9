"""What caused what: a failure belongs to the incident upstream that it follows from, and charges nobody then (R7).

Each role knows the incidents that it has a part in, so that only these are looked through, however much fails at once.
"""

from __future__ import annotations

from bisect import bisect_left

from flowdist.control.deadlines import Due
from flowdist.control.ids import NodeName, ReplicaId
from flowdist.control.state import Charge, Incident, JobState, Replica


def note_lost(job: JobState, incident: Incident, lost: dict[ReplicaId, str]) -> None:
    """These replicas failed or were lost in the incident, and how."""
    for replica, why in lost.items():
        incident.lost.setdefault(replica, why)
    for name in dict.fromkeys(replica.role for replica in lost):
        numbers = job.roles[name].lost_in
        index = bisect_left(numbers, incident.number)
        if incident.number not in numbers[index : index + 1]:
            numbers.insert(index, incident.number)


def upstream_incident(job: JobState, replica: Replica) -> Incident | None:
    """The incident upstream that this replica's failure, now, belongs to (R7).

    An attempt that was started after it has no excuse: what it depends on was up again.
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


def overdue_nodes(job: JobState, replica: Replica) -> list[NodeName]:
    """Nodes that are overdue, with something alive on them that it shares a world with, or depends on.

    An agent fences a moment before its node is called lost: whoever is connected with what ran there fails first.
    """
    upstream = job.role_of(replica.id).upstream if job.quiet else {}
    return [
        name
        for name in job.quiet
        if name != replica.node
        and any(
            other.is_live and (other.world == replica.world or other.id.role in upstream)
            for other in [job.replicas[id] for id in job.nodes[name].replicas]
        )
    ]


def excuse_dependents(job: JobState, incident: Incident) -> None:
    """A dependent's failure was reported first: its charge, made or to come, is dropped (R7)."""
    for other in _of_dependents(job, {replica.role for replica in incident.lost}):
        assert other.root_role is not None
        role = job.roles[other.root_role]
        if other.charged_to is not None:
            role.charges.remove(Charge(other.opened_ns, other.level))
        if other.counted:
            role.spent[other.level].remove(other.opened_ns)
            role.backoff_step = max(0, role.backoff_step - 1)
        other.counted, other.charged_to = False, None
        other.overdue.clear()
        other.held.clear()
        job.touched.update(other.worlds)
        job.due.clear(Due("verdict", str(other.number)))
        job.due.clear(Due("backoff", str(other.number)))
        job.notify(f"incident {other.number} was caused by {incident.root}: not counted")


def _of_dependents(job: JobState, lost: set[str]) -> list[Incident]:
    """The incidents of a moment ago whose root cause is in a role that depends on one of `lost`; the latest first."""
    if not any(job.roles[name].dependents for name in lost):
        return []
    since = job.now - job.graph.options.cause_window_ns
    numbers: list[int] = []
    for role in job.roles.values():
        while role.rooted and not role.upstream.keys().isdisjoint(lost):
            if job.incident(role.rooted[-1]).opened_ns < since:
                break
            numbers.append(role.rooted.pop())  # each is excused once
    return [job.incident(number) for number in sorted(numbers, reverse=True)]
