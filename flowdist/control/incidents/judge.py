"""Verdicts on the failures of a job: the rule `judge_failure`, applied to its state."""

from __future__ import annotations

from flowdist.control.job.state import Failure, JobState
from flowdist.control.rules.verdict import Verdict, judge_failure


def judge(job: JobState, failure: Failure, *, caused: bool = False) -> Verdict:
    """Return the verdict on a failure, by the budgets as of the time of the failure. See `judge_failure`."""
    role = job.role_of(failure.replica)
    return judge_failure(role.spec, role.spent, failure, failure.at_ns, caused=caused)


def may_be_excused(job: JobState, verdict: Verdict, failure: Failure) -> bool:
    """Return whether the verdict is a used-up budget, and an upstream role may still turn out to be the cause (R7).

    That needs a replica of an upstream role that is live: its failure may be reported a moment later.
    """
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
