"""Tasks whose workers report no step numbers: the number of their steps if these were counted, else their times.

A count begins at 0 in every attempt. How many steps the task has made in all follows from the commits that an attempt
resumed from. Without commits a script may begin anew with each attempt, or resume from a checkpoint of its own: a
single record does not show which. An attempt that succeeded without any restart before it shows the whole number.
Without a count, times follow from the checkpoints of a task, or from its length alone (`silent_fields`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from flowdist.graph import SECOND, RoleSpec
from flowdist.sim.calibration.observe import Generation

# "known": from an attempt whose first step is known. "guessed": as if each attempt had begun anew. "unknown": no
# attempt has succeeded, or those before it counted more.
Length = Literal["known", "guessed", "unknown"]
SAME = 0.2  # share by which the numbers of commits may differ from counted steps to be the same
CURE = "call flowdist.worker.progress(step) in its script"


class CountedLength(NamedTuple):
    """Number of steps of a task, and what follows from it."""

    length: Length
    steps: int  # 0: unknown
    lost: float | None = None  # steps that each restart has done again, on average; None: unknown


def counted_length(generations: Sequence[Generation]) -> CountedLength:
    """Return how many steps a task has made, from the counts of its generations, those of a world in order."""
    unit = commit_steps(generations)
    whole, anew, restarted = [0], [0], list[tuple[int, int]]()
    is_contradicted = False
    for world in _worlds(generations):
        counts = [one.clock[-1].step if one.clock else 0 for one in world]
        if not world[-1].is_done:
            continue
        begun = _begun(world, counts, unit)
        if begun is not None:
            whole.append(begun + counts[-1])
            continue
        anew.append(counts[-1])
        restarted.append((sum(counts), len(counts) - 1))
        is_contradicted = is_contradicted or max(counts) > counts[-1]
    steps = max(whole)
    if not steps:
        length: Length = "guessed" if max(anew) and not is_contradicted else "unknown"
        return CountedLength(length, max(anew) if length == "guessed" else 0)
    again = [max(0, made - steps) / times for made, times in restarted]
    return CountedLength("known", steps, statistics.mean(again) if again else None)


def commit_steps(generations: Sequence[Generation]) -> float:
    """Return how many counted steps lie between two commits whose numbers differ by 1, such as those of epochs."""
    counted, numbered = 0.0, 0
    for one in generations:
        for at, step in one.offers[-1:]:
            if one.resumed is not None and step > one.resumed:
                counted += _count_at(one, at)
                numbered += step - one.resumed
    unit = counted / numbered if numbered else 1.0
    return 1.0 if abs(unit - 1) <= SAME or not unit else unit


def counted_fields(role: RoleSpec, found: CountedLength, step_ns: int) -> tuple[dict[str, Any], str]:
    """Return fields of the workload of a task without commits, and a sentence that says how it is played, or ""."""
    never = {"checkpoint_ns": 0, "checkpoint_blocks_ns": None}
    if found.length == "guessed":
        text = (
            f"{role.name} reported no step numbers: it is played as {found.steps} counted steps, and all of them again"
            f" after each restart; if it resumes from a checkpoint of its own, restarts cost less; {CURE}"
        )
        return {"checkpoint_every_ns": max(1, 2 * found.steps * step_ns), **never}, text
    if found.lost is None:
        return {}, ""
    return {"checkpoint_every_ns": max(1, round(2 * found.lost * step_ns)), **never}, ""


def _worlds(generations: Sequence[Generation]) -> Iterator[list[Generation]]:
    """Yield the generations of each world of each record: a first generation begins another record."""
    worlds: dict[str, list[Generation]] = {}
    for one in generations:
        if one.world in worlds and one.number <= worlds[one.world][-1].number:
            yield worlds.pop(one.world)
        worlds.setdefault(one.world, []).append(one)
    yield from worlds.values()


def _begun(world: Sequence[Generation], counts: Sequence[int], unit: float) -> int | None:
    """Return how many steps were done when the last generation of a world began; None: unknown.

    A generation with a member that stayed in place goes on where the one before had come to.
    """
    begun: int | None = 0
    for (_, count), (one, _) in pairwise(zip(world, counts, strict=True)):
        if one.resumed is not None:
            begun = round(one.resumed * unit)
        elif "rejoin" in one.starts.values() and begun is not None:
            begun += count
        else:
            begun = None
    return begun


def _count_at(one: Generation, at_ns: int) -> float:
    """Return how many steps a generation had counted at a time: between two reports, in proportion to the time."""
    for last, mark in pairwise(one.clock):
        if last.at_ns <= at_ns < mark.at_ns:
            return last.step + (mark.step - last.step) * (at_ns - last.at_ns) / (mark.at_ns - last.at_ns)
    before = [mark.step for mark in one.clock if mark.at_ns <= at_ns]
    return before[-1] if before else 0


# The fields of a workload that the times below contain: the time of a step contains checkpoints, and the time until the
# first report contains restore and warm-up.
INCLUDED = {"checkpoint_ns": 0, "checkpoint_blocks_ns": None, "restore_ns": 0, "warmup_ns": 0, "finish_ns": 0}


def silent_fields(role: RoleSpec, generations: Sequence[Generation]) -> tuple[dict[str, Any], str]:
    """Return the workload's fields of a task that reported no progress, and a sentence that says how it is played."""
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
    """Return fields of steps of 1 s, for the median of successful attempts, without checkpoints; none without any."""
    took = [at - one.ordered_ns for one in generations for at in one.exits.values()]
    if not took:
        return {}
    seconds = max(1, round(statistics.median(took) / SECOND))
    never = 2 * seconds * SECOND
    return {"steps": seconds, "step_ns": SECOND, "startup_ns": 0, "checkpoint_every_ns": never, **INCLUDED}
