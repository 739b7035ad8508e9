"""Another size for the gang by order of the operator, in macro mode: `--scale trainer=2@3m`.

A gang that runs restarts at once, smaller, or larger if there is room. One that is about to start chooses its members
anew. In any other phase the size counts when the gang forms. All functions act on a `Job` at the virtual time `now` in
ns.
"""

from __future__ import annotations

from flowdist.control.membership.operator import why_no_size
from flowdist.sim.macro.gang import form, grow, open_incident
from flowdist.sim.macro.job import Job


def scale(job: Job, replicas: int, now: int) -> None:
    """Set the number of replicas that the gang aims for. The order is refused if the gang cannot have that many."""
    if why_no_size(job.role, replicas):
        return
    members, job.seats.target = job.seats.taken, replicas
    if job.phase == "opening" and now >= job.times.message and members != replicas:
        form(job, now)
    elif job.phase == "running" and replicas < members:
        open_incident(job, "scaled", "removed by the operator", now, steps_on=True)
    elif job.phase == "running":
        job.grows_at_once = True
        grow(job, job.result.generations, now)
