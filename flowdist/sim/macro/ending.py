"""The end of the job in macro mode: decided once, complete when nothing runs any more (R18).

All functions act on a `Job` at the virtual time `now` in ns.
"""

from __future__ import annotations

from flowdist.sim.macro.job import Job
from flowdist.sim.macro.result import NEVER


def complete(job: Job, now: int) -> None:
    """End the job with success, because the work of the gang is done. Auxiliary roles are stopped, dependents first.

    Members that were asked to leave a node have stopped, not succeeded (R16): they start again, and find all done.
    """
    job.books.halt(now, done=True)
    ends = known = now + job.times.message
    if job.notice is not None and now >= job.notice.heard:
        job.due = NEVER
        job.exited.update(dict.fromkeys(replica for replica, node in enumerate(job.seats.node_of) if node is not None))
        job.at(known, job.notice.finish)
        return
    if job.scope.beside:
        job.books.move("done", job.role.max_replicas, known)
        ends = job.companions.end_in_order(known)
    _end(job, "succeeded", f"every primary task has succeeded ({job.role.name})", ends)


def fail(job: Job, reason: str, now: int) -> None:
    """End the job with failure, and stop everything that runs. Nothing happens if the job has an outcome already."""
    if job.result.outcome is not None:
        return
    books = job.books
    if books.begun is not None:  # the members step until they are stopped, and have nothing more to do
        stops = job.halt_at or now + job.stop_ns - job.times.message
        job.halt(stops, is_over=stops > now)
        books.move("done", books.active, stops)
    elif job.phase == "waiting" and books.bucket == "waiting":
        books.move("re-formation", job.size_max, now)  # the gang waits for nodes no longer
    elif books.bucket != "waiting":
        books.move("done", books.active, now)
    _end(job, "failed", reason, max(_gang_ends(job, now), job.companions.end_at_once(now)))


def _gang_ends(job: Job, now: int) -> int:
    """Return when, in ns, the last member of the gang has ended if all are ordered to stop now."""
    if job.phase == "stopping":
        return max(now, job.due, job.gone_at)
    if job.phase != "running" or not job.seats.taken:
        return now
    times = job.times
    dead = {node: known for node, known in job.death_known_at.items() if job.seats.on[node]}
    ends = [now, *dead.values()]
    if len(job.exited) + sum(len(job.seats.on[node]) for node in dead) < job.seats.taken:
        ends.append(now + job.stop_ns)
    if not dead and job.formed < NEVER:  # members that are still being spawned are stopped once they run
        ends.append(job.formed - times.started + times.up + job.stop_ns - 2 * times.message)
    return max(ends)


def _end(job: Job, outcome: str, reason: str, now: int) -> None:
    """Record the outcome of the job, which is complete at `now`, and complete its result."""
    job.result.outcome, job.result.reason = outcome, reason
    job.say(now, "ends", outcome, reason)
    close(job, now)


def close(job: Job, now: int) -> None:
    """Write what the result still lacks, up to now: the time in buckets, charges, cordoned nodes, auxiliary roles.

    Called at the end of the job, or of the run if the job is not over by then.
    """
    result = job.result
    job.books.close(result, job.halt_at, now)
    result.charged = job.policy.charged
    result.cordoned = [job.scope.nodes[node] for node in job.seats.cordoned]
    job.companions.close(now)
