"""Limit on membership changes: each is free, but too many in a row without progress or health fail the job (R8).

`is_healthy`, `next_free_row`, `exceeds_row` and `growth_wait_ns` are the rules, functions of values alone, which macro
mode calls too. `limit_free` and `was_healthy` apply them to a job.
"""

from __future__ import annotations

from flowdist.control.incidents.ending import begin_ending
from flowdist.control.job.state import Incident, JobState, World
from flowdist.graph import JobOptions, format_duration

# Kinds of membership changes in which no replica failed. Members stop with their full grace, and the job does not fail
# if a change of one of these kinds is the one too many (R8).
CHOSEN_KINDS: frozenset[str] = frozenset({"joined", "scaled", "address_changed", "interrupted", "drained"})


def stops_with_grace(kind: str) -> bool:
    """Return whether an incident of this kind stops members with their full grace: no peer of theirs has failed."""
    return kind in CHOSEN_KINDS or kind == "preempted"


def is_healthy(progressed: bool, formed_ns: int | None, now: int, min_uptime_ns: int) -> bool:
    """Return whether a generation has reported a new step, or has run for `min_uptime_ns` (R8).

    Args:
        progressed: A new step was reported in this generation.
        formed_ns: When all members of the generation ran for the first time (ns); None: they have not yet.
        now: The time, in ns.
        min_uptime_ns: `JobOptions.min_uptime_ns`.
    """
    return progressed or (formed_ns is not None and now - formed_ns >= min_uptime_ns)


def next_free_row(free_row: int, healthy: bool) -> int:
    """Return how many membership changes a world has had in a row, after one more (R8).

    Args:
        free_row: The number before this change.
        healthy: The generation before this change was healthy, so that a new row begins with the change.
    """
    return 1 if healthy else free_row + 1


def exceeds_row(free_row: int, kind: str, options: JobOptions) -> bool:
    """Return whether `free_row` membership changes in a row, the last of them of this kind, fail the job (R8).

    A change of one of `CHOSEN_KINDS` never does.
    """
    return free_row > options.free_incidents_max and kind not in CHOSEN_KINDS


def row_text(name: str, free_row: int, options: JobOptions, last: str) -> str:
    """Return the reason of a job that failed because the world `name` changed its members too often in a row (R8).

    `last` is the reason of the last of these changes.
    """
    return (
        f"{free_row} changes of membership of {name} in a row without progress or "
        f"{format_duration(options.min_uptime_ns)} of health between them; the last: {last}"
    )


def growth_wait_ns(cooldown_ns: int, free_row: int, options: JobOptions, *, healthy: bool, is_first: bool) -> int:
    """Return how long (ns) a generation has to run before the world may re-form with more members (R8, R13).

    Args:
        cooldown_ns: The longest cool-down of the world's roles.
        free_row: Membership changes in a row so far.
        options: The options of the job.
        healthy: The present generation has progressed, or has run for long enough.
        is_first: The present generation is the first: no cool-down, because the world has waited for nodes to join
            before.
    """
    wait = 0 if is_first else cooldown_ns
    if free_row >= options.free_incidents_max - 1 and not healthy:
        # Growth is the controller's own choice. It must not use up the row, or the next lost node fails the job.
        wait = max(wait, options.min_uptime_ns)
    return wait


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
