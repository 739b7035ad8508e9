"""Nodes that may be lost: who fails meanwhile may fail because of that, and is judged when it is known (R8).

Peers see the death of one of them before its proof reaches the controller: by some milliseconds where a guardian
proves it, by seconds where an agent fences because nobody hears it. That is no fault of theirs: a change of membership
must not be charged to them, and must not fail the job.
"""

from __future__ import annotations

from bisect import insort
from itertools import takewhile

from flowdist.control.incidents.backoff import set_backoff
from flowdist.control.incidents.causes import PEER_KINDS, drop_held, excuse, first_cause, may_follow, own_incident
from flowdist.control.incidents.closure import closure, scope_worlds
from flowdist.control.incidents.ending import begin_ending
from flowdist.control.incidents.judge import Verdict, judge, may_be_excused
from flowdist.control.incidents.recovery import charge, extend, ignore
from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import Heard, Loss
from flowdist.control.job.state import Held, Incident, JobState, Replica
from flowdist.control.placement.bad_nodes import blame, forget_failure
from flowdist.control.protocol.ids import NodeName, WorldName


def note_suspected(job: JobState, name: NodeName) -> None:
    node = job.nodes.get(name)
    if node is not None and node.usable:
        job.suspected[name] = None


def note_heard(job: JobState, name: NodeName) -> None:
    job.suspected.pop(name, None)
    job.facts.append(Heard(name))


def clear_node(job: JobState, name: NodeName) -> None:
    """It was slow, not lost: what waits for no other node is judged after all."""
    for incident in job.open_incidents():
        if name in incident.in_doubt:
            _clear(job, incident, [name], f"{name} is heard again")


def note_answer(job: JobState, replica: Replica) -> None:
    """It has ended. A node on which nothing else of its incident runs has done as it was told: it is not lost.

    One that is overdue has to be heard all the same: this may have been on its way for long.
    """
    number, name = job.worlds[replica.world].incident, replica.node
    if number is None or name is None or name in job.suspected or name not in job.incident(number).in_doubt:
        return
    incident = job.incident(number)
    others = [job.replicas[other] for other in job.nodes[name].replicas]
    if not any(other.is_live and other.world in incident.worlds for other in others):
        _clear(job, incident, [name])


def note_answers_are_due(job: JobState, incident: Incident) -> None:
    """So long after a failure, a node that is not overdue has been heard since."""
    _clear(job, incident, [])
    due = next((due for held in incident.held if (due := _due(job, held)) > job.now), None)
    if due is not None:
        job.due.set(Due("answer", str(incident.number)), due)
    else:
        _clear(job, incident, [name for name in incident.in_doubt if name not in job.suspected])


def excuse_peers(job: JobState, name: NodeName, loss: Loss) -> list[WorldName]:
    """It is lost, and what might have followed from that has. Returns the worlds that belong to its incident."""
    options = job.graph.options
    since = job.now - (options.silent_after_ns if loss.was_suspected else options.cause_window_ns)
    worlds: dict[WorldName, None] = {}
    for incident in _open_or_of_late(job, since):
        is_of_peers = incident.opened_ns >= since and _is_of_peers(job, incident, loss)
        if name not in incident.in_doubt and not is_of_peers:
            continue
        if incident.is_open:
            worlds.update(incident.worlds)
        if _pays(job, incident) and not is_of_peers:  # for what was judged before, which has another cause
            drop_held(job, incident)
            continue
        excuse(job, incident)
        incident.root_role = None
        for replica in incident.lost:
            forget_failure(job, job.replicas[replica], incident.opened_ns)
        job.notify(f"incident {incident.number} was caused by the loss of {name}: not counted")
    return list(worlds)


def _open_or_of_late(job: JobState, since: int) -> list[Incident]:
    """Also those that are over since they became part of another: a charge was made for them (R7)."""
    found = dict.fromkeys(job.open)
    for incident in reversed(job.incidents):
        if incident.opened_ns < since:
            break
        found[incident.number] = None
    return [job.incident(number) for number in sorted(found)]


def _is_of_peers(job: JobState, incident: Incident, loss: Loss) -> bool:
    """Whether somebody pays for a failure that may follow from the loss of that node, and has not started since."""
    if not _pays(job, incident) or incident.kind not in PEER_KINDS:
        return False
    root = job.replicas[next(iter(incident.lost))]
    if root.phase != "gone" or root.id in incident.restarted or root.started_ns > incident.opened_ns:
        return False
    return may_follow(job, root, [each.replica for each in loss.lost])


def _pays(job: JobState, incident: Incident) -> bool:
    return incident.counted or Due("verdict", str(incident.number)) in job.due


def _clear(job: JobState, incident: Incident, nodes: list[NodeName], because: str = "") -> None:
    """These nodes are not lost. A failure for which that is known of all is judged, as of when it happened."""
    for name in nodes:
        del incident.in_doubt[name]
    known = list(takewhile(lambda held: _is_known(job, incident, held), incident.held))
    if not known:
        return
    incident.held = incident.held[len(known) :]
    if not incident.held:
        job.due.clear(Due("answer", str(incident.number)))
        incident.in_doubt.clear()
        incident.asked.clear()
    says = f"{because}: " if because else ""
    job.touched.update(incident.worlds)
    for held in known:
        failure, reason, caused, _, at_ns = held
        replica = job.replicas[failure.replica]
        if job.worlds[replica.world].incident != incident.number:
            continue  # it was ended meanwhile
        verdict = judge(job, failure, caused=caused, at_ns=at_ns)
        if not caused and replica.node is not None:
            blame(job, replica, failure.kind, at_ns)
        if verdict.action == "fail" and not may_be_excused(job, verdict, failure):
            job.notify(f"{reason}; {f'{because}, and ' if because else ''}{verdict.because}", "error")
            first = first_cause(job, incident.number)
            begin_ending(job, "failed", *(first or (f"{reason}; {verdict.because}", replica.id.role)))
            return
        if verdict.action == "ignore":
            job.notify(f"{reason}; {says}ignored: {verdict.because}", "warning")
            ignore(job, replica)
            continue
        job.notify(f"incident {incident.number}: {says}{verdict.because}")
        extend(job, incident, closure(job, scope_worlds(job, replica.id, verdict.scope)))
        root = own_incident(job, held)
        if root is not None:
            _charge(job, incident, root, verdict)


def _is_known(job: JobState, incident: Incident, held: Held) -> bool:
    """Whether none of the nodes that were in doubt then is lost: none is in doubt now, or overdue by now."""
    if job.now < _due(job, held):
        first = next(iter(incident.in_doubt.values()), None)
        return first is None or first > held.at_ns
    return not any(incident.in_doubt.get(name, job.now) <= held.at_ns for name in job.suspected)


def _due(job: JobState, held: Held) -> int:
    return held.at_ns + job.graph.options.suspect_after_ns


def _charge(job: JobState, incident: Incident, root: Incident, verdict: Verdict) -> None:
    """Who exits first of its own pays, also when a wider incident has taken its own, the `root`, in since (R7)."""
    if verdict.exhausted:
        until = root.opened_ns + job.graph.options.cause_window_ns
        job.due.set(Due("verdict", str(root.number)), max(job.now, until))
    if verdict.counted:
        assert root.root_role is not None
        role = job.roles[root.root_role]
        root.counted, root.level = True, verdict.level
        insort(role.spent.setdefault(verdict.level, []), root.opened_ns)
        set_backoff(job, role, verdict.level, incident)
        if not root.is_open:
            charge(job, root)
