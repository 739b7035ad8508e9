"""Parallel dimensions of a world: the mesh that its ranks form, and the numbers of ranks that form one.

`("pp", 2), ("dp", 0), ("tp", 2)` is a mesh of three dimensions, of which the first varies slowest, as with torch's
`init_device_mesh`. The size 0 marks the elastic dimension: its size is the number of ranks divided by the sizes of the
others.
"""

from __future__ import annotations

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
    """Return the smallest number of replicas, of `procs` ranks each, whose ranks are a multiple of the fixed ones.

    A world forms the mesh only if the number of its replicas is a multiple of the result.
    """
    ranks = fixed_ranks(parallel)
    return ranks // gcd(ranks, procs)


def mesh_of(parallel: Parallel, world_size: int) -> Parallel:
    """Return the dimensions with their sizes in a world of `world_size` ranks, the elastic dimension included.

    Raises:
        ValueError: So many ranks do not form the mesh.
    """
    ranks = fixed_ranks(parallel)
    if world_size % ranks or (not is_elastic(parallel) and world_size != ranks):
        raise ValueError(f"{world_size} ranks form no mesh of {spelled(parallel)}")
    return tuple((name, size or world_size // ranks) for name, size in parallel)


def spelled(parallel: Parallel) -> str:
    """Return the dimensions as text for messages: `pp=2 x dp=elastic x tp=2`."""
    return " x ".join(f"{name}={size or 'elastic'}" for name, size in parallel)
