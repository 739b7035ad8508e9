"""Incidents: one cause, the set of worlds that restarts because of it, and the role that pays, once, at its close (R7).

All of a set is gone before anything of it starts (R6). Two incidents whose sets meet become one. Tasks have *re-formed*
when it closes, and *recovered* with the first step that each world reports.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from flowdist.control.incidents.applied_rules import judge, limit_free, set_backoff, take_over_backoffs, waits_ns
from flowdist.control.incidents.causes import dependents_of, note_lost, refund_dependents
from flowdist.control.incidents.ending import stop
from flowdist.control.incidents.restart_set import closure, leaves_in_place, may_stay, scope_worlds, staying
from flowdist.control.incidents.suspects import defer, drop, forget_suspects, take_over
from flowdist.control.job.deadlines import INCIDENT_DUES, Due
from flowdist.control.job.facts import Deferred
from flowdist.control.job.state import Charge, Failure, Incident, JobState, World
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.control.rules import Verdict, stops_with_grace
from flowdist.graph import format_duration

# Results of incidents that have settled; see `settled_result`.
RE_FORMED, RECOVERED = "re-formed", "recovered"
WAITS_FOR_ROOM, NOTHING_LEFT = "waits for room", "nothing was left to restart"


def open_incident(
    job: JobState,
    kind: str,
    root: str,
    reason: str,
    because: str,
    worlds: Iterable[WorldName],
    *,
    lost: dict[ReplicaId, str] | None = None,
    payer: str | None = None,
    verdict: Verdict | None = None,
    deferred: Deferred | None = None,
    suspects: Iterable[NodeName] = (),
) -> Incident:
    """Open an incident, merge the open incidents that share a world with it, stop its restart set, and notify the user.

    It counts as the cause of recent failures of dependents (R7); a free one counts in the row of its worlds (R8).
    `root` failed, left or came. `payer` pays if the `verdict` counts (None: nothing failed, or it is `deferred`).
    """
    incident = Incident(len(job.incidents) + 1, job.now, kind, root, reason)
    job.incidents.append(incident)
    note_lost(job, incident, lost or {})
    _excuse_dependents(job, incident)
    job.open[incident.number] = None
    if deferred is not None:
        defer(job, incident, deferred._replace(own=incident.number), suspects)
    if verdict is not None and verdict.counted and payer is not None:
        claim(job, incident, incident, payer, verdict)
    extend(job, incident, worlds)
    names = ", ".join(incident.worlds) or "nothing"
    backoff_ns = waits_ns(job, incident)
    wait = f", after a back-off of {format_duration(backoff_ns)}" if backoff_ns else ""
    stay = staying(job, incident)
    does = "re-forming" if stay else "restarting"
    if deferred is not None and deferred.blocks:
        does = "stopping"
    if stay:
        names += f", of which {stay} replica{'s' * (stay > 1)} can stay in place"
    text = f"incident {incident.number}: {reason}; {does} {names}{wait} ({because})"
    job.decided("incident_opened", root, text, "warning", incident=incident)
    if not incident.counted and deferred is None:
        limit_free(job, incident)
    return incident


def join_incident(job: JobState, incident: Incident, failure: Failure, worlds: Iterable[WorldName]) -> None:
    """Make a failure part of an open incident, notify the user, and stop these worlds as part of its restart set."""
    note_lost(job, incident, {failure.replica: failure.why})
    text = f"{failure.reason}; part of incident {incident.number} ({incident.root})"
    job.decided("incident_joined", failure.root, text, "warning", incident=incident)
    extend(job, incident, worlds)


def _excuse_dependents(job: JobState, incident: Incident) -> None:
    """Make this incident the cause of dependents' failures that were reported up to `cause_window` before (R7).

    Charges are taken back. Deferred failures are dropped, and restart free of charge, unless a rule is against it.
    """
    dependents = dependents_of(job, incident)
    if not dependents:
        return
    refund_dependents(job, incident, dependents)
    since = job.now - job.graph.options.cause_window_ns
    for other in job.open_incidents():
        found = [each for each in other.deferred if each.failure.replica.role in dependents and not each.caused]
        for deferred in found:
            if deferred.failure.at_ns >= since:
                _excuse(job, other, deferred, incident.root)


def _excuse(job: JobState, incident: Incident, deferred: Deferred, cause: str) -> None:
    """Drop a deferred failure that `cause` (in words) has caused, and restart what it restarts free of charge.

    If a rule says not to restart it, the failure stays deferred, marked as caused (R9).
    """
    failure = deferred.failure
    verdict = judge(job, failure, caused=True)
    if verdict.action != "restart":
        incident.deferred[incident.deferred.index(deferred)] = deferred._replace(caused=True)
        return
    drop(job, incident, deferred, cause)
    job.touched.update(incident.worlds)
    extend(job, incident, closure(job, scope_worlds(job, failure.replica, verdict.scope)))


def extend(job: JobState, incident: Incident, worlds: Iterable[WorldName]) -> None:
    """Add worlds to an open incident, with the open incidents that these are in, which close; stop what is new in it.

    If it had begun to start its worlds, all of them stop once more (R6).
    """
    wanted = dict.fromkeys(worlds)
    for name in list(wanted):
        number = job.worlds[name].incident
        if number is not None and number != incident.number and job.incident(number).is_open:
            other = job.incident(number)
            wanted.update(other.worlds)
            take_over(job, incident, other)
            take_over_backoffs(job, incident, other)
            close(job, other, f"became part of incident {incident.number}")
    new = job.in_order(name for name in wanted if name not in incident.worlds)
    for name in new:
        if (number := job.worlds[name].unstepped_in) is not None:  # it stops before its first step
            job.incident(number).unstepped.clear()  # that incident never recovers
            job.worlds[name].unstepped_in = None
        incident.worlds[name] = incident.awaited[name] = None
        job.worlds[name].incident = incident.number
        job.touch(job.worlds[name])
    if incident.phase == "starting":  # all of the restart set has to stop once more (R6)
        incident.phase, incident.awaited = "stopping", dict(incident.worlds)
        new = list(incident.worlds)
    if new or job.suspended:  # else each of many failures in one large world would visit all of its members
        stop_set(job, incident)


def stop_set(job: JobState, incident: Incident) -> None:
    """Order every member of the restart set that is up to stop, all at once; the orders to dependents come first (R6).

    Members that may stay leave their generation instead; if a world's upstream restarts, those that stay have to end.
    """
    has_grace = stops_with_grace(incident.kind)
    names = sorted(incident.worlds, key=lambda name: -job.roles[job.worlds[name].roles[0]].depth)
    for name in names:
        world = job.worlds[name]
        if world.phase not in ("opening", "running"):
            held = [each for each in job.members_of(world) if each.in_place or each.id in job.suspended]
            for member in held if held and not may_stay(job, incident, world) else ():
                job.dismiss(member)
                if member.phase == "stopping" and member.in_place:
                    stop(job, member, job.role_of(member.id).spec.stop_grace_ns, again=True)
            continue
        job.turn(world, "stopping")
        drop_notice(job, world)
        stays = may_stay(job, incident, world)
        up = [replica for replica in job.members_of(world) if replica.is_up]
        for replica in up:
            spec = job.role_of(replica.id).spec
            in_place = stays and leaves_in_place(job, replica)
            stop(job, replica, spec.grace_ns if has_grace else spec.stop_grace_ns, in_place=in_place)
        if staying := sum(replica.in_place for replica in up):
            text = f"{name}: {staying} of {len(up)} leave generation {world.generation} in place"
            job.decided("left_in_place", name, text, incident=incident)


def drop_notice(job: JobState, world: World) -> None:
    """Drop the world's notice to leave nodes, and its drain and hang deadlines, because the world stops anyway."""
    world.notice = None
    job.due.clear(Due("drain", world.name))
    job.due.clear(Due("hang", world.name))


def leave_incident(job: JobState, world: World) -> None:
    """Take a world out of its open incident, if it is in one. Close the incident if no world is left in it."""
    if world.incident is not None:
        incident = job.incident(world.incident)
        incident.worlds.pop(world.name, None)
        incident.awaited.pop(world.name, None)
        if incident.worlds:
            job.touch(job.worlds[next(iter(incident.worlds))])
        else:
            close(job, incident, settled_result(job, incident), has_settled=True)
        world.incident = None


def settled_result(job: JobState, incident: Incident) -> str:
    """Return in words how a settled incident ends: "re-formed", unless replicas wait for room, end, or serve again."""
    worlds = [job.worlds[name] for name in incident.worlds]
    waiting = ", ".join(str(replica) for world in worlds if world.phase == "waiting" for replica in world.pool)
    if waiting:
        return f"{WAITS_FOR_ROOM}: {waiting}"
    if not incident.restarted:
        return NOTHING_LEFT
    return RE_FORMED if _task_worlds(job, incident) else RECOVERED


def claim(job: JobState, incident: Incident, own: Incident, payer: str, verdict: Verdict) -> int:
    """Make a role pay for the incident of its own failure, and set the back-off of the incident that waits (R7, R10).

    The incident counts against the budget from now on. It is charged when it closes; at once, if it has closed already.
    `incident` is `own`, or one that has taken `own` in. Return its back-off in ns; 0 if it need not wait any more.
    """
    role = job.roles[payer]
    own.root_role, own.counted, own.level = payer, True, verdict.level
    insort(role.spent.setdefault(verdict.level, []), own.opened_ns)
    set_backoff(job, role, incident, own)
    if not own.is_open:
        charge(job, own)
    return waits_ns(job, incident)


def close(job: JobState, incident: Incident, result: str, *, has_settled: bool = False) -> None:
    """Close an incident: release its worlds, drop its deadlines and deferred failures, and charge it if it counts (R7).

    The result is a decision for the user if the incident has settled; else it says why it has not.
    """
    incident.phase, incident.closed_ns, incident.result = "closed", job.now, result
    job.open.pop(incident.number, None)
    for what in INCIDENT_DUES:
        job.due.clear(Due(what, str(incident.number)))
    for name in incident.worlds:
        job.worlds[name].incident = None
        job.touch(job.worlds[name])
    incident.awaited.clear()
    forget_suspects(job, incident)
    if incident.counted:
        charge(job, incident)
    if has_settled:
        paid = f", charged to {incident.charged_to}" if incident.charged_to else ""
        how, rest = (result, "") if result in (RE_FORMED, RECOVERED) else ("over", f"; {result}")
        text = f"incident {incident.number}: {how} after {_words(incident.took_ns)}{paid}{rest}"
        job.decided("incident_closed", incident.root, text, incident=incident)
    if result == RE_FORMED:
        _await_first_steps(job, incident)


def charge(job: JobState, incident: Incident) -> None:
    """Charge a closed incident to the role that pays for it (`root_role`). No other function charges a budget (R7)."""
    assert incident.root_role is not None
    role = job.roles[incident.root_role]
    role.charges.append(Charge(incident.opened_ns, incident.level))
    role.last_counted_ns = job.now
    incident.charged_to = incident.root_role


def note_first_step(job: JobState, world: World) -> None:
    """Record that a member of the world has reported the first step of its generation."""
    world.stepped_ns = job.now
    world.note_read()
    for name in world.roles:
        job.roles[name].has_stepped = True
    if world.unstepped_in is not None:
        incident = job.incident(world.unstepped_in)
        world.unstepped_in = None
        if incident.unstepped.pop(world.name, world) is None:
            _judge_recovered(job, incident)


def _await_first_steps(job: JobState, incident: Incident) -> None:
    for world in _task_worlds(job, incident):
        if world.phase == "running" and world.stepped_ns is None:
            world.unstepped_in = incident.number
            incident.unstepped[world.name] = None
    _judge_recovered(job, incident)


def _judge_recovered(job: JobState, incident: Incident) -> None:
    """Record that a closed incident has recovered, and notify the user, if all of its worlds step that ever will.

    A world whose roles have never reported a step is not waited for: many programs report none.
    """
    if any(job.roles[role].has_stepped for name in incident.unstepped for role in job.worlds[name].roles):
        return
    stepped = [world.stepped_ns for world in _task_worlds(job, incident) if world.stepped_ns is not None]
    if stepped:
        incident.unstepped.clear()
        incident.result, incident.stepped_ns = RECOVERED, max(stepped)
        times = f"re-formed after {_words(incident.took_ns)}, first step after {_words(incident.first_step_ns)}"
        text = f"incident {incident.number}: recovered: {times}"
        job.decided("incident_recovered", incident.root, text, incident=incident)


def _task_worlds(job: JobState, incident: Incident) -> list[World]:
    """Return the worlds of the restart set whose roles are tasks: these may report steps."""
    worlds = [job.worlds[name] for name in incident.worlds]
    return [world for world in worlds if job.roles[world.roles[0]].spec.kind == "task"]


def _words(ns: int | None) -> str:
    """Return a time in words for notices, rounded to milliseconds."""
    return format_duration(round(ns or 0, -6))
