"""Wait of a gang in macro mode that is below its minimum, until nodes join or the job fails (R12).

All functions act on a `Job` at the virtual time `now` in ns.
"""

from __future__ import annotations

from flowdist.graph import format_duration
from flowdist.sim.macro.ending import fail
from flowdist.sim.macro.job import Job
from flowdist.sim.macro.result import NEVER


def plan_wait(job: Job, until: int) -> None:
    """Set the job to a gang that is below its minimum and waits for nodes. The job fails at `until` (ns)."""
    job.phase, job.formed, job.give_up_at = "waiting", NEVER, until
    job.due, job.on_due = until, _give_up


def _give_up(job: Job, now: int) -> None:
    """Fail the job, because the gang was below its minimum for too long; not if a gate of it is closed by now (R12)."""
    if job.companions.let_gang_form(now):
        role = job.minima.first_due if job.minima is not None else job.role
        fail(job, f"{role.name} was below its minimum for {format_duration(role.pending_timeout_ns)}", now)
    else:
        job.phase, job.due = "gated", NEVER
        give_up_waiting(job, now)


def give_up_waiting(job: Job, now: int) -> None:
    """Handle the end of the gang's wait for nodes when the gang waits for a service by then: the job does not fail.

    Nothing happens if the gang's wait was ended or renewed before, or it waits for nodes still.
    """
    if job.give_up_at == now and job.phase in ("stopping", "gated"):
        job.give_up_at = None
        if job.books.bucket == "waiting":
            job.books.move("re-formation", job.size_max, now)
