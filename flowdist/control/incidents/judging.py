"""The one place where recorded facts are judged, each once, in the order in which they were recorded.

A failure that no budget, role or job pays for is judged at once, and so is one without suspects (`suspects.py`). What
must not wait is done at once as well: the worlds that a failure blocks are stopped. The judgement of a failure with
suspects waits until these have answered, were heard, or are lost. Then it is one of: restart at the cost of a budget,
end the job, end the replica, or, if a suspect is lost, nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile
from typing import assert_never

from flowdist.control.incidents.causes import LOSS_KINDS, follows_from_loss, upstream_incident
from flowdist.control.incidents.closure import closure, scope_worlds
from flowdist.control.incidents.ending import begin_ending
from flowdist.control.incidents.judge import EXCUSED, Verdict, judge, may_be_excused
from flowdist.control.incidents.recovery import claim, close, extend, join_incident, open_incident
from flowdist.control.incidents.retiring import ignore
from flowdist.control.incidents.suspects import (
    awaited_nodes,
    defer,
    drop,
    forget_suspects,
    is_resolved,
    renew_deadline,
    suspects_of,
    take_over,
)
from flowdist.control.job.facts import FREE, Change, Deferred, Ended, Heard, Loss
from flowdist.control.job.state import Failure, Incident, JobState, Replica
from flowdist.control.placement.bad_nodes import blame, note_loss
from flowdist.control.protocol.ids import NodeName, WorldName
from flowdist.graph import format_duration


def judge_recorded(job: JobState) -> None:
    """Judge what events and deadlines have recorded since the last call."""
    facts, job.facts = job.facts, []
    for fact in facts:
        match fact:
            case Loss():
                _judge_loss(job, fact)
            case _ if job.ending is not None:
                pass  # what fails while the job ends changes nothing
            case Failure():
                _judge_failure(job, fact)
            case Change():
                open_incident(job, fact.kind, fact.root, fact.reason, fact.because, closure(job, list(fact.worlds)))
            case Heard():
                _judge_heard(job, fact.node)
            case Ended():
                _judge_answer(job, job.replicas[fact.replica])
            case _:
                assert_never(fact)


def _judge_failure(job: JobState, failure: Failure) -> None:
    """Stop at once what the failure blocks. Judge it, unless it has suspects."""
    replica = job.replicas[failure.replica]
    left = _leave_restarted(job, replica)
    number = job.worlds[replica.world].incident
    part_of = job.incident(number) if number is not None else upstream_incident(job, replica)
    verdict, suspects = _verdict(job, failure, part_of)
    if suspects or _may_be_excused(job, failure, verdict):
        _defer(job, failure, part_of, verdict, suspects)
    else:
        _conclude(job, failure, part_of, verdict)
    if left is not None:
        _hand_over(job, left)


def _leave_restarted(job: JobState, replica: Replica) -> Incident | None:
    """Close the incident that has restarted the replica: another begins. Return what it leaves unfinished."""
    number = job.worlds[replica.world].incident
    if number is None or replica.id not in job.incident(number).restarted:
        return None
    incident = job.incident(number)
    deferred, suspects = list(incident.deferred), dict(incident.suspects)
    close(job, incident, f"{replica.id} failed again")
    return replace(incident, deferred=deferred, suspects=suspects)


def _hand_over(job: JobState, left: Incident) -> None:
    """Give what a closed incident was still stopping, and its deferred failures, to incidents that are open."""
    if job.ending is not None:
        return
    worlds = [job.worlds[name] for name in left.worlds]
    names = [each.name for each in worlds if each.phase == "stopping" and each.incident is None and not each.retiring]
    if names:
        root, because = str(job.worlds[names[0]].pool[0]), "not counted: it was part of an incident before"
        open_incident(job, "interrupted", root, left.result, because, closure(job, names))
    for deferred in left.deferred:
        number = job.worlds[job.replicas[deferred.failure.replica].world].incident
        if number is not None:
            take_over(job, job.incident(number), replace(left, deferred=[deferred]))


def _verdict(job: JobState, failure: Failure, part_of: Incident | None) -> tuple[Verdict, list[NodeName]]:
    """Return what follows if none of the suspects is lost, and the suspects."""
    verdict = judge(job, failure, caused=part_of is not None)
    if (failure.was_told or verdict.action != "restart") and follows_from_loss(job, failure):
        return EXCUSED, []
    if verdict.action != "restart" or verdict.counted:  # a budget, a role or the job pays
        return verdict, suspects_of(job, failure, verdict, part_of)
    if part_of is not None and any(each.is_final for each in part_of.deferred):  # it may end what this follows from
        return verdict, awaited_nodes(job, part_of)[:1]
    return verdict, []


def _may_be_excused(job: JobState, failure: Failure, verdict: Verdict) -> bool:
    """Return whether an upstream may still fail, and take the blame for a budget that is used up (R7)."""
    is_early = job.now < failure.at_ns + job.graph.options.cause_window_ns
    return is_early and verdict.action == "fail" and may_be_excused(job, verdict, failure)


def _defer(
    job: JobState, failure: Failure, part_of: Incident | None, verdict: Verdict, suspects: list[NodeName]
) -> None:
    """Stop what the failure blocks: the restart set if a restart is likely, else its own world. Judge it later."""
    is_final = verdict.action != "restart"
    awaits_upstream = _may_be_excused(job, failure, verdict)
    blocks = not verdict.counted or not job.suspected.keys().isdisjoint(suspects)
    deferred = Deferred(failure, part_of is not None, is_final, blocks, awaits_upstream)
    own_world = job.replicas[failure.replica].world
    if part_of is not None and part_of.is_open:
        defer(job, part_of, deferred, suspects)
        join_incident(job, part_of, failure, [own_world])
        return
    because = verdict.because
    if blocks and suspects:
        names = [name for name in suspects if is_final or name in job.suspected]
        which = " or ".join(names) if len(names) < 4 else f"one of {len(names)} nodes"
        because = f"to be judged when it is known whether {which} is lost"
    elif awaits_upstream:
        window = format_duration(job.graph.options.cause_window_ns)
        because = f"{verdict.because}, unless something that it depends on fails within {window}"
    worlds = scope_worlds(job, failure.replica, verdict.scope) if verdict.counted else [own_world]
    seeds = closure(job, worlds) if verdict.counted else worlds
    lost = {failure.replica: failure.why}
    root = str(failure.replica)
    open_incident(
        job, failure.kind, root, failure.reason, because, seeds, lost=lost, deferred=deferred, suspects=suspects
    )


def _conclude(job: JobState, failure: Failure, part_of: Incident | None, verdict: Verdict) -> None:
    """Judge a failure at once."""
    if part_of is None:
        blame(job, job.replicas[failure.replica], failure.kind, failure.at_ns)
    if verdict.action != "restart":
        _end(job, failure, verdict, len(job.incidents) + 1)
        return
    worlds = scope_worlds(job, failure.replica, verdict.scope)
    if part_of is not None and part_of.is_open:
        join_incident(job, part_of, failure, closure(job, worlds))
        return
    because = verdict.because
    if part_of is not None:
        because = f"caused by incident {part_of.number} ({part_of.root}), not counted"
    open_incident(
        job,
        failure.kind,
        str(failure.replica),
        failure.reason,
        because,
        closure(job, worlds),
        lost={failure.replica: failure.why},
        payer=failure.replica.role,
        verdict=verdict,
    )


def _end(job: JobState, failure: Failure, verdict: Verdict, number: int, because: str = "") -> None:
    """Fail the job, or end the replica. Of several failures that fail the job the first is named (R18).

    Args:
        job: The state.
        failure: A failure after which its replica does not run again.
        verdict: Fail or ignore.
        number: The incident of the failure. A deferred failure of an earlier one happened before.
        because: What has made clear that no suspect is lost, if the failure was deferred.
    """
    if verdict.action == "ignore":
        says = f"{because}: " if because else ""
        job.notify(f"{failure.reason}; {says}ignored: {verdict.because}", "warning")
        ignore(job, job.replicas[failure.replica])
        return
    first = _first_cause(job, number)
    if first is not None or number <= len(job.incidents):  # else the end of the job says it
        says = f"{because}, and " if because else ""
        job.notify(f"{failure.reason}; {says}{verdict.because}", "error")
    begin_ending(job, "failed", *(first or (f"{failure.reason}; {verdict.because}", failure.replica.role)))


def _first_cause(job: JobState, before: int) -> tuple[str, str] | None:
    """Return why the job fails, and for which role, by a deferred failure of an incident with a number below `before`.

    Failures that may follow from the loss of a suspected node are no cause yet.
    """
    for incident in job.open_incidents():
        if incident.number >= before or not incident.suspects.keys().isdisjoint(job.suspected):
            continue
        for failure, caused, *_ in incident.deferred:
            verdict = judge(job, failure, caused=caused)
            if verdict.action == "fail" and not may_be_excused(job, verdict, failure):
                return f"{failure.reason}; {verdict.because}", failure.replica.role
    return None


def _judge_heard(job: JobState, name: NodeName) -> None:
    """The node is not lost: failures that had no other suspect are judged."""
    for incident in job.open_incidents():
        if incident.suspects.pop(name, None) is not None:
            conclude_resolved(job, incident, f"{name} is heard again")


def _judge_answer(job: JobState, replica: Replica) -> None:
    """The node of an ended attempt is not lost, once nothing else of the incident runs there.

    A suspected node has to be heard all the same: this message may have been on its way for long.
    """
    number, name = job.worlds[replica.world].incident, replica.node
    if number is None or name is None or name in job.suspected or name not in job.incident(number).suspects:
        return
    incident = job.incident(number)
    others = [job.replicas[other] for other in job.nodes[name].replicas]
    if not any(other.is_live and other.world in incident.worlds for other in others):
        del incident.suspects[name]
        conclude_resolved(job, incident)


def judge_unanswered(job: JobState, incident: Incident) -> None:
    """Judge at an answer deadline: a node that is not suspected by now has sent a heartbeat since the failure."""
    conclude_resolved(job, incident)
    if incident.deferred:
        renew_deadline(job, incident)
        conclude_resolved(job, incident)


def conclude_resolved(job: JobState, incident: Incident, because: str = "") -> None:
    """Judge the deferred failures of the incident, in order, up to the first with a suspect."""
    conclude_deferred(
        job, incident, takewhile(lambda each: is_resolved(job, incident, each), incident.deferred), because
    )


def conclude_deferred(job: JobState, incident: Incident, resolved: Iterable[Deferred], because: str = "") -> None:
    """Judge these failures, the first that are deferred, as of the time at which they happened."""
    known = list(resolved)
    if not known:
        return
    incident.deferred = incident.deferred[len(known) :]
    if not incident.deferred:
        forget_suspects(job, incident)
    job.touched.update(incident.worlds)
    for deferred in known:
        failure = deferred.failure
        replica = job.replicas[failure.replica]
        if job.worlds[replica.world].incident != incident.number:
            continue  # it was ended meanwhile
        verdict = judge(job, failure, caused=deferred.caused)
        if _may_be_excused(job, failure, verdict):
            defer(job, incident, deferred._replace(is_final=True, blocks=True, awaits_upstream=True), ())
            continue
        if not deferred.caused and replica.node is not None:
            blame(job, replica, failure.kind, failure.at_ns)
        if verdict.action != "restart":
            _end(job, failure, verdict, incident.number, because)
            if job.ending is not None:
                return
            continue
        _restart_deferred(job, incident, deferred, verdict, because)


def _restart_deferred(job: JobState, incident: Incident, deferred: Deferred, verdict: Verdict, because: str) -> None:
    """Restart what the failure restarts by its scope, at the cost of a budget if it counts."""
    failure = deferred.failure
    extend(job, incident, closure(job, scope_worlds(job, failure.replica, verdict.scope)))
    wait = ""
    if verdict.counted:
        assert deferred.own is not None
        backoff_ns = claim(job, incident, job.incident(deferred.own), failure.replica.role, verdict)
        wait = f", after a back-off of {format_duration(backoff_ns)}" if backoff_ns else ""
    if deferred.blocks or because or wait:
        says = f"{because}: " if because else ""
        job.notify(f"incident {incident.number}: {says}{verdict.because}{wait}")


def _judge_loss(job: JobState, loss: Loss) -> None:
    """Restart the worlds of what was lost, with those whose failures follow from the loss. One incident (R8).

    A replica that was told to stop is no loss, unless it was told because of such a failure.
    """
    peers = _drop_followers(job, loss)
    lost = [each for each in loss.lost if not each.was_told or job.replicas[each.replica].world in peers]
    if lost and loss.node is not None and loss.is_blamed:
        note_loss(job, loss.node)
    if loss.is_told:
        names = ", ".join(str(each.replica) for each in lost)
        job.notify(f"{loss.cause}; lost replicas: {names}" if lost else loss.cause, "warning")
    if job.ending is None and (lost or peers or loss.also):
        _restart_lost(job, loss, lost, [*peers, *loss.also])
    for incident in job.open_incidents() if peers else ():
        conclude_resolved(job, incident)


def _drop_followers(job: JobState, loss: Loss) -> dict[WorldName, None]:
    """Drop deferred failures that follow from the loss of a node. Return the worlds of their incidents."""
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
    """Open the incident of a loss, unless a rule of a lost replica's role decides otherwise (R9)."""
    seeds = list(also)
    payer: str | None = None
    charged: Verdict | None = None
    for failure in lost:
        verdict = judge(job, failure._replace(at_ns=job.now))
        if verdict.action == "fail":
            why = f"{loss.cause}; lost replicas: {failure.replica}; {verdict.because}"
            begin_ending(job, "failed", why, failure.replica.role)
            return
        if verdict.action == "ignore":
            job.notify(f"{loss.cause}; lost replicas: {failure.replica}; ignored: {verdict.because}", "warning")
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
