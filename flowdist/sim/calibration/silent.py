"""Times of a task whose workers report no progress: from its checkpoints, or from its length alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from flowdist.graph import SECOND, RoleSpec
from flowdist.sim.calibration.observe import Generation

# The fields of a workload that the times below contain: the time of a step contains checkpoints, and the time until the
# first report contains restore and warm-up.
INCLUDED = {"checkpoint_ns": 0, "checkpoint_blocks_ns": None, "restore_ns": 0, "warmup_ns": 0, "finish_ns": 0}


def silent_fields(role: RoleSpec, generations: Sequence[Generation]) -> tuple[dict[str, Any], str]:
    """Return the fields of the workload of a task without progress, and a sentence that says how it is played.

    Args:
        role: The task.
        generations: All generations of its worlds, of all records.
    """
    fields = _by_checkpoints(generations)
    if fields:
        return fields, f"{role.name} reported no progress: its steps are played as its checkpoints tell of them"
    fields = _by_length(generations)
    steps = fields.get("steps", role.workload.steps)
    return fields, f"{role.name} reported no progress: it is played as {steps} steps of 1s"


def _by_checkpoints(generations: Sequence[Generation]) -> dict[str, Any]:
    """Return fields that follow from the steps of accepted checkpoints; none if no generation has two of them."""
    with_two = [one for one in generations if one.offers and one.offers[-1][1] > one.offers[0][1]]
    if not with_two:
        return {}
    time = sum(one.offers[-1][0] - one.offers[0][0] for one in with_two)
    step_ns = max(1, round(time / sum(one.offers[-1][1] - one.offers[0][1] for one in with_two)))
    last = max(one.offers[-1][1] for one in with_two)
    ends = [max(one.exits.values()) - one.offers[-1][0] for one in with_two if one.exits]
    gaps = [after - before for one in with_two for (before, _), (after, _) in pairwise(one.offers)]
    fields = {"steps": last + max((ns // step_ns for ns in ends), default=0), "step_ns": step_ns}
    starts = []
    for one in generations:
        if one.offers and one.resumed is not None:
            at, step = one.offers[0]
            takes, steps_ns = at - one.ordered_ns, (step - one.resumed) * step_ns
            starts.append(takes - steps_ns if 0 < steps_ns <= takes else max(0, takes - step_ns))
    if starts:
        fields["startup_ns"] = round(statistics.median(starts))
    return {**fields, "checkpoint_every_ns": max(1, round(statistics.median(gaps))), **INCLUDED}


def _by_length(generations: Sequence[Generation]) -> dict[str, Any]:
    """Return fields of steps of 1 s, for as long as an attempt took that succeeded: the median of these.

    The workload saves nothing, so a restart begins at step 0. There are no fields if no attempt succeeded.
    """
    took = [at - one.ordered_ns for one in generations for at in one.exits.values()]
    if not took:
        return {}
    seconds = max(1, round(statistics.median(took) / SECOND))
    never = 2 * seconds * SECOND
    return {"steps": seconds, "step_ns": SECOND, "startup_ns": 0, "checkpoint_every_ns": never, **INCLUDED}
