"""Back-off before restarts that a budget pays for: none before the first, then doubling up to a limit (R10).

`next_backoff` is the rule, a function of values alone; macro mode calls it too. `set_backoff` applies it to a job.
"""

from __future__ import annotations

from typing import NamedTuple

from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import Incident, JobState, Role
from flowdist.graph import RestartPolicy

DOUBLINGS_MAX = 40  # the cap is reached long before; without this bound the shift would build huge integers


class Backoff(NamedTuple):
    """Result of `next_backoff`: how long one incident waits (ns), and the `step` to pass for the next incident."""

    wait_ns: int
    step: int


def next_backoff(policy: RestartPolicy, step: int, last_counted_ns: int | None, now: int) -> Backoff:
    """Return how long an incident that a budget pays for waits, and the step of the next one. Nothing is changed.

    The first restart does not wait. Each later one waits twice as long as the one before, from `backoff_ns` to
    `backoff_max_ns`. After `backoff_reset_ns` without such an incident the series starts anew.

    Args:
        policy: The policy whose budget pays.
        step: How many incidents of the series came before this one.
        last_counted_ns: When the role's last charged incident closed (ns); None: there was none.
        now: When the incident opens (ns).
    """
    if last_counted_ns is not None and now - last_counted_ns >= policy.backoff_reset_ns:
        step = 0
    wait = min(policy.backoff_ns << min(step - 1, DOUBLINGS_MAX), policy.backoff_max_ns) if step else 0
    return Backoff(wait, step + 1)


def step_without_last(step: int) -> int:
    """Return the back-off step of a role after the charge of its last incident is taken back (R7); never negative."""
    return max(0, step - 1)


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
