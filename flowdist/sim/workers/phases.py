"""The phase that a simulated job is in, by which a campaign counts what its faults have hit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.workload import WorldModel

JobPhase = Literal["ending", "in recovery", "restoring", "saving", "steady", "starting"]


def phase_of(ctx: Context, models: Collection[WorldModel], *, is_saving: bool) -> JobPhase:
    """Return the phase of the job, the first of these that applies.

    "ending", "in recovery" (an incident is open, or no controller runs), "restoring", "saving", "steady" (a world
    steps), "starting".

    Args:
        ctx: The simulation.
        models: The worlds that have started.
        is_saving: A world or a service writes a checkpoint now.
    """
    if ctx.job.ending is not None:
        return "ending"
    if ctx.job.open or ctx.is_down:
        return "in recovery"
    now = ctx.queue.now
    if any(model.is_restoring(now) for model in models):
        return "restoring"
    if is_saving:
        return "saving"
    is_steady = any(model.begun_ns is not None and not model.is_warming(now) for model in models)
    return "steady" if is_steady else "starting"
