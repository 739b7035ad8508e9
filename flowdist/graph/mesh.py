"""Parallel dimensions of a world: how its ranks form a mesh, and which sizes form one.

`("pp", 2), ("dp", 0), ("tp", 2)` is a mesh of three dimensions, the first varying slowest, as torch's
`init_device_mesh` has it; 0 stands for the elastic one, which takes what the others leave of the world.
"""

from __future__ import annotations

from math import gcd, prod

Parallel = tuple[tuple[str, int], ...]


def fixed_ranks(parallel: Parallel) -> int:
    """The product of the dimensions that do not change: a world's size is a multiple of it."""
    return prod(size for _, size in parallel if size)


def is_elastic(parallel: Parallel) -> bool:
    return any(not size for _, size in parallel)


def replica_step(parallel: Parallel, procs: int) -> int:
    """Replicas come in multiples of this: of fewer the ranks form no mesh.

    Args:
        procs: Ranks of one replica.
    """
    ranks = fixed_ranks(parallel)
    return ranks // gcd(ranks, procs)


def mesh_of(parallel: Parallel, world_size: int) -> Parallel:
    """The dimensions with their sizes in a world of so many ranks.

    Raises:
        ValueError: if they form no mesh.
    """
    ranks = fixed_ranks(parallel)
    if world_size % ranks or (not is_elastic(parallel) and world_size != ranks):
        raise ValueError(f"{world_size} ranks form no mesh of {spelled(parallel)}")
    return tuple((name, size or world_size // ranks) for name, size in parallel)


def spelled(parallel: Parallel) -> str:
    """`pp=2 x dp=elastic x tp=2`."""
    return " x ".join(f"{name}={size or 'elastic'}" for name, size in parallel)
