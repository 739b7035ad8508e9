"""End of a job in macro mode: decided once, and over when nothing runs any more (R18)."""

from __future__ import annotations

from flowdist.sim.macro.job import Job
from flowdist.sim.macro.result import NEVER


def complete(job: Job, now: int) -> None:
    """End the job with success: the work of the gang is done. Auxiliary roles stop, dependents first."""
    job.books.halt(now, done=True)
    ends = known = now + job.times.message
    if not job.companions.is_empty:
        job.books.finish(known)
        ends = job.companions.end_in_order(known)
    _end(job, "succeeded", f"every primary task has succeeded ({job.role.name})", ends)


def fail(job: Job, reason: str, now: int) -> None:
    """End the job with failure and stop all that runs. The first reason counts."""
    if job.result.outcome is not None:
        return
    books = job.books
    if books.begun is not None:  # the members step until they are stopped, and have nothing more to do
        stops = job.halt_at or now + job.times.stop - job.times.message
        job.halt(stops)
        books.move("done", books.active, stops)
    elif job.phase == "waiting" and books.bucket == "waiting":
        books.move("re-formation", job.size_max, now)  # the gang waits for nodes no longer
    else:
        books.give_up(now)
    _end(job, "failed", reason, max(_gang_ends(job, now), job.companions.end_at_once(now)))


def _gang_ends(job: Job, now: int) -> int:
    """Return when the last member has ended, if all are told to stop now."""
    if job.phase == "stopping":
        return max(now, job.due)
    if job.phase != "running" or not job.seats.taken:
        return now
    times = job.times
    dead = {node: known for node, known in job.death_known_at.items() if job.seats.on[node]}
    ends = [now, *dead.values()]
    if len(job.exited) + sum(len(job.seats.on[node]) for node in dead) < job.seats.taken:
        ends.append(now + times.stop)
    if not dead and job.formed < NEVER:  # members that are still being spawned are stopped once they run
        ends.append(job.formed - times.started + times.up + times.stop - 2 * times.message)
    return max(ends)


def _end(job: Job, outcome: str, reason: str, now: int) -> None:
    job.result.outcome, job.result.reason = outcome, reason
    job.say(now, "ends", outcome, reason)
    close(job, now)


def close(job: Job, now: int) -> None:
    """Complete the result with everything up to now."""
    result = job.result
    job.books.close(result, job.halt_at, now)
    result.charged = job.policy.charged
    result.cordoned = [job.scope.nodes[node] for node in job.seats.cordoned]
    job.companions.close(now)
