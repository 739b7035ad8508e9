"""Arithmetic of what nodes offer and replicas need. cpu is counted in thousandths, so that 0.1 + 0.2 is 0.3."""

from __future__ import annotations

from typing import NamedTuple

from flowdist.graph.model import NodeSpec, Resources

UNLIMITED = 1000  # so often something fits that needs nothing


class Capacity(NamedTuple):
    """cpu in thousandths of a core, gpu in devices, memory in bytes."""

    mcpu: int
    gpu: int
    memory: int


def offered(node: NodeSpec) -> Capacity:
    return Capacity(round(node.cpu * 1000), node.gpu, node.memory)


def needed(resources: Resources) -> Capacity:
    return Capacity(round(resources.cpu * 1000), resources.gpu, resources.memory)


def fits(need: Capacity, free: Capacity) -> bool:
    # A dimension that is not asked for does not matter, even where the node is oversubscribed in it.
    mcpu, gpu, memory = need
    return not ((mcpu and mcpu > free[0]) or (gpu and gpu > free[1]) or (memory and memory > free[2]))


def subtract(free: Capacity, need: Capacity) -> Capacity:
    return Capacity(free.mcpu - need.mcpu, free.gpu - need.gpu, free.memory - need.memory)


def add(free: Capacity, need: Capacity) -> Capacity:
    return Capacity(free.mcpu + need.mcpu, free.gpu + need.gpu, free.memory + need.memory)


def slots(need: Capacity, free: Capacity) -> int:
    """How many replicas of that size fit into what is free; a replica that needs nothing fits a thousand times."""
    count = None
    for want, have in zip(need, free, strict=True):
        if want and (count is None or have // want < count):
            count = have // want
    return UNLIMITED if count is None else count
