"""Arithmetic of capacity: what nodes offer, and what replicas need.

cpu is counted in thousandths of a core, so that 0.1 + 0.2 is 0.3. Each GPU is counted in thousandths by itself: three
replicas that need 0.6 of a device do not fit on two devices, although 1.8 is less than 2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from flowdist.graph.nodes import NodeSpec
from flowdist.graph.roles import Resources

WHOLE = 1000  # thousandths of a device
UNLIMITED = 1000  # slots for a replica that needs nothing
MOMENTS_MAX = 64  # from half as many on, `moments` does not combine all of them


class Need(NamedTuple):
    """Need of one replica: cpu in thousandths of a core, gpu in devices, memory in bytes.

    `share` is the part of each device, in thousandths.
    """

    mcpu: int = 0
    gpu: int = 0
    memory: int = 0
    share: int = WHOLE

    @property
    def is_nothing(self) -> bool:
        return not (self.mcpu or self.gpu or self.memory)


class Capacity(NamedTuple):
    """Free capacity of a node: cpu in thousandths of a core, memory in bytes, each device in thousandths."""

    mcpu: int
    devices: tuple[int, ...]
    memory: int


def offered(node: NodeSpec) -> Capacity:
    """Return the capacity of an empty node."""
    return Capacity(round(node.cpu * 1000), (WHOLE,) * node.gpu, node.memory)


def needed(resources: Resources) -> Need:
    """Return the need of one replica with these resources."""
    return Need(round(resources.cpu * 1000), resources.gpu, resources.memory, resources.gpu_share)


def fits(need: Need, free: Capacity) -> bool:
    """Return whether one more replica fits. A dimension that it does not need may be oversubscribed."""
    if (need.mcpu and need.mcpu > free.mcpu) or (need.memory and need.memory > free.memory):
        return False
    return not need.gpu or _gpu_slots(need, free) > 0


def pick(need: Need, free: Capacity) -> tuple[int, ...]:
    """Return the devices for one more replica; empty if there are not enough.

    Whole devices are the free ones with the lowest numbers. A share is put on the fullest device that has room for it,
    with the lowest number among equals.
    """
    if need.share == WHOLE:
        whole = [number for number, left in enumerate(free.devices) if left == WHOLE]
        return tuple(whole[: need.gpu]) if len(whole) >= need.gpu else ()
    return min(((left, number) for number, left in enumerate(free.devices) if left >= need.share), default=(0,))[1:]


def subtract(free: Capacity, need: Need, devices: tuple[int, ...] | None = None) -> Capacity:
    """Return the free capacity with one more replica.

    Args:
        devices: Devices of the replica; None: those that `pick` returns.
    """
    if need.gpu and devices is None:
        devices = pick(need, free)
    return Capacity(free.mcpu - need.mcpu, _change(free.devices, devices or (), -need.share), free.memory - need.memory)


def add(free: Capacity, need: Need, devices: tuple[int, ...] = ()) -> Capacity:
    """Return the free capacity with one replica less, which had those devices."""
    return Capacity(free.mcpu + need.mcpu, _change(free.devices, devices, need.share), free.memory + need.memory)


def without(free: Capacity, devices: tuple[int, ...]) -> Capacity:
    """Return the free capacity without those devices."""
    if not devices:
        return free
    return free._replace(devices=tuple(0 if i in devices else left for i, left in enumerate(free.devices)))


def slots(need: Need, free: Capacity) -> int:
    """Return how many replicas fit into the free capacity; UNLIMITED for a replica that needs nothing."""
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
    """Return the sets of roles that may have succeeded when another role can start.

    At each such moment all roles that are alive need room. Two roles that wait for different roles are alive together
    after all of these have succeeded. With very many different moments, some are left out.

    Args:
        before: For each role, the roles that have to succeed before it starts.
    """
    found: dict[frozenset[str], None] = {frozenset(): None}
    for gone in dict.fromkeys(frozenset(names) for names in before.values()):
        together = [gone | other for other in found] if len(found) <= MOMENTS_MAX // 2 else [gone]
        found |= dict.fromkeys(together)
    found[frozenset().union(*found)] = None
    return list(found)
