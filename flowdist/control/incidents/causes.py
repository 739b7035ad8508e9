"""What caused what: a failure belongs to the incident upstream that it follows from, and charges nobody then (R7).

Each role knows the incidents that it has a part in, so that only these are looked through, however much fails at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice

from flowdist.control.incidents.judge import judge, matching_rule, may_be_excused
from flowdist.control.job.deadlines import INCIDENT_DUES, Due
from flowdist.control.job.state import Charge, Failure, Held, Incident, JobState, Replica, Role
from flowdist.control.placement.bad_nodes import forget_failure
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph.policies import FailureKind

# What a peer makes of it when a member of its world dies, and a dependent when what it depends on does.
PEER_KINDS: frozenset[FailureKind] = frozenset({"exit", "signal"})
# What is nobody else's doing, whatever becomes of other nodes.
OWN_KINDS: frozenset[FailureKind] = frozenset({"oom", "start_failed"})
LOSS_KINDS: frozenset[str] = frozenset({"node_lost", "unkillable"})


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


def follows_from_loss(job: JobState, failure: Failure, *, was_told: bool) -> bool:
    """Whether what it fails of was lost with its node while this attempt ran: a peer, or what it depends on (R8).

    `was_told`: to stop, which whoever lost a peer is. Who goes on without what it depends on falls over that soon.
    """
    replica = job.replicas[failure.replica]
    role = job.role_of(replica.id)
    if failure.kind not in PEER_KINDS:
        return False
    since = replica.started_ns if was_told else max(replica.started_ns, job.now - job.graph.options.cause_window_ns)
    roles = [job.roles[name] for name in role.upstream]
    if was_told and role.spec.gang:
        roles += job.roles_of(job.worlds[replica.world])
    return any(_was_lost(job, replica, each, since) for each in roles)


def _was_lost(job: JobState, replica: Replica, role: Role, since: int) -> bool:
    """Whether a node took some of that role along since then, and the replica was not restarted because of that."""
    for number in reversed(role.lost_in):
        incident = job.incident(number)
        if incident.opened_ns < since or replica.id in incident.restarted:
            break
        if not incident.bereft.keys().isdisjoint(role.worlds):
            return True
    return False


def first_cause(job: JobState, before: int) -> tuple[str, str] | None:
    """Of failures that each fail the job the first is named, though it is waiting for answers yet (R18).

    Only incidents with a number below `before` are asked. Returns why the job fails, and for which role.
    """
    earlier = [incident for incident in job.open_incidents() if incident.number < before]
    for incident in earlier:
        for failure, reason, caused, _, at_ns in (
            incident.held if incident.in_doubt.keys().isdisjoint(job.suspected) else ()
        ):
            verdict = judge(job, failure, caused=caused, at_ns=at_ns)
            if verdict.action == "fail" and not may_be_excused(job, verdict, failure):
                return f"{reason}; {verdict.because}", failure.replica.role
    return None


def nodes_in_doubt(job: JobState, failure: Failure, part_of: Incident | None, *, is_final: bool) -> list[NodeName]:
    """The nodes of which has to be known first whether they are lost: the failure may follow from that (R8).

    For a charge alone, which can be dropped later, only those that are overdue are waited for. Where a rule speaks of
    what is nobody else's doing, nothing is: it would decide after the loss of a node, too (R9).
    """
    replica = job.replicas[failure.replica]
    rule = matching_rule(job.role_of(failure.replica).spec.restart, failure)
    if failure.kind in OWN_KINDS and rule is not None and rule.do != "restart":
        return []
    nodes = dict.fromkeys(_overdue_nodes(job, replica))
    if is_final and failure.kind in PEER_KINDS:
        nodes.update(dict.fromkeys(_unanswered_nodes(job, replica, part_of)))
    return list(nodes or islice(part_of.in_doubt if part_of is not None else (), 1))  # the others wait there already


def _overdue_nodes(job: JobState, replica: Replica) -> list[NodeName]:
    """Nodes that are overdue, with something alive on them that it shares a world with, or depends on.

    An agent fences a moment before its node is called lost: whoever is connected with what ran there fails first.
    """
    return [name for name in job.suspected if name != replica.node and may_follow(job, replica, _live_on(job, name))]


def _live_on(job: JobState, name: NodeName) -> list[ReplicaId]:
    return [each for each in job.nodes[name].replicas if job.replicas[each].is_live]


def may_follow(job: JobState, replica: Replica, lost: Iterable[ReplicaId]) -> bool:
    """Return whether the failure of the replica may follow from the loss of one of these."""
    upstream = job.role_of(replica.id).upstream
    return any(job.replicas[other].world == replica.world or other.role in upstream for other in lost)


def _unanswered_nodes(job: JobState, replica: Replica, part_of: Incident | None) -> list[NodeName]:
    """Other nodes with something alive on them that it shares a world with, or depends on: any may just have died.

    What others see of it reaches the controller as soon as the proof does, or sooner. A node that still runs what it is
    told to stop says so. All of a large world may fail at once: the first of it asks for all nodes but its own, the
    others for that one.
    """
    world = job.worlds[replica.world]
    first = part_of.asked.get(world.name) if part_of is not None else None
    upstream = {name: None for role in job.roles_of(world) for name in role.upstream}
    if first is None:
        others = job.members_of(world) + [other for name in upstream for other in job.replicas_of(job.roles[name])]
    else:
        others = [job.replicas[other] for other in job.nodes[first].replicas]
    concerned = [other for other in others if other.world == world.name or other.id.role in upstream]
    found = {other.node: None for other in concerned if other.is_live}
    found.pop(replica.node, None)
    return [name for name in found if name is not None]


def hold(job: JobState, incident: Incident, held: Iterable[Held]) -> None:
    """Nothing follows from these failures yet but that their worlds stop."""
    for each in held:
        incident.held.append(each)
        replica = job.replicas[each.failure.replica]
        if each.is_final and each.failure.kind in PEER_KINDS and replica.node is not None:
            incident.asked.setdefault(replica.world, replica.node)


def await_nodes(job: JobState, incident: Incident, nodes: Iterable[NodeName]) -> None:
    """It may follow from the loss of one of these: until they answer, are heard, or are lost (R8)."""
    for name in nodes:
        incident.in_doubt.setdefault(name, job.now)
    if not incident.in_doubt.keys() <= job.suspected.keys():
        job.due.set_once(Due("answer", str(incident.number)), job.now + job.graph.options.suspect_after_ns)


def take_over(job: JobState, incident: Incident, other: Incident) -> None:
    """What the other holds, which happened before, is judged as and when it would have been (R7, R8)."""
    if not other.held:
        return
    since = [*other.in_doubt.items(), *incident.in_doubt.items()]
    incident.in_doubt = {}
    for name, ns in sorted(since, key=lambda item: item[1]):
        incident.in_doubt.setdefault(name, ns)
    hold(job, incident, other.held)
    incident.held.sort(key=lambda held: held.at_ns)
    dues = [job.due.at(Due("answer", str(each.number))) for each in (incident, other)]
    if known := [due for due in dues if due is not None]:
        job.due.set(Due("answer", str(incident.number)), min(known))


def excuse(job: JobState, incident: Incident) -> list[Incident]:
    """Its charge, made or to come, is dropped, once: it has another cause.

    Returns the incidents that held something of it: itself, or the one that it has become part of.
    """
    if incident.root_role is not None:
        role = job.roles[incident.root_role]
        if incident.number in role.rooted:
            role.rooted.remove(incident.number)
        if incident.charged_to is not None:
            role.charges.remove(Charge(incident.opened_ns, incident.level))
        if incident.counted:
            role.spent[incident.level].remove(incident.opened_ns)
            role.backoff_step = max(0, role.backoff_step - 1)
    incident.counted, incident.charged_to = False, None
    holders = [incident] if incident.held else _without_failures_of(job, incident)
    drop_held(job, incident)
    for what in INCIDENT_DUES:
        job.due.clear(Due(what, str(incident.number)))
    return holders


def _without_failures_of(job: JobState, incident: Incident) -> list[Incident]:
    """What opened it is held by the incident that it has become part of, if by any, and is no more."""
    holders = []
    for other in job.open_incidents():
        rest = [held for held in other.held if not _opened(held, incident)]
        if len(rest) < len(other.held):
            holders.append(other)
            other.held = rest
            if not rest:
                drop_held(job, other)
    return holders


def own_incident(job: JobState, held: Held) -> Incident | None:
    """The incident that the failure opened, and is charged for; it may have become part of another since (R7)."""
    for number in reversed(job.role_of(held.failure.replica).rooted):
        if _opened(held, job.incident(number)):
            return job.incident(number)
    return None


def _opened(held: Held, incident: Incident) -> bool:
    return held.at_ns == incident.opened_ns and str(held.failure.replica) == incident.root


def drop_held(job: JobState, incident: Incident) -> None:
    """What was to be judged yet is not: it has another cause."""
    incident.in_doubt.clear()
    incident.held.clear()
    incident.asked.clear()
    job.due.clear(Due("answer", str(incident.number)))
    job.touched.update(incident.worlds)


def excuse_dependents(job: JobState, incident: Incident) -> list[Incident]:
    """A dependent's failure was reported first: its charge, made or to come, is dropped, nor is its node to blame (R7).

    Returns the incidents of those that were to be judged yet.
    """
    lost = {replica.role for replica in incident.lost}
    if not any(job.roles[name].dependents for name in lost):
        return []
    since = job.now - job.graph.options.cause_window_ns
    roles = [role for role in job.roles.values() if not role.upstream.keys().isdisjoint(lost)]
    in_doubt = []
    for other in _since(job, since, [role.rooted for role in roles]):
        in_doubt += excuse(job, other)
        job.notify(f"incident {other.number} was caused by {incident.root}: not counted")
    names = {role.spec.name for role in roles}
    for other in _since(job, since, [role.lost_in for role in roles]):
        for replica in other.lost if other is not incident else ():
            if replica.role in names:
                forget_failure(job, job.replicas[replica], other.opened_ns)
    return in_doubt


def _since(job: JobState, since: int, lists: Iterable[list[int]]) -> list[Incident]:
    """The incidents of these lists that were opened since then, each once; the latest first."""
    found: dict[int, None] = {}
    for numbers in lists:
        for number in reversed(numbers):
            if job.incident(number).opened_ns < since:
                break
            found[number] = None
    return [job.incident(number) for number in sorted(found, reverse=True)]
