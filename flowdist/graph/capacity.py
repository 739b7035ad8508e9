"""Arithmetic of what nodes offer and replicas need. cpu is counted in thousandths, so that 0.1 + 0.2 is 0.3.

So are GPUs, each for itself: three replicas of 0.6 do not fit on two devices, although 1.8 is less than 2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from flowdist.graph.nodes import NodeSpec
from flowdist.graph.roles import Resources

WHOLE = 1000  # thousandths of a device
UNLIMITED = 1000  # so often something fits that needs nothing
MOMENTS_MAX = 64


class Need(NamedTuple):
    """cpu in thousandths of a core, gpu in devices, memory in bytes; `share` is what is wanted of each device."""

    mcpu: int = 0
    gpu: int = 0
    memory: int = 0
    share: int = WHOLE

    @property
    def is_nothing(self) -> bool:
        return not (self.mcpu or self.gpu or self.memory)


class Capacity(NamedTuple):
    """cpu in thousandths of a core, memory in bytes; of each device, by its number, the thousandths that are left."""

    mcpu: int
    devices: tuple[int, ...]
    memory: int


def offered(node: NodeSpec) -> Capacity:
    return Capacity(round(node.cpu * 1000), (WHOLE,) * node.gpu, node.memory)


def needed(resources: Resources) -> Need:
    return Need(round(resources.cpu * 1000), resources.gpu, resources.memory, resources.gpu_share)


def fits(need: Need, free: Capacity) -> bool:
    # A dimension that is not asked for does not matter, even where the node is oversubscribed in it.
    if (need.mcpu and need.mcpu > free.mcpu) or (need.memory and need.memory > free.memory):
        return False
    return not need.gpu or _gpu_slots(need, free) > 0


def pick(need: Need, free: Capacity) -> tuple[int, ...]:
    """The devices for one more replica: the lowest that nobody has, or the fullest that has room for its share.

    Of devices that are as full the lowest. Empty when there are not enough.
    """
    if need.share == WHOLE:
        whole = [number for number, left in enumerate(free.devices) if left == WHOLE]
        return tuple(whole[: need.gpu]) if len(whole) >= need.gpu else ()
    return min(((left, number) for number, left in enumerate(free.devices) if left >= need.share), default=(0,))[1:]


def subtract(free: Capacity, need: Need, devices: tuple[int, ...] | None = None) -> Capacity:
    """What is left with one more replica, on those devices; without them on those that `pick` gives it."""
    if need.gpu and devices is None:
        devices = pick(need, free)
    return Capacity(free.mcpu - need.mcpu, _change(free.devices, devices or (), -need.share), free.memory - need.memory)


def add(free: Capacity, need: Need, devices: tuple[int, ...] = ()) -> Capacity:
    """What is left without a replica that had those devices."""
    return Capacity(free.mcpu + need.mcpu, _change(free.devices, devices, need.share), free.memory + need.memory)


def without(free: Capacity, devices: tuple[int, ...]) -> Capacity:
    """Nothing is left of those devices."""
    if not devices:
        return free
    return free._replace(devices=tuple(0 if i in devices else left for i, left in enumerate(free.devices)))


def slots(need: Need, free: Capacity) -> int:
    """How many replicas of that size fit into what is free; a replica that needs nothing fits a thousand times."""
    count = free.mcpu // need.mcpu if need.mcpu else None
    if need.memory and (count is None or free.memory // need.memory < count):
        count = free.memory // need.memory
    if need.gpu and (count is None or _gpu_slots(need, free) < count):
        count = _gpu_slots(need, free)
    return UNLIMITED if count is None else count


def _gpu_slots(need: Need, free: Capacity) -> int:
    if need.share == WHOLE:
        return free.devices.count(WHOLE) // need.gpu
    return sum(left // need.share for left in free.devices)


def _change(devices: tuple[int, ...], which: tuple[int, ...], by: int) -> tuple[int, ...]:
    if not which:
        return devices
    return tuple(left + by if i in which else left for i, left in enumerate(devices))


def moments(before: Mapping[str, Collection[str]]) -> list[frozenset[str]]:
    """What may have succeeded when another of these roles can start: at each such moment all that is alive needs room.

    `before` says of each role which have to succeed before it starts. Two that wait for different ones are alive
    together when all of these have succeeded. Where there are more than MOMENTS_MAX, not all of them are named.
    """
    found: dict[frozenset[str], None] = {frozenset(): None}
    for gone in dict.fromkeys(frozenset(names) for names in before.values()):
        together = [gone | other for other in found] if len(found) <= MOMENTS_MAX // 2 else [gone]
        found |= dict.fromkeys(together)
    found[frozenset().union(*found)] = None
    return list(found)
