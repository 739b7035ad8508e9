"""Back-off of restarts that a budget pays for: none, then doubling to a cap, anew after a quiet period (R10).

`next_backoff` is the rule, a function of values alone; macro mode calls it too. `set_backoff` applies it to a job.
"""

from __future__ import annotations

from typing import NamedTuple

from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import Incident, JobState, Role
from flowdist.graph import RestartPolicy

DOUBLINGS_MAX = 40  # the cap is reached long before; without this bound the shift would build huge integers


class Backoff(NamedTuple):
    """Wait of one counted incident, in ns, and the step that the next one starts from."""

    wait_ns: int
    step: int


def next_backoff(policy: RestartPolicy, step: int, last_counted_ns: int | None, now: int) -> Backoff:
    """Return how long a counted incident that opens at `now` (ns) waits before its worlds start again.

    The first restart does not wait. Each later one waits twice as long as the one before, from `backoff_ns` to
    `backoff_max_ns`. After `backoff_reset_ns` without a counted incident the series starts anew.

    Args:
        policy: The policy of the level that is charged.
        step: Counted incidents of the series so far.
        last_counted_ns: When the role's last counted incident closed; None: there was none.
        now: When the incident opens.
    """
    if last_counted_ns is not None and now - last_counted_ns >= policy.backoff_reset_ns:
        step = 0
    wait = min(policy.backoff_ns << min(step - 1, DOUBLINGS_MAX), policy.backoff_max_ns) if step else 0
    return Backoff(wait, step + 1)


def step_without_last(step: int) -> int:
    """Return the step of the series after its last incident turned out to have another cause (R7)."""
    return max(0, step - 1)


def set_backoff(job: JobState, role: Role, level: int, incident: Incident, failed_ns: int) -> None:
    """Make the incident wait for the back-off of the budget level that it is charged to (R10, R11).

    The wait counts from the failure, at `failed_ns`, not from its judgement, which may come later.
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
