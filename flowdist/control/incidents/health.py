"""Limit on membership changes: each is free, but so many in a row without progress or health fail the job (R8).

`is_healthy`, `next_free_row`, `exceeds_row` and `growth_wait_ns` are the rules, functions of values alone, which macro
mode calls too. `limit_free` and `was_healthy` apply them to a job.
"""

from __future__ import annotations

from flowdist.control.incidents.ending import begin_ending
from flowdist.control.job.state import Incident, JobState, World
from flowdist.graph import JobOptions, format_duration

# No replica failed: what has to stop gets its full grace, and a row of these does not fail the job (R8).
CHOSEN_KINDS: frozenset[str] = frozenset({"joined", "scaled", "address_changed", "interrupted", "drained"})


def is_healthy(progressed: bool, formed_ns: int | None, now: int, min_uptime_ns: int) -> bool:
    """Return whether a generation has reported a new step, or has run for `min_uptime_ns` (R8).

    Args:
        progressed: A new step was reported in this generation.
        formed_ns: When all members of the generation ran; None: they do not yet.
        now: The time, in ns.
        min_uptime_ns: `JobOptions.min_uptime_ns`.
    """
    return progressed or (formed_ns is not None and now - formed_ns >= min_uptime_ns)


def next_free_row(free_row: int, healthy: bool) -> int:
    """Return the number of membership changes in a row, this one included; health before it starts a new row (R8)."""
    return 1 if healthy else free_row + 1


def exceeds_row(free_row: int, kind: str, options: JobOptions) -> bool:
    """Return whether so many membership changes in a row fail the job, when the last is of that kind (R8)."""
    return free_row > options.free_incidents_max and kind not in CHOSEN_KINDS


def row_text(name: str, free_row: int, options: JobOptions, last: str) -> str:
    """Return the reason of a job that failed because a world changed its members too often in a row (R8)."""
    return (
        f"{free_row} changes of membership of {name} in a row without progress or "
        f"{format_duration(options.min_uptime_ns)} of health between them; the last: {last}"
    )


def growth_wait_ns(cooldown_ns: int, free_row: int, options: JobOptions, *, healthy: bool, is_first: bool) -> int:
    """Return how long a generation has to have run before free nodes make it larger (R8, R13).

    Args:
        cooldown_ns: The longest cool-down of the world's roles.
        free_row: Membership changes in a row so far.
        options: The options of the job.
        healthy: The generation has progressed, or has run for long enough.
        is_first: The world has not re-formed yet: it has waited for more nodes in its join window.
    """
    wait = 0 if is_first else cooldown_ns
    if free_row >= options.free_incidents_max - 1 and not healthy:
        # Growth is the controller's own choice. It must not use up the row, or the next lost node fails the job.
        wait = max(wait, options.min_uptime_ns)
    return wait


def limit_free(job: JobState, incident: Incident) -> None:
    """Count the membership change for each world of the incident; fail the job after too many in a row (R8)."""
    options = job.graph.options
    for name in incident.worlds:
        world = job.worlds[name]
        world.free_row = next_free_row(world.free_row, was_healthy(job, world))
        world.progressed = False
        if exceeds_row(world.free_row, incident.kind, options):
            begin_ending(job, "failed", row_text(name, world.free_row, options, incident.reason))
            return


def was_healthy(job: JobState, world: World) -> bool:
    """Return whether the present generation of the world has progressed, or has run for long enough (R8)."""
    return is_healthy(world.progressed, world.formed_ns, job.now, job.graph.options.min_uptime_ns)
