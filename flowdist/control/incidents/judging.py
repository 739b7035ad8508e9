"""The one place where recorded failures and losses are judged, each once, in the order in which they were recorded.

A failure that no budget, role or job pays for is judged at once, and so is one without suspects (`suspects.py`). What
must not wait is done at once as well: the worlds that a failure blocks are stopped. The judgement of a failure with
suspects waits until these have answered, were heard, or are lost. Then it is one of: restart at the cost of a budget,
end the job, end the replica, or, if a suspect is lost, nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from flowdist.control.incidents.applied_rules import first_cause, judge, may_be_excused
from flowdist.control.incidents.causes import LOSS_KINDS, follows_from_loss, upstream_incident
from flowdist.control.incidents.ending import begin_ending
from flowdist.control.incidents.hangs import awaits_steps, name_culprit
from flowdist.control.incidents.recovery import claim, close, extend, join_incident, open_incident
from flowdist.control.incidents.restart_set import closure, scope_worlds
from flowdist.control.incidents.retiring import ignore
from flowdist.control.incidents.suspects import (
    awaited_nodes,
    clear,
    defer,
    drop,
    forget_suspects,
    has_answered,
    is_resolved,
    renew_deadline,
    suspects_of,
    take_over,
)
from flowdist.control.job.facts import FREE, Deferred, Loss
from flowdist.control.job.state import Failure, Incident, JobState, Replica
from flowdist.control.placement.bad_nodes import blame, note_loss
from flowdist.control.protocol.events import NodeHeard
from flowdist.control.protocol.ids import NodeName, WorldName
from flowdist.control.rules import EXCUSED, PEER_HANGS, Verdict
from flowdist.graph import format_duration


def judge_failure(job: JobState, failure: Failure) -> None:
    """Judge a failure now, or defer it if a node, a peer or an upstream role may still turn out to be its cause.

    Either way, what the failure blocks is stopped at once. If the open incident of its world has restarted the replica
    already, the failure is a new one, and that incident closes. Of a world that was ordered to stop and is not to run
    again, a failure is a stop like any other, unless a rule ends the job or the replica (R16).
    """
    replica = job.replicas[failure.replica]
    if failure.was_told and job.worlds[replica.world].retiring and judge(job, failure, caused=True).action == "restart":
        blame(job, replica, failure.kind, failure.at_ns)
        return
    left = _leave_restarted(job, replica)
    number = job.worlds[replica.world].incident
    part_of = job.incident(number) if number is not None else upstream_incident(job, replica)
    verdict, suspects = _verdict(job, failure, part_of)
    may_be_peer = part_of is None and verdict is not EXCUSED and awaits_steps(job, failure)
    if suspects or may_be_peer or _may_be_excused(job, failure, verdict):
        _defer(job, failure, part_of, verdict, suspects, may_be_peer)
    else:
        _conclude(job, failure, part_of, verdict)
    if left is not None:
        _hand_over(job, left)


def _leave_restarted(job: JobState, replica: Replica) -> Incident | None:
    """Close the open incident of the replica's world, if that incident has restarted the replica already.

    Return a copy of the incident with the deferred failures and suspects that it had before, for `_hand_over`; None if
    no incident was closed.
    """
    number = job.worlds[replica.world].incident
    if number is None or replica.id not in job.incident(number).restarted:
        return None
    incident = job.incident(number)
    deferred, suspects = list(incident.deferred), dict(incident.suspects)
    if has_answered(job, incident, replica):
        suspects.pop(replica.node or "", None)
    close(job, incident, f"{replica.id} failed again")
    return replace(incident, deferred=deferred, suspects=suspects)


def _hand_over(job: JobState, left: Incident) -> None:
    """Give the unfinished work of a closed incident to open ones; do nothing if the job ends.

    Its worlds that still stop, and are in no open incident, get a free one. Each of its deferred failures goes to the
    open incident of the failed replica's world, with the suspects. `left` is what `_leave_restarted` has returned.
    """
    if job.ending is not None:
        return
    worlds = [job.worlds[name] for name in left.worlds]
    names = [each.name for each in worlds if each.phase == "stopping" and each.incident is None and not each.retiring]
    if names:
        root, because = str(job.worlds[names[0]].pool[0]), "not counted: it was part of an incident before"
        open_incident(job, "interrupted", root, left.result, because, closure(job, names))
    taken: dict[int, None] = {}
    for deferred in left.deferred:
        number = job.worlds[job.replicas[deferred.failure.replica].world].incident
        if number is not None:
            take_over(job, job.incident(number), replace(left, deferred=[deferred]))
            taken[number] = None
    for number in taken:
        conclude_resolved(job, job.incident(number))  # the second failure may be the answer that was still missing


def _verdict(job: JobState, failure: Failure, part_of: Incident | None) -> tuple[Verdict, list[NodeName]]:
    """Return the verdict on a failure, which is certain without suspects, and the suspects. Nothing is changed."""
    if failure.has_timed_out and job.worlds[job.replicas[failure.replica].world].hangs:
        return PEER_HANGS, []
    verdict = judge(job, failure, caused=part_of is not None)
    if (failure.was_told or verdict.action != "restart") and follows_from_loss(job, failure):
        return EXCUSED, []
    if verdict.action != "restart" or verdict.counted:  # a budget, a role or the job pays
        return verdict, suspects_of(job, failure, verdict, part_of)
    # A deferred failure of `part_of` may still end the job: this one waits with it.
    if part_of is not None and any(each.is_final for each in part_of.deferred):
        return verdict, awaited_nodes(job, part_of)[:1]
    return verdict, []


def _may_be_excused(job: JobState, failure: Failure, verdict: Verdict) -> bool:
    """Return whether an upstream role may yet turn out, within `cause_window`, to be why a budget is used up (R7)."""
    is_early = job.now < failure.at_ns + job.graph.options.cause_window_ns
    return is_early and verdict.action == "fail" and may_be_excused(job, verdict, failure)


def _defer(
    job: JobState,
    failure: Failure,
    part_of: Incident | None,
    verdict: Verdict,
    suspects: list[NodeName],
    may_be_peer: bool,
) -> None:
    """Add a failure to those that are judged later, and stop what it blocks at once.

    That is the restart set if a budget is expected to pay for a restart, else the world of the failure alone. Without
    an open incident `part_of` that it belongs to, the failure opens one. `verdict` is that if no suspect is lost;
    `suspects` may be empty if the judgement waits for something else. `may_be_peer`: another member of the world may
    hang; the world writes its stacks when it is stopped (R15).
    """
    is_final = verdict.action != "restart"
    awaits_upstream = _may_be_excused(job, failure, verdict)
    blocks = not verdict.counted or not job.suspected.keys().isdisjoint(suspects)
    deferred = Deferred(failure, part_of is not None, is_final, blocks, awaits_upstream, may_be_peer)
    own_world = job.replicas[failure.replica].world
    job.worlds[own_world].hangs |= may_be_peer
    if part_of is not None and part_of.is_open:
        defer(job, part_of, deferred, suspects)
        join_incident(job, part_of, failure, [own_world])
        return
    because = verdict.because
    if blocks and suspects:
        names = [name for name in suspects if is_final or name in job.suspected]
        which = " or ".join(names) if len(names) < 4 else f"one of {len(names)} nodes"
        because = f"to be judged when it is known whether {which} is lost"
    elif may_be_peer:
        because = "to be judged when all have stopped: a rank that is further behind may hang"
    elif awaits_upstream:
        window = format_duration(job.graph.options.cause_window_ns)
        because = f"{verdict.because}, unless something that it depends on fails within {window}"
    worlds = scope_worlds(job, failure.replica, verdict.scope) if verdict.counted else [own_world]
    seeds = closure(job, worlds) if verdict.counted else worlds
    lost = {failure.replica: failure.why}
    open_incident(
        job, failure.kind, failure.root, failure.reason, because, seeds, lost=lost, deferred=deferred, suspects=suspects
    )


def _conclude(job: JobState, failure: Failure, part_of: Incident | None, verdict: Verdict) -> None:
    """Carry out the verdict on a failure that is not deferred, as part of an open incident or with a new one."""
    if part_of is None and not failure.world:
        blame(job, job.replicas[failure.replica], failure.kind, failure.at_ns)
    if verdict.action != "restart":
        _end(job, failure, verdict, len(job.incidents) + 1)
        return
    worlds = closure(job, scope_worlds(job, failure.replica, verdict.scope))
    if part_of is not None and part_of.is_open and not _is_apart(part_of, worlds):
        join_incident(job, part_of, failure, worlds)
        return
    because = verdict.because
    if part_of is not None:
        because = f"caused by incident {part_of.number} ({part_of.root}), not counted"
    open_incident(
        job,
        failure.kind,
        failure.root,
        failure.reason,
        because,
        worlds,
        lost={failure.replica: failure.why},
        payer=failure.replica.role,
        verdict=verdict,
    )


def _is_apart(incident: Incident, worlds: Iterable[WorldName]) -> bool:
    """Return whether these worlds can restart without those of an incident, which is starting its own again.

    They were not ordered to stop with them, as a caller of a service whose gate says "reconnect". If they joined the
    incident, all of it would have to stop once more (R6): the service would be stopped again because its callers fail.
    """
    return incident.phase == "starting" and incident.worlds.keys().isdisjoint(worlds)


def _end(job: JobState, failure: Failure, verdict: Verdict, number: int, because: str = "") -> None:
    """Carry out a verdict after which the replica does not run again: fail the job, or end the replica ("ignore").

    If a deferred failure of an earlier incident would fail the job as well, the job fails for that one (R18). `number`
    is that of its incident, or of the next one if it opened none. `because` says what has made clear that no suspect is
    lost; empty if the failure was not deferred.
    """
    if verdict.action == "ignore":
        says = f"{because}: " if because else ""
        job.decided("failure_ignored", failure.root, f"{failure.reason}; {says}ignored: {verdict.because}", "warning")
        ignore(job, job.replicas[failure.replica])
        return
    first = first_cause(job, number)
    if first is not None or number <= len(job.incidents):  # else the reason of the job's end says the same
        says = f"{because}, and " if because else ""
        job.decided("failure_final", failure.root, f"{failure.reason}; {says}{verdict.because}", "error")
    reason, cause = first or (f"{failure.reason}; {verdict.because}", failure)
    failed = job.worlds[cause.world].members if cause.world else [cause.replica]
    begin_ending(job, "failed", reason, cause.replica.role, failed)


def judge_heard(job: JobState, event: NodeHeard) -> None:
    """Remove a node that was heard from the suspects of all open incidents; judge failures that waited for it alone."""
    for incident in job.open_incidents():
        if clear(job, incident, event.node, job.now if event.up_ns is None else event.up_ns):
            conclude_resolved(job, incident, f"{event.node} is heard again")


def judge_answer(job: JobState, replica: Replica) -> None:
    """Remove a node that answered by an attempt's end from its incident's suspects; judge what waited for it."""
    number = job.worlds[replica.world].incident
    if number is None or replica.node is None or replica.node not in job.incident(number).suspects:
        return
    incident = job.incident(number)
    if has_answered(job, incident, replica):
        del incident.suspects[replica.node]
        conclude_resolved(job, incident)


def judge_unanswered(job: JobState, incident: Incident) -> None:
    """Judge the deferred failures of an incident at its answer deadline, as far as no suspected node is in question.

    A node that is not suspected by then has sent a heartbeat since the failure. If failures remain, the next deadline
    is set.
    """
    conclude_resolved(job, incident)
    if incident.deferred:
        renew_deadline(job, incident)
        conclude_resolved(job, incident)


def conclude_resolved(job: JobState, incident: Incident, because: str = "") -> None:
    """Judge the deferred failures of the incident, in order of time, up to the first that still has a suspect."""
    conclude_deferred(
        job, incident, takewhile(lambda each: is_resolved(job, incident, each), incident.deferred), because
    )


def conclude_deferred(job: JobState, incident: Incident, resolved: Iterable[Deferred], because: str = "") -> None:
    """Remove failures from the deferred ones of the incident, and judge each as of the time at which it happened.

    A failure whose world has left the incident meanwhile is dropped. One of which an upstream may still turn out to be
    the cause is deferred again. Once one of them ends the job, the rest is dropped. `resolved` are the first of
    `incident.deferred`, in their order; `because` says what has resolved them, or nothing.
    """
    known = list(resolved)
    if not known:
        return
    incident.deferred = incident.deferred[len(known) :]
    if not incident.deferred:
        forget_suspects(job, incident)
    job.touched.update(incident.worlds)
    for deferred in known:
        if job.worlds[job.replicas[deferred.failure.replica].world].incident != incident.number:
            continue  # its world was ended meanwhile
        failure = name_culprit(job, incident, deferred)
        replica = job.replicas[failure.replica]
        verdict = judge(job, failure, caused=deferred.caused)
        if _may_be_excused(job, failure, verdict):
            defer(job, incident, deferred._replace(is_final=True, blocks=True, awaits_upstream=True), ())
            continue
        if not deferred.caused and not failure.world and replica.node is not None:
            blame(job, replica, failure.kind, failure.at_ns)
        if verdict.action != "restart":
            _end(job, failure, verdict, incident.number, because)
            if job.ending is not None:
                return
            continue
        _restart_deferred(job, incident, deferred, failure, verdict, because)


def _restart_deferred(
    job: JobState, incident: Incident, deferred: Deferred, failure: Failure, verdict: Verdict, because: str
) -> None:
    """Add what a deferred failure (or its culprit, R15) restarts to the incident; a budget pays if it counts."""
    extend(job, incident, closure(job, scope_worlds(job, failure.replica, verdict.scope)))
    wait = ""
    if verdict.counted:
        assert deferred.own is not None
        backoff_ns = claim(job, incident, job.incident(deferred.own), failure.replica.role, verdict)
        wait = f", after a back-off of {format_duration(backoff_ns)}" if backoff_ns else ""
    if deferred.awaits_steps:
        is_named = failure is not deferred.failure
        because = failure.reason if is_named else because or f"no rank is known to be behind {failure.replica}"
    if deferred.blocks or because or wait:
        says = f"{because}: " if because else ""
        text = f"incident {incident.number}: {says}{verdict.because}{wait}"
        job.decided("incident_judged", failure.root, text, incident=incident)


def judge_loss(job: JobState, loss: Loss) -> None:
    """Judge a loss: drop the deferred failures that follow from it, and restart what was lost, in one incident (R8).

    A lost replica that had an order to stop is left out, unless the order was given because of such a failure. Failures
    of other incidents that have no suspect any more are judged. While the job ends, nothing restarts.
    """
    peers = _drop_followers(job, loss)
    lost = [each for each in loss.lost if not each.was_told or job.replicas[each.replica].world in peers]
    if lost and loss.node is not None and loss.is_blamed:
        note_loss(job, loss.node)
    if loss.is_told:
        names = ", ".join(str(each.replica) for each in lost)
        text = f"{loss.cause}; lost replicas: {names}" if lost else loss.cause
        job.decided("node_lost", loss.root, text, "warning")
    if job.ending is None and (lost or peers or loss.also):
        _restart_lost(job, loss, lost, [*peers, *loss.also])
    for incident in job.open_incidents() if peers else ():
        conclude_resolved(job, incident)


def _drop_followers(job: JobState, loss: Loss) -> dict[WorldName, None]:
    """Drop what follows from the loss of a node, and it as a suspect; return the worlds it was suspected for."""
    worlds: dict[WorldName, None] = {}
    for incident in job.open_incidents():
        since = incident.suspects.pop(loss.node, None) if loss.node is not None else None
        if since is None:
            continue
        worlds.update(incident.worlds)
        for deferred in [each for each in incident.deferred if each.failure.at_ns >= since]:
            drop(job, incident, deferred, f"the loss of {loss.node}")
    return worlds


def _restart_lost(job: JobState, loss: Loss, lost: list[Failure], also: Iterable[WorldName]) -> None:
    """Open the incident of a loss, with the worlds `also`, unless a rule of a lost role decides otherwise (R9)."""
    seeds = list(also)
    payer: str | None = None
    charged: Verdict | None = None
    for failure in lost:
        verdict = judge(job, failure)
        if verdict.action == "fail":
            why = f"{loss.cause}; lost replicas: {failure.replica}; {verdict.because}"
            begin_ending(job, "failed", why, failure.replica.role, [failure.replica])
            return
        if verdict.action == "ignore":
            text = f"{loss.cause}; lost replicas: {failure.replica}; ignored: {verdict.because}"
            job.decided("failure_ignored", failure.root, text, "warning")
            ignore(job, job.replicas[failure.replica])
            continue
        if verdict.counted and charged is None:
            charged, payer = verdict, failure.replica.role
        seeds.append(job.replicas[failure.replica].world)
    if not seeds or job.ending:
        return
    incident = open_incident(
        job,
        lost[0].kind if lost else "node_lost",
        loss.root,
        loss.cause,
        "counted by a rule" if charged else FREE,
        closure(job, list(dict.fromkeys(seeds))),
        lost={failure.replica: failure.why for failure in lost},
        payer=payer,
        verdict=charged,
    )
    incident.bereft = {job.replicas[each.replica].world: None for each in lost if each.kind in LOSS_KINDS}
