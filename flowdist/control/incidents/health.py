"""Changes of membership cost nothing, but so many in a row without progress or health between them do (R8)."""

from __future__ import annotations

from flowdist.control.incidents.ending import begin_ending
from flowdist.control.job.state import Incident, JobState, World
from flowdist.graph import format_duration

# Nobody failed: what is to stop gets its full grace, and a row of these does not fail the job (R8).
CHOSEN_KINDS: frozenset[str] = frozenset({"joined", "scaled", "address_changed", "interrupted", "drained"})


def limit_free(job: JobState, incident: Incident) -> None:
    """So many membership changes in a row without progress or a healthy time between them fail the job (R8)."""
    options = job.graph.options
    for name in incident.worlds:
        world = job.worlds[name]
        world.free_row = 1 if was_healthy(job, world) else world.free_row + 1
        world.progressed = False
        if world.free_row > options.free_incidents_max and incident.kind not in CHOSEN_KINDS:
            begin_ending(
                job,
                "failed",
                f"{world.free_row} changes of membership of {name} in a row without progress or "
                f"{format_duration(options.min_uptime_ns)} of health between them; the last: {incident.reason}",
            )
            return


def was_healthy(job: JobState, world: World) -> bool:
    """The present generation has progressed, or has run long enough."""
    if world.progressed:
        return True
    return world.formed_ns is not None and job.now - world.formed_ns >= job.graph.options.min_uptime_ns
