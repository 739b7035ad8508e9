"""How long a restart that counts waits: longer each time, and not at all after a healthy period (R10)."""

from __future__ import annotations

from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import Incident, JobState, Role
from flowdist.graph import RestartPolicy


def set_backoff(job: JobState, role: Role, level: int, incident: Incident) -> None:
    """None for the first restart, then doubling from the base to the cap, anew after a healthy time (R10).

    It is the incident that waits. `level` is that of the budget which is charged.
    """
    policy: RestartPolicy | None = role.spec.restart
    for _ in range(level):
        policy = policy.wider if policy is not None else None
    assert policy is not None, f"{role.spec.name} counts without a policy"
    if role.last_counted_ns is not None and job.now - role.last_counted_ns >= policy.backoff_reset_ns:
        role.backoff_step = 0
    if role.backoff_step > 0:
        wait = min(policy.backoff_ns << min(role.backoff_step - 1, 40), policy.backoff_max_ns)
        if wait > incident.backoff_ns:
            incident.backoff_ns = wait
            job.due.set(Due("backoff", str(incident.number)), job.now + wait)
    role.backoff_step += 1
