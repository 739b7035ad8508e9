"""Arithmetic of what nodes offer and replicas need. cpu is counted in thousandths, so that 0.1 + 0.2 is 0.3."""

from __future__ import annotations

from typing import NamedTuple

from flowdist.graph.model import NodeSpec, Resources


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
    return all(want == 0 or want <= have for want, have in zip(need, free, strict=True))


def subtract(free: Capacity, need: Capacity) -> Capacity:
    return Capacity(free.mcpu - need.mcpu, free.gpu - need.gpu, free.memory - need.memory)


def add(free: Capacity, need: Capacity) -> Capacity:
    return Capacity(free.mcpu + need.mcpu, free.gpu + need.gpu, free.memory + need.memory)


def slots(need: Capacity, free: Capacity) -> int:
    """How many replicas of that size fit into what is free; a replica that needs nothing fits a thousand times."""
    counts = [have // want for want, have in zip(need, free, strict=True) if want > 0]
    return min(counts, default=1000)
