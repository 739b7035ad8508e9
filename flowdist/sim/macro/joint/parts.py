"""The roles of a joint world in macro mode, while the world waits for nodes and as it starts.

All functions act on a `Job` at the virtual time `now` in ns. They do nothing if the gang has one role.
"""

from __future__ import annotations

from flowdist.sim.macro.job import Job
from flowdist.sim.macro.joint.minima import Minima
from flowdist.sim.macro.joint.seats import JointSeats


def count_parts(job: Job, now: int) -> None:
    """Note which roles have their minimum."""
    if job.minima is not None and isinstance(job.seats, JointSeats):
        job.minima.update(job.seats.counts, now)


def wait_for_parts(job: Job, minima: Minima, now: int) -> int:
    """Let the world wait for nodes, and return when the job fails if none joins (ns).

    Roles below their minimum wait, the others re-form.
    """
    count_parts(job, now)
    if job.books.bucket in ("waiting", "re-formation"):
        job.books.move("re-formation" if minima.re_forming else "waiting", minima.re_forming, now)
    return minima.due


def start_parts(job: Job, now: int) -> None:
    """Note the order to start. For roles that had their minimum all along, all of the back-off counts as such.

    Those that waited for nodes meanwhile re-form for a shorter time, as `Books.start` assumes of all.
    """
    if job.minima is None or not isinstance(job.seats, JointSeats):
        return
    if job.backoff_ns and job.books.bucket == "re-formation":
        seated = (replica for replica, node in enumerate(job.seats.node_of) if node is not None)
        again = [replica for replica in seated if replica not in job.outsiders]
        all_along = sum(job.minima.had_minimum(job.part_of(replica)[0]) for replica in again)
        part = (job.backoff_ns - min(job.backoff_ns, now - job.books.since)) * all_along
        job.books.spent["back-off"] += part
        job.books.spent["re-formation"] -= part
    job.minima.start(job.seats.counts)
