"""The rules of `control.rules`, applied to the state of a job: back-offs (R10), changes in a row (R8), verdicts."""

from __future__ import annotations

from collections.abc import Iterable

from flowdist.control.incidents.ending import begin_ending
from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import Failure, Incident, JobState, Role, World
from flowdist.control.protocol.ids import WorldName
from flowdist.control.rules import (
    Verdict,
    exceeds_row,
    is_healthy,
    judge_failure,
    next_backoff,
    next_free_row,
    row_text,
)


def set_backoff(job: JobState, role: Role, incident: Incident, own: Incident) -> None:
    """Make an incident wait for the back-off of the budget that pays, and advance the role's back-off step (R10, R11).

    The wait counts from the failure, not from its judgement, which may come later: no deadline is set if the wait is
    over already. If the incident waits longer for another failure, that wait stays. `own` is the incident that the
    failure opened, with the level of the budget.
    """
    assert role.spec.restart is not None, f"{role.spec.name} counts without a policy"
    policy = role.spec.restart.chain()[own.level]
    wait, role.backoff_step = next_backoff(policy, role.backoff_step, role.last_counted_ns, job.now)
    if wait:
        incident.backoffs[own.number] = own.opened_ns + wait
        _plan(job, incident)


def take_over_backoffs(job: JobState, incident: Incident, other: Incident) -> None:
    """Make an incident wait for what the other one, which becomes part of it, still waits for."""
    still = {number: until for number, until in other.backoffs.items() if until > job.now}
    if still:
        incident.backoffs.update(still)
        _plan(job, incident)


def drop_backoff(job: JobState, own: Incident) -> None:
    """Let no open incident wait for the back-off of `own` any more, whose charge is taken back (R7)."""
    for incident in job.open_incidents():
        if incident.backoffs.pop(own.number, None) is not None:
            has_waited_ns = min(incident.backoff_ns, job.now - incident.opened_ns)
            _plan(job, incident)
            incident.backoff_ns = max(incident.backoff_ns, has_waited_ns)
            job.touched.update(incident.worlds)


def _plan(job: JobState, incident: Incident) -> None:
    """Set the deadline of the longest back-off that an incident waits for, if it is not over."""
    until = max(incident.backoffs.values(), default=0)
    incident.backoff_ns = max(0, until - incident.opened_ns)
    due = Due("backoff", str(incident.number))
    job.due.clear(due)
    if until > job.now:
        job.due.set(due, until)


def backs_off_until(job: JobState, worlds: Iterable[WorldName]) -> int:
    """Return the end (ns) of the longest back-off that an incident of these worlds waits for; 0 if none waits."""
    numbers = {job.worlds[name].incident for name in worlds}
    return max((job.due.at(Due("backoff", str(number))) or 0 for number in numbers), default=0)


def waits_ns(job: JobState, incident: Incident) -> int:
    """Return the back-off (ns, from the opening of the incident) that an incident still waits for; 0 if it does not."""
    return incident.backoff_ns if Due("backoff", str(incident.number)) in job.due else 0


def limit_free(job: JobState, incident: Incident) -> None:
    """Add a free incident to the row of each of its worlds; end the job as failed if a row is too long (R8)."""
    options = job.graph.options
    for name in incident.worlds:
        world = job.worlds[name]
        world.free_row = next_free_row(world.free_row, was_healthy(job, world))
        world.progressed = False
        if exceeds_row(world.free_row, incident.kind, options):
            reason = row_text(name, world.free_row, options, incident.reason)
            begin_ending(job, "failed", reason, replicas=incident.lost)
            return


def was_healthy(job: JobState, world: World) -> bool:
    """Return whether the present generation of the world has progressed, or has run for long enough (R8)."""
    return is_healthy(world.progressed, world.formed_ns, job.now, job.graph.options.min_uptime_ns)


def judge(job: JobState, failure: Failure, *, caused: bool = False) -> Verdict:
    """Return the verdict on a failure, by the budgets as of the time of the failure. See `judge_failure`."""
    role = job.role_of(failure.replica)
    return judge_failure(role.spec, role.spent, failure, failure.at_ns, caused=caused)


def may_be_excused(job: JobState, verdict: Verdict, failure: Failure) -> bool:
    """Return whether the budget is used up, but a live upstream role may still turn out to be the cause (R7)."""
    upstream = [job.roles[name] for name in job.role_of(failure.replica).upstream]
    return verdict.exhausted and any(
        role.count(phase) for role in upstream for phase in ("starting", "running", "ready", "stopping")
    )


def first_cause(job: JobState, before: int) -> tuple[str, Failure] | None:
    """Return the earlier deferred failure that fails the job, after the reason in words; None if none does.

    Earlier are failures of open incidents with a number below `before`. An incident with a suspected node among its
    suspects is skipped: its failures may follow from the loss of that node.
    """
    for incident in job.open_incidents():
        if incident.number >= before or not incident.suspects.keys().isdisjoint(job.suspected):
            continue
        for failure, caused, *_ in incident.deferred:
            verdict = judge(job, failure, caused=caused)
            if verdict.action == "fail" and not may_be_excused(job, verdict, failure):
                return f"{failure.reason}; {verdict.because}", failure
    return None
