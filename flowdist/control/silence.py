"""Nodes that are overdue: who fails meanwhile may fail because of them, and is judged when that is known (R8).

An agent fences a moment before its node is called lost, so that its peers fail first. That is no fault of theirs: a
change of membership must not be charged to them, and must not fail the job.
"""

from __future__ import annotations

from bisect import insort

from flowdist.control.bad_nodes import blame
from flowdist.control.closure import scope_worlds
from flowdist.control.deadlines import Due
from flowdist.control.ending import begin_ending
from flowdist.control.ids import NodeName, WorldName
from flowdist.control.judge import Verdict, judge
from flowdist.control.recovery import extend, ignore, may_be_excused, set_backoff
from flowdist.control.state import Incident, JobState


def note_quiet(job: JobState, name: NodeName) -> None:
    node = job.nodes.get(name)
    if node is not None and node.usable:
        job.quiet[name] = None


def note_heard(job: JobState, name: NodeName) -> None:
    """It was slow, not lost: what waits for no other node is judged after all."""
    job.quiet.pop(name, None)
    for incident in job.open_incidents():
        if name in incident.overdue:
            del incident.overdue[name]
            if not incident.overdue:
                _judge_held(job, incident, name)


def excuse_peers(job: JobState, name: NodeName) -> list[WorldName]:
    """It is lost, and what might have followed from that has. Returns the worlds that belong to its incident."""
    job.quiet.pop(name, None)
    worlds: dict[WorldName, None] = {}
    for incident in job.open_incidents():
        if name not in incident.overdue:
            continue
        incident.overdue.clear()
        incident.held.clear()
        if incident.root_role is not None:
            job.roles[incident.root_role].rooted.remove(incident.number)
            incident.root_role = None
        worlds.update(incident.worlds)
        job.notify(f"incident {incident.number} was caused by the loss of {name}: not counted")
    return list(worlds)


def _judge_held(job: JobState, incident: Incident, heard: NodeName) -> None:
    """As of when it happened."""
    held, incident.held = incident.held, []
    job.touched.update(incident.worlds)
    for failure, reason, caused in held:
        replica = job.replicas[failure.replica]
        if job.worlds[replica.world].incident != incident.number:
            continue  # it was ended meanwhile
        verdict = judge(job, failure, caused=caused, at_ns=incident.opened_ns)
        if not caused and replica.node is not None:
            blame(job, replica, failure.kind, incident.opened_ns)
        if verdict.action == "fail" and not may_be_excused(job, verdict, failure):
            job.notify(f"{reason}; {heard} is heard again, and {verdict.because}", "error")
            begin_ending(job, "failed", f"{reason}; {verdict.because}")
            return
        if verdict.action == "ignore":
            job.notify(f"{reason}; {heard} is heard again: ignored: {verdict.because}", "warning")
            ignore(job, replica)
            continue
        job.notify(f"incident {incident.number}: {heard} is heard again: {verdict.because}")
        extend(job, incident, scope_worlds(job, replica.id, verdict.scope))
        if not caused:
            _charge(job, incident, verdict)


def _charge(job: JobState, incident: Incident, verdict: Verdict) -> None:
    if verdict.exhausted:
        until = incident.opened_ns + job.graph.options.cause_window_ns
        job.due.set(Due("verdict", str(incident.number)), max(job.now, until))
    if verdict.counted and incident.root_role is not None:
        role = job.roles[incident.root_role]
        incident.counted, incident.level = True, verdict.level
        insort(role.spent.setdefault(verdict.level, []), incident.opened_ns)
        set_backoff(job, role, incident)
