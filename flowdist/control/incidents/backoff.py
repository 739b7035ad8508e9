"""Back-off of an incident that a budget pays for (R10): the rule `next_backoff`, applied to a job."""

from __future__ import annotations

from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import Incident, JobState, Role
from flowdist.control.rules.backoff import next_backoff


def set_backoff(job: JobState, role: Role, level: int, incident: Incident, failed_ns: int) -> None:
    """Make an incident wait for the back-off of the budget that pays, and advance the role's back-off step (R10, R11).

    The wait counts from the failure, not from its judgement, which may come later: no deadline is set if the wait is
    over already. If the incident waits longer for another failure, that wait stays.

    Args:
        job: The state.
        role: The role that pays. It has a restart policy.
        level: The number of escalations of its budget: 0 is its own policy.
        incident: The incident that has to wait.
        failed_ns: When the failure happened (ns).
    """
    assert role.spec.restart is not None, f"{role.spec.name} counts without a policy"
    policy = role.spec.restart.chain()[level]
    wait, role.backoff_step = next_backoff(policy, role.backoff_step, role.last_counted_ns, job.now)
    if wait > incident.backoff_ns:
        incident.backoff_ns = wait
        due = Due("backoff", str(incident.number))
        job.due.clear(due)
        if failed_ns + wait > job.now:
            job.due.set(due, failed_ns + wait)
