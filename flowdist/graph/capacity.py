"""Arithmetic of capacity: what nodes offer, and what replicas need.

cpu is counted in thousandths of a core, so that 0.1 + 0.2 is 0.3. Each GPU is counted in thousandths by itself: three
replicas that need 0.6 of a device do not fit on two devices, although 1.8 is less than 2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from flowdist.graph.role_graph import NodeSpec, Resources, RoleSpec
from flowdist.graph.units import GPUS_MAX

WHOLE = 1000  # thousandths of one GPU
UNLIMITED = 1000  # the number of replicas that fit on a node if each needs nothing
MOMENTS_MAX = 64  # sets of roles: from half as many on, `moments` leaves unions of them out


class Need(NamedTuple):
    """Need of one replica: cpu in thousandths of a core, memory in bytes, GPUs, and its part of each in thousandths."""

    mcpu: int = 0
    gpu: int = 0
    memory: int = 0
    share: int = WHOLE

    @property
    def is_nothing(self) -> bool:
        """True if the replica needs no cpu, no GPU and no memory."""
        return not (self.mcpu or self.gpu or self.memory)


class Capacity(NamedTuple):
    """Free capacity of one node: cpu in thousandths of a core, memory in bytes, thousandths of each GPU by number.

    cpu and memory are negative if the node is oversubscribed.
    """

    mcpu: int
    devices: tuple[int, ...]
    memory: int


def offered(node: NodeSpec) -> Capacity:
    """Return the free capacity of a node on which nothing runs."""
    return Capacity(round(node.cpu * 1000), (WHOLE,) * node.gpu, node.memory)


def needed(resources: Resources) -> Need:
    """Return what one replica with these resources needs, in the units of this module."""
    return Need(round(resources.cpu * 1000), resources.gpu, resources.memory, resources.gpu_share)


def node_for_all(roles: Collection[RoleSpec]) -> NodeSpec:
    """Return a node, `node0`, with the cpu, memory and GPUs of all replicas, but no more GPUs than a node can have."""
    cpu, memory = wanted(roles)
    gpu = min(GPUS_MAX, sum(role.resources.gpu * role.max_replicas for role in roles))
    return NodeSpec("node0", cpu=max(cpu, 1), gpu=gpu, memory=memory)


def wanted(roles: Collection[RoleSpec]) -> tuple[float, int]:
    """Return the cpu in cores and the memory in bytes that all replicas of these roles need together."""
    needs = [(needed(role.resources), role.max_replicas) for role in roles]
    return sum(need.mcpu * count for need, count in needs) / 1000, sum(need.memory * count for need, count in needs)


def fits(need: Need, free: Capacity) -> bool:
    """Return whether one more replica fits into the free capacity of a node; what it does not need plays no part."""
    return slots(need, free) > 0


def pick(need: Need, free: Capacity) -> tuple[int, ...]:
    """Return the GPUs of one more replica: the lowest free ones, or for a share the fullest with room; or empty."""
    if need.share == WHOLE:
        whole = [number for number, left in enumerate(free.devices) if left == WHOLE]
        return tuple(whole[: need.gpu]) if len(whole) >= need.gpu else ()
    return min(((left, number) for number, left in enumerate(free.devices) if left >= need.share), default=(0,))[1:]


def subtract(free: Capacity, need: Need, devices: tuple[int, ...] | None = None) -> Capacity:
    """Return the capacity that is left after one more replica, on the GPUs `devices` (None: those of `pick`)."""
    if need.gpu and devices is None:
        devices = pick(need, free)
    return Capacity(free.mcpu - need.mcpu, _change(free.devices, devices or (), -need.share), free.memory - need.memory)


def add(free: Capacity, need: Need, devices: tuple[int, ...] = ()) -> Capacity:
    """Return the capacity of the node that is free after one replica, which had the GPUs `devices`, has left it."""
    return Capacity(free.mcpu + need.mcpu, _change(free.devices, devices, need.share), free.memory + need.memory)


def without(free: Capacity, devices: tuple[int, ...]) -> Capacity:
    """Return the capacity with these GPUs taken out: nothing of them is free."""
    if not devices:
        return free
    return free._replace(devices=tuple(0 if i in devices else left for i, left in enumerate(free.devices)))


def slots(need: Need, free: Capacity) -> int:
    """Return how many replicas with this need fit into the free capacity; UNLIMITED for a need of nothing."""
    count = free.mcpu // need.mcpu if need.mcpu else None
    if need.memory and (count is None or free.memory // need.memory < count):
        count = free.memory // need.memory
    if need.gpu and (count is None or _gpu_slots(need, free) < count):
        count = _gpu_slots(need, free)
    return UNLIMITED if count is None else count


def slots_on(role: RoleSpec, node: NodeSpec) -> int:
    """Return how many replicas of the role the empty node has room for, by resources and labels."""
    labels = dict(node.labels)
    is_allowed = all(labels.get(key) == value for key, value in role.placement.where)
    return slots(needed(role.resources), offered(node)) if is_allowed else 0


def _gpu_slots(need: Need, free: Capacity) -> int:
    """Return how many replicas with this need of GPUs fit on the free ones."""
    if need.share == WHOLE:
        return free.devices.count(WHOLE) // need.gpu
    return sum(left // need.share for left in free.devices)


def _change(devices: tuple[int, ...], which: tuple[int, ...], by: int) -> tuple[int, ...]:
    """Return the thousandths of all GPUs after those numbered `which` have changed by `by`."""
    if not which:
        return devices
    return tuple(left + by if i in which else left for i, left in enumerate(devices))


def moments(before: Mapping[str, Collection[str]]) -> list[frozenset[str]]:
    """Return the sets of roles, the empty one first, that can have succeeded by the time that another role can start.

    `before` has, for each role, those that have to succeed before it. The roles that can start at a moment have to have
    room together. Some unions of sets are left out when there are more than about MOMENTS_MAX sets.
    """
    found: dict[frozenset[str], None] = {frozenset(): None}
    for gone in dict.fromkeys(frozenset(names) for names in before.values()):
        together = [gone | other for other in found] if len(found) <= MOMENTS_MAX // 2 else [gone]
        found |= dict.fromkeys(together)
    found[frozenset().union(*found)] = None
    return list(found)
