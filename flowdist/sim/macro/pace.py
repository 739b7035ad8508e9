"""Pace of a gang in macro mode between two restarts: services that are away stop it, and slow members slow it down.

All functions act on a `Job` at the virtual time `now` in ns.
"""

from __future__ import annotations

from fractions import Fraction

from flowdist.sim.macro.job import Job
from flowdist.sim.macro.result import NEVER


def stall(job: Job, replica: str, now: int) -> None:
    """Make the gang wait, without a restart, for a replica of a service that is away. `replica` is its name."""
    if not job.away and job.books.begun is not None:
        job.books.stall(now)
        if job.phase == "running":
            job.due = NEVER
    job.away[replica] = None


def resume(job: Job, replica: str, now: int) -> None:
    """End the gang's wait for a replica of a service, which is there again or needed no more.

    The gang steps again if it was the last one. Nothing happens if the gang did not wait for it.
    """
    if job.away.pop(replica, replica) is None and not job.away and job.books.begun is not None:
        done = job.books.resume(now)
        if job.phase == "running":
            job.due = done


def slow_down(job: Job, replica: int, generation: int, factor: Fraction, now: int) -> None:
    """Let a member take `factor` times as long for a step, and the gang with it; 1 ends that.

    Nothing happens if another generation runs by now.
    """
    if generation != job.result.generations or job.phase not in ("running", "stopping"):
        return
    job.slow.pop(replica, None)
    if factor != 1:
        job.slow[replica] = factor
    if job.books.begun is not None:
        done = job.books.set_pace(job.slowest, now)
        if job.phase == "running":
            job.plan_work(done)
