"""Incidents: one cause, the set of worlds that restarts because of it, and who pays for it.

All of a restart set is gone before anything of it starts again (R6). An incident closes when all of it runs again, and
is charged then, once, to the role of its root cause (R7). Two incidents whose sets meet become one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Literal

from flowdist.control.incidents.backoff import set_backoff
from flowdist.control.incidents.causes import (
    LOSS_KINDS,
    await_nodes,
    excuse_dependents,
    first_cause,
    follows_from_loss,
    hold,
    nodes_in_doubt,
    note_lost,
    take_over,
    upstream_incident,
)
from flowdist.control.incidents.closure import closure, scope_worlds
from flowdist.control.incidents.ending import begin_ending, close_store, stop
from flowdist.control.incidents.health import CHOSEN_KINDS, limit_free
from flowdist.control.incidents.in_place import leaves_in_place, may_stay, recall, staying
from flowdist.control.incidents.judge import EXCUSED, Verdict, judge, may_be_excused
from flowdist.control.job.deadlines import INCIDENT_DUES, Due
from flowdist.control.job.state import Charge, Failure, Held, Incident, JobState, Replica, World
from flowdist.control.placement.bad_nodes import blame, moves_away
from flowdist.control.placement.placement import unplace
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.graph import format_duration


def fail(job: JobState, failure: Failure, *, was_told: bool = False) -> None:
    """A replica failed by itself. Judge it, then open an incident, join one, ignore it or fail the job.

    What may follow from the loss of a node that is in doubt is stopped, and judged when that is known (R8).
    """
    replica = job.replicas[failure.replica]
    world = job.worlds[replica.world]
    inside = job.incident(world.incident) if world.incident is not None else None
    unfinished: list[WorldName] = []
    if inside is not None and replica.id in inside.restarted:
        unfinished = [name for name in inside.worlds if job.worlds[name].phase == "stopping"]
        close(job, inside, f"{replica.id} failed again")
        inside = None
    part_of = inside or upstream_incident(job, replica)
    verdict = judge(job, failure, caused=part_of is not None, was_told=was_told)
    is_excused = follows_from_loss(job, failure, was_told=was_told)  # as if the loss had been reported after it
    if is_excused and (was_told or verdict.action != "restart"):
        verdict = EXCUSED
    reason = f"{replica.id} failed on {replica.node}: {failure.why}"
    in_doubt: list[NodeName] = []
    if verdict.action != "restart" or verdict.counted:  # somebody pays, or something ends
        in_doubt = nodes_in_doubt(job, failure, part_of, is_final=verdict.action != "restart")
    elif part_of is not None and not is_excused and any(held.is_final for held in part_of.held):
        in_doubt = list(islice(part_of.in_doubt, 1))  # what it follows from may not restart
    if part_of is None and not in_doubt:
        blame(job, replica, failure.kind, job.now)
    if in_doubt:
        _restart(job, failure, verdict, part_of, reason, in_doubt)
    elif verdict.action == "fail" and not may_be_excused(job, verdict, failure):
        because = f"{reason}; {verdict.because}"
        before = first_cause(job, len(job.incidents) + 1)
        if before is not None:  # else it is said with the end of the job
            job.notify(because, "error")
        begin_ending(job, "failed", *(before or (because, replica.id.role)))
    elif verdict.action == "ignore":
        job.notify(f"{reason}; ignored: {verdict.because}", "warning")
        ignore(job, replica)
    else:
        _restart(job, failure, verdict, part_of, reason)
    _hand_over(job, unfinished, f"{replica.id} failed again")


def _hand_over(job: JobState, worlds: list[WorldName], reason: str) -> None:
    """What an incident that is over was still stopping, and no other has taken: somebody has to start it again."""
    left = [name for name in worlds if job.worlds[name].incident is None and not job.worlds[name].retiring]
    if left and job.ending is None:
        root = str(job.worlds[left[0]].pool[0])
        kind, because = "interrupted", "not counted: it was part of an incident before"
        open_incident(
            job, kind=kind, root=root, root_role=None, reason=reason, because=because, counted=False, seeds=left
        )


def _restart(
    job: JobState,
    failure: Failure,
    verdict: Verdict,
    part_of: Incident | None,
    reason: str,
    in_doubt: Iterable[NodeName] = (),
) -> None:
    only_own = in_doubt and not verdict.counted  # nothing but its own world stops before that is known
    seeds = [job.replicas[failure.replica].world] if only_own else scope_worlds(job, failure.replica, verdict.scope)
    joined = part_of if part_of is not None and part_of.is_open else None
    held = [Held(failure, reason, part_of is not None, verdict.action != "restart", job.now)] if in_doubt else []
    if joined is not None:
        await_nodes(job, joined, in_doubt)
        hold(job, joined, held)
        note_lost(job, joined, {failure.replica: failure.why})
        job.notify(f"{reason}; part of incident {joined.number} ({joined.root})", "warning")
        extend(job, joined, seeds if only_own else closure(job, seeds))
        return
    if in_doubt:
        names = list(in_doubt)
        which = " or ".join(names) if len(names) < 4 else f"one of {len(names)} nodes"
        verdict = verdict._replace(because=f"to be judged when it is known whether {which} is lost")
    elif part_of is not None:
        verdict = verdict._replace(because=f"caused by incident {part_of.number} ({part_of.root}), not counted")
    incident = open_incident(
        job,
        kind=failure.kind,
        root=str(failure.replica),
        root_role=failure.replica.role if verdict.counted or verdict.exhausted else None,
        reason=reason,
        because=verdict.because,
        counted=verdict.counted and not in_doubt,
        level=verdict.level,
        seeds=seeds,
        lost={failure.replica: failure.why},
        in_doubt=in_doubt,
        held=held,
    )
    if verdict.exhausted and incident.is_open and not in_doubt:
        job.due.set(Due("verdict", str(incident.number)), job.now + job.graph.options.cause_window_ns)


def lose(job: JobState, failures: list[Failure], root: str, cause: str, also: Iterable[WorldName] = ()) -> None:
    """Replicas vanish through no fault of theirs: their node is lost, or taken away. One incident (R8).

    `also` are worlds that re-form in it whatever becomes of the lost.
    """
    seeds = list(also)
    counted: Verdict | None = None
    root_role = None
    for failure in failures:
        replica = job.replicas[failure.replica]
        verdict = judge(job, failure)
        if verdict.action == "fail":
            begin_ending(job, "failed", f"{cause}, and with it {replica.id}; {verdict.because}", replica.id.role)
            return
        if verdict.action == "ignore":
            job.notify(f"{cause}, and with it {replica.id}; ignored: {verdict.because}", "warning")
            ignore(job, replica)
            continue
        if verdict.counted and counted is None:
            counted, root_role = verdict, replica.id.role
        seeds.append(replica.world)
    if not seeds or job.ending:
        return
    incident = open_incident(
        job,
        kind=failures[0].kind if failures else "node_lost",
        root=root,
        root_role=root_role,
        reason=cause,
        because="counted by a rule" if counted else "a change of membership, not counted",
        counted=counted is not None,
        level=counted.level if counted else 0,
        seeds=list(dict.fromkeys(seeds)),
        lost={failure.replica: failure.why for failure in failures},
    )
    incident.bereft = {job.replicas[each.replica].world: None for each in failures if each.kind in LOSS_KINDS}


def open_incident(
    job: JobState,
    *,
    kind: str,
    root: str,
    root_role: str | None,
    reason: str,
    because: str,
    counted: bool,
    seeds: list[WorldName],
    level: int = 0,
    lost: dict[ReplicaId, str] | None = None,
    in_doubt: Iterable[NodeName] = (),
    held: Iterable[Held] = (),
) -> Incident:
    """Open it, take in every open incident that it meets, and stop its whole restart set."""
    incident = Incident(len(job.incidents) + 1, job.now, kind, root, root_role, reason, counted, level)
    job.incidents.append(incident)
    hold(job, incident, held)
    await_nodes(job, incident, in_doubt)
    note_lost(job, incident, lost or {})
    for other in excuse_dependents(job, incident):  # what was stopped in doubt restarts after all
        extend(job, other, closure(job, list(other.worlds)))
    job.open[incident.number] = None
    if root_role is not None:
        job.roles[root_role].rooted.append(incident.number)
        if counted:
            job.roles[root_role].spent.setdefault(level, []).append(job.now)
            set_backoff(job, job.roles[root_role], level, incident)
    extend(job, incident, seeds if any(each.is_final for each in held) else closure(job, seeds))
    names = ", ".join(incident.worlds) or "nothing"
    backoff = job.due.at(Due("backoff", str(incident.number)))
    wait = f", after a back-off of {format_duration(backoff - job.now)}" if backoff is not None else ""
    stay = staying(job, incident)
    does = "stopping" if held else "re-forming" if stay else "restarting"
    if stay:
        names += f", of which {stay} replica{'s' * (stay > 1)} can stay in place"
    job.notify(f"incident {incident.number}: {reason}; {does} {names}{wait} ({because})", "warning")
    if not counted and not held:
        limit_free(job, incident)
    return incident


def extend(job: JobState, incident: Incident, worlds: Iterable[WorldName]) -> None:
    """Add them to the restart set, and with them every open incident that they meet."""
    wanted = dict.fromkeys(worlds)
    for name in list(wanted):
        number = job.worlds[name].incident
        if number is not None and number != incident.number and job.incident(number).is_open:
            other = job.incident(number)
            wanted.update(other.worlds)
            take_over(job, incident, other)
            close(job, other, f"became part of incident {incident.number}")
    new = job.in_order(name for name in wanted if name not in incident.worlds)
    for name in new:
        incident.worlds[name] = incident.awaited[name] = None
        job.worlds[name].incident = incident.number
        job.touch(job.worlds[name])
    if incident.phase == "starting":  # once more all of it has to be gone first (R6)
        incident.phase, incident.awaited = "stopping", dict(incident.worlds)
        new = list(incident.worlds)
    stop_set(job, incident, new)
    if new or job.suspended:  # where all of a large world fails, one by one, nothing else is to be looked for
        recall(job, incident)


def stop_set(job: JobState, incident: Incident, worlds: Iterable[WorldName]) -> None:
    """Signal all at once, dependents first (R6)."""
    chosen = incident.kind in CHOSEN_KINDS or incident.kind == "preempted"
    names = sorted(worlds, key=lambda name: -job.roles[job.worlds[name].roles[0]].depth)
    for name in names:
        world = job.worlds[name]
        if world.phase not in ("opening", "running"):
            continue
        job.turn(world, "stopping")
        drop_notice(job, world)
        stays = may_stay(job, incident, world)
        up = [replica for replica in job.members_of(world) if replica.is_up]
        for replica in up:
            spec = job.role_of(replica.id).spec
            in_place = stays and leaves_in_place(job, replica)
            stop(job, replica, spec.grace_ns if chosen else spec.stop_grace_ns, in_place=in_place)
        if staying := sum(replica.in_place for replica in up):
            job.notify(f"{name}: {staying} of {len(up)} leave generation {world.generation} in place")


def drop_notice(job: JobState, world: World) -> None:
    """What the world was asked for is over, one way or the other; so is what it was suspected of."""
    world.notice = None
    job.due.clear(Due("drain", world.name))
    job.due.clear(Due("hang", world.name))


def ignore(job: JobState, replica: Replica) -> None:
    """The replica is ended, not succeeded (R9). A gang cannot go on without one of its own: it ends with it."""
    role = job.role_of(replica.id)
    world = job.worlds[replica.world]
    for mate in job.roles_of(world) if role.spec.gang else ():
        mate.outcome = "ignored"
        job.placement_changed = True
    retire(job, world, "ended", role.spec.stop_grace_ns)
    if role.spec.gang:
        return
    left = len(role.worlds) - role.count("ended") - len(role.leaving)
    if left >= role.spec.min_replicas:
        return
    if role.spec.primary and role.spec.kind == "task":
        reason = f"role {role.spec.name} has lost {replica.id} and is below its minimum"
        begin_ending(job, "failed", reason, role.spec.name)
    elif not left:
        role.outcome = "ignored"
        job.placement_changed = True


def end_ignored(job: JobState, world: World, gate: str) -> None:
    """A role that it waits for will not run again: nor will it, and the job can do without it or not at all (R9)."""
    names = ", ".join(world.roles)
    reason = f"{names} waits for {gate}, which was ignored and does not run again"
    roles = job.roles_of(world)
    if any(role.spec.primary and role.spec.kind == "task" for role in roles):
        begin_ending(job, "failed", reason)
        return
    job.notify(f"{reason}; it is ended, too", "warning")
    for role in roles:
        for name in role.worlds:
            if job.worlds[name].phase == "waiting":
                _end_waiting(job, job.worlds[name])
        if all(job.worlds[name].phase == "ended" for name in role.worlds):  # what still runs may do its work
            role.outcome = "ignored"
    job.placement_changed = True


def _end_waiting(job: JobState, world: World) -> None:
    leave_incident(job, world)
    for replica in job.replicas_in(world):
        job.set_phase(replica, "ended")
        unplace(job, replica)
    job.turn(world, "ended")


def retire(job: JobState, world: World, how: Literal["shrunk", "ended"], grace_ns: int) -> None:
    """End a world that runs, for good (`ended`) or until the operator scales up again (`shrunk`)."""
    leave_incident(job, world)
    world.retiring = how
    for role in job.roles_of(world):
        if how == "ended":
            role.leaving[world.name] = None
        else:
            role.leaving.pop(world.name, None)
    drop_notice(job, world)
    job.turn(world, "stopping")
    for replica in job.members_of(world):
        stop(job, replica, grace_ns)


def leave_incident(job: JobState, world: World) -> None:
    if world.incident is not None:
        incident = job.incident(world.incident)
        incident.worlds.pop(world.name, None)
        incident.awaited.pop(world.name, None)
        _touch_next(job, incident)
        world.incident = None


def _touch_next(job: JobState, incident: Incident) -> None:
    """Whoever is left of the incident has to look whether it is over; with nobody left, it is."""
    if incident.worlds:
        job.touch(job.worlds[next(iter(incident.worlds))])
    else:
        close(job, incident, "recovered")


def advance(job: JobState, names: Iterable[WorldName]) -> None:
    """Of these worlds, whatever has stopped in full goes on to what comes next; incidents that are over are closed."""
    news: dict[int, list[WorldName]] = {}
    for name in names:
        world = job.worlds[name]
        if world.retiring:
            _reset_if_gone(job, world)
        if world.incident is not None:
            news.setdefault(world.incident, []).append(name)
    for number in sorted(news):
        _advance_incident(job, job.incident(number), news[number])


def _advance_incident(job: JobState, incident: Incident, news: list[WorldName]) -> None:
    """Its worlds are awaited one by one: first to be gone, all of them (R6), then to run again."""
    if incident.phase == "stopping" and not incident.in_doubt and Due("verdict", str(incident.number)) not in job.due:
        while incident.awaited and not job.worlds[next(iter(incident.awaited))].live:
            incident.awaited.pop(next(iter(incident.awaited)))
        if not incident.awaited:
            incident.phase = "starting"
            incident.awaited = dict(incident.worlds)
            news = list(incident.worlds)
            job.touched.update(incident.worlds)
    if incident.phase == "starting":
        for name in news:
            _reset_if_gone(job, job.worlds[name])
        while incident.awaited and _is_settled(job, job.worlds[next(iter(incident.awaited))]):
            incident.awaited.pop(next(iter(incident.awaited)))
        if not incident.awaited:
            close(job, incident, "recovered")


def _reset_if_gone(job: JobState, world: World) -> None:
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
    """Its node is lost or leaves, or a GPU of it is bad, or it is no good for it and there is another."""
    if name is None:
        return False
    node = job.nodes[name]
    if any(gpu in node.bad_gpus for gpu in replica.gpus):
        return True
    return not node.usable or node.is_leaving or moves_away(job, replica, name)


def _is_settled(job: JobState, world: World) -> bool:
    """Runs again in full, or has ended, or is a replica beyond the minimum that finds no place for now."""
    if world.phase == "running":
        counts, roles = world.counts, job.roles_of(world)
        up = counts["ready"] + counts["succeeded"] + counts["running"]
        if len(roles) == 1:
            return up - (counts["running"] if roles[0].spec.ready else 0) == len(world.members)
        return up - sum(role.count("running") for role in roles if role.spec.ready) == len(world.members)
    role = job.roles[world.roles[0]]
    if world.phase == "waiting" and not role.spec.gang:
        return job.replicas[world.pool[0]].node is None and role.seats >= role.spec.min_replicas
    return world.phase in ("succeeded", "ended")


def close(job: JobState, incident: Incident, result: str) -> None:
    """It is over, and is charged if it counts (R7)."""
    incident.phase, incident.closed_ns, incident.result = "closed", job.now, result
    job.open.pop(incident.number, None)
    for what in INCIDENT_DUES:
        job.due.clear(Due(what, str(incident.number)))
    for name in incident.worlds:
        job.worlds[name].incident = None
        job.touch(job.worlds[name])
    incident.awaited.clear()
    incident.in_doubt.clear()
    incident.held.clear()
    if incident.counted:
        charge(job, incident)
    if result == "recovered":
        took = format_duration(round(job.now - incident.opened_ns, -6))
        paid = f", charged to {incident.charged_to}" if incident.charged_to else ""
        job.notify(f"incident {incident.number}: recovered after {took}{paid}")


def charge(job: JobState, incident: Incident) -> None:
    """The one place where a budget is charged (R7). The incident is over."""
    assert incident.root_role is not None
    role = job.roles[incident.root_role]
    role.charges.append(Charge(incident.opened_ns, incident.level))
    role.last_counted_ns = job.now
    incident.charged_to = incident.root_role
