"""Reading of `step_time=`, `scaling=` and `batch=` of a workload: the time of a step in each size of a world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowdist.dsl.read.fields import Fields
from flowdist.graph import SECOND
from flowdist.graph.step_times import StepTimes, scaled, step_time_at

SCALING_HELP = "write scaling=0.9: nine tenths of the speed are proportional to the number of workers"
EXAMPLE = 'write step_time={1: "2s", 4: "600ms"}: the time of a step by the number of workers'


def read_step_times(work: Fields, least: int, most: int) -> tuple[int, StepTimes, int]:
    """Return the time of a step in the largest size (ns), the times by size, and the workers that share a batch.

    The times are empty if a step takes as long in each size. The last number is 0 if the global batch is held.

    Args:
        work: The arguments of the workload.
        least: The number of workers in the smallest size of the role, and `most` in the largest.
    """
    given = work.values["step_time"]
    scaling = number_up_to(work, "scaling", 0, 1, SCALING_HELP)
    if isinstance(given, Mapping):
        table = _table(work, given)
        _check_table(work, table, scaling, least, most)
        step_ns = step_time_at(table, most) if table else SECOND
    else:
        step_ns = work.duration("step_time", SECOND, zero=False)
        table = scaled(step_ns, most, scaling)
    batch_workers = most if work.choice("batch", ("global", "worker")) == "worker" else 0
    return step_ns, table if len(table) > 1 else (), batch_workers


def number_up_to(work: Fields, name: str, default: float, most: float, help: str) -> float:
    """Return the number of a field of a workload; the default, with an error (FD105), if it is more than `most`."""
    found = work.number(name, default)
    if found <= most:
        return found
    work.error("FD105", name, f"{name}={found:g} is more than {most:g}", help)
    return default


def _table(work: Fields, given: Mapping[Any, Any]) -> StepTimes:
    """Return the entries of a dict that can be read, the smallest number of workers first."""
    table = dict[int, int]()
    for workers, value in given.items():
        name = f"step_time.{workers}"
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            work.error("FD134", name, f"step_time has {workers!r} as a number of workers", EXAMPLE)
        else:
            table[workers] = work.part(name, value).duration(name, SECOND, zero=False)
    if not given:
        work.error("FD134", "step_time", "step_time={} has no entry", EXAMPLE)
    return tuple(sorted(table.items()))


def _check_table(work: Fields, table: StepTimes, scaling: float, least: int, most: int) -> None:
    """Add an error for a table that lacks a size of the role, or that says twice how the speed depends on the size."""
    if work.is_wrong("step_time") or not table:
        return
    if scaling:
        help = "leave scaling= out: the table says how long a step takes in each size"
        work.error("FD169", "scaling", "scaling= and a step_time= for several sizes say the same thing twice", help)
    lacking = least if least < table[0][0] else most if most > table[-1][0] else None
    if lacking is not None:
        sizes = f"{least} to {most}" if least < most else f"{most}"
        message = f"step_time has no entry for {lacking} worker{'s' * (lacking != 1)}, and the role has {sizes}"
        work.error("FD169", "step_time", message, f"add {lacking}: the time of a step of that many workers")
