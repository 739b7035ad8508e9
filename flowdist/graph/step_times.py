"""Time of a step by the number of workers: a table, and what is between its entries."""

from __future__ import annotations

from bisect import bisect_left

StepTimes = tuple[tuple[int, int], ...]  # number of workers and time of a step in ns, the smallest number first


def step_time_at(table: StepTimes, workers: int) -> int:
    """Return the time of a step, in ns, of that many workers.

    Between two entries the speed (steps per time) changes evenly with the number of workers. A number beyond the first
    or the last entry has the time of that entry. The result is exact, and rounded down to a whole ns.

    Args:
        table: At least one entry.
        workers: The number of workers, 1 or more.
    """
    at = bisect_left(table, (workers, 0))
    if at == len(table):
        return table[-1][1]
    more, slow_ns = table[at]
    if at == 0 or more == workers:
        return slow_ns
    fewer, ns = table[at - 1]
    weighted = slow_ns * (more - workers) + ns * (workers - fewer)
    return max(1, ns * slow_ns * (more - fewer) // weighted)


def scaled(step_ns: int, most: int, scaling: float) -> StepTimes:
    """Return the table of a world whose speed depends on its size.

    `step_ns` is the time of a step of the largest world, of `most` workers. `scaling` is the part of its speed, from 0
    to 1, that is proportional to the number of workers. With 1 half of the workers take twice as long, with 0 they take
    as long.
    """
    if most == 1 or not scaling:
        return ((most, step_ns),)
    alone = 1 - scaling * (1 - 1 / most)  # the speed of one worker, as a part of that of all
    return ((1, round(step_ns / alone)), (most, step_ns))
