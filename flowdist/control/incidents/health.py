"""Limit on membership changes in a row (R8): the rules of `rules.changes`, applied to a job."""

from __future__ import annotations

from flowdist.control.incidents.ending import begin_ending
from flowdist.control.job.state import Incident, JobState, World
from flowdist.control.rules.changes import exceeds_row, is_healthy, next_free_row, row_text


def limit_free(job: JobState, incident: Incident) -> None:
    """Add a free incident to the row of each of its worlds; end the job as failed if a row is too long (R8)."""
    options = job.graph.options
    for name in incident.worlds:
        world = job.worlds[name]
        world.free_row = next_free_row(world.free_row, was_healthy(job, world))
        world.progressed = False
        if exceeds_row(world.free_row, incident.kind, options):
            reason = row_text(name, world.free_row, options, incident.reason)
            begin_ending(job, "failed", reason, replicas=incident.lost)
            return


def was_healthy(job: JobState, world: World) -> bool:
    """Return whether the present generation of the world has progressed, or has run for long enough (R8)."""
    return is_healthy(world.progressed, world.formed_ns, job.now, job.graph.options.min_uptime_ns)
