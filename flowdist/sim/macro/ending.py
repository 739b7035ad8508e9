"""The end of the job in macro mode: decided once, complete when nothing runs any more (R18).

All functions act on a `Job` at the virtual time `now` in ns.
"""

from __future__ import annotations

from flowdist.sim.macro.job import Job
from flowdist.sim.macro.result import NEVER


def complete(job: Job, now: int) -> None:
    """Note that the work of the gang is done. The controller learns of it later, see `_succeed`.

    The agent of a node that is cut off cannot report it before it fences: that node is lost, and all start again.
    """
    job.halt(now, done=True)
    told = now + job.times.message
    silent = job.silent_nodes
    job.workers_end_at.update(dict.fromkeys(silent, now))
    if silent:
        job.books.finished = (job.live_members, told) if job.live_members else None
        lost = {replica for node in silent for replica in job.seats.on[node]}
        job.exited.update(dict.fromkeys(replica for replica, _ in job.seats.seated if replica not in lost))
        job.due = NEVER
        return
    job.phase, job.due, job.on_due = "over", told, _succeed


def _succeed(job: Job, now: int) -> None:
    """Handle the reports that the work of the gang is done: the job ends with success."""
    job.books.move("done", job.role.max_replicas, now)
    _end(job, "succeeded", f"every primary task has succeeded ({job.role.name})", now)


def fail(job: Job, reason: str, now: int) -> None:
    """End the job with failure, and stop everything that runs. Nothing happens if the job has an outcome already.

    The gang does no step any more: a member of it has failed or was lost, or it waits for nodes.
    """
    if job.result.outcome is not None:
        return
    books = job.books
    if job.phase == "waiting" and books.bucket == "waiting":
        books.move("re-formation", job.size_max, now)  # the gang waits for nodes no longer
    elif books.bucket not in ("waiting", "done"):
        books.move("done", books.active, now)
    _end(job, "failed", reason, _last_end(job, now))


def _last_end(job: Job, now: int) -> int:
    """Return when, in ns, the last member of the gang has ended if all are ordered to stop now."""
    if job.phase == "stopping":
        return max(now, job.due, job.gone_at)
    if job.phase != "running":
        return now
    times, stop_ns = job.times, job.stops_within(job.role.stop_grace_ns)
    dead = {node: known for node, known in job.death_known_at.items() if job.seats.on[node]}
    ends = [now, *dead.values()]
    if len(job.exited) + sum(len(job.seats.on[node]) for node in dead) < job.seats.taken:
        stopped_at = now + stop_ns
        if not dead and job.formed < NEVER:  # members that are still being spawned are stopped once they run
            stopped_at = max(stopped_at, job.started_at + times.up + stop_ns - 2 * times.message)
        ends.append(min(stopped_at, max(now, job.peers_end_at + times.message)))
    return max(ends)


def _end(job: Job, outcome: str, reason: str, now: int) -> None:
    """Record the outcome of the job, which is complete at `now`, and complete the result."""
    job.phase, job.result.outcome, job.result.reason = "over", outcome, reason
    job.say(now, "ends", outcome, reason)
    close(job, now)


def close(job: Job, now: int) -> None:
    """Write what the result still lacks, up to now: time in buckets, charges, cordoned nodes.

    Called at the end of the job, or of the run if the job is not over by then.
    """
    job.books.close(job.halt_at, now)
    job.result.charged = job.policy.charged
    job.result.cordoned = [job.scope.nodes[node] for node in job.seats.cordoned]
