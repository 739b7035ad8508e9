"""Size of a world: the mesh that its ranks form, and the time of a step.

In `("pp", 2), ("dp", 0), ("tp", 2)` the first dimension varies slowest, as with torch's `init_device_mesh`, and 0 marks
the elastic one: its size follows from the number of ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from math import gcd, prod

from flowdist.graph.units import Count

Parallel = tuple[tuple[str, Count], ...]


def fixed_ranks(parallel: Parallel) -> int:
    """Return the product of all dimensions but the elastic one; the number of ranks of a world is a multiple of it."""
    return prod(size for _, size in parallel if size)


def is_elastic(parallel: Parallel) -> bool:
    """Return whether the mesh has an elastic dimension, so that worlds of several sizes form it."""
    return any(not size for _, size in parallel)


def replica_step(parallel: Parallel, procs: int) -> int:
    """Return the smallest number of replicas, of `procs` ranks each, of which a mesh needs a multiple."""
    ranks = fixed_ranks(parallel)
    return ranks // gcd(ranks, procs)


def mesh_of(parallel: Parallel, world_size: int) -> Parallel:
    """Return the dimensions with their sizes in a world of so many ranks; ValueError if they form no mesh."""
    ranks = fixed_ranks(parallel)
    if world_size % ranks or (not is_elastic(parallel) and world_size != ranks):
        raise ValueError(f"{world_size} ranks form no mesh of {spelled(parallel)}")
    return tuple((name, size or world_size // ranks) for name, size in parallel)


def spelled(parallel: Parallel) -> str:
    """Return the dimensions as text for messages: `pp=2 x dp=elastic x tp=2`."""
    return " x ".join(f"{name}={size or 'elastic'}" for name, size in parallel)


StepTimes = tuple[tuple[int, int], ...]  # number of workers and time of a step in ns, the smallest number first


def step_time_at(table: StepTimes, workers: int) -> int:
    """Return the time of a step, in ns rounded down, of that many workers (1 or more), by a table of some.

    Between two entries the speed changes evenly; beyond the first or last the time is that of the entry.
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
    """Return the table of a world whose largest size, of `most` workers, has steps of `step_ns`.

    `scaling`, 0 to 1, is the part of its speed that is proportional to the workers: with 1 a half takes twice as long.
    """
    if most == 1 or not scaling:
        return ((most, step_ns),)
    alone = 1 - scaling * (1 - 1 / most)  # the speed of one worker, as a part of that of all
    return ((1, round(step_ns / alone)), (most, step_ns))
