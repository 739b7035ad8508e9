"""Room on the nodes: whether some node is large enough for a replica, and whether the minima of all roles fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heapreplace

from flowdist.dsl.problems.problem import Problems
from flowdist.dsl.read.fields import Fields, owner_of
from flowdist.dsl.read.placement import allowed_nodes
from flowdist.dsl.topology import Topology
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec, format_memory
from flowdist.graph.capacity import Capacity, Need, add, fits, moments, needed, offered, pick, slots, subtract

Seat = tuple[str, tuple[int, ...]]  # the place of one replica: the name of its node, and the numbers of its GPUs

_SIZE = ("cpu", "gpu", "memory", "resources")
# After an error in one of these, sizes or the order of the roles are unknown, and "no room" would be a guess.
_SEATING = (*_SIZE, "replicas", "kind", "depends_on", "placement", "near", "apart", "where")


def check_fits(fields: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    """Add an error if no node is large enough for one replica of the role (FD112, FD114).

    If the topology declares no nodes, only a need of GPUs adds an error: nothing says how many a node has. Of several
    roles that need GPUs, the first alone gets the error, because one change of `nodes=` corrects it for all.
    """
    need = needed(spec.resources)
    nodes = graph.cluster.nodes
    if fields.is_wrong(*_SIZE) or fields.problems.is_wrong(owner_of(graph), "nodes"):
        return
    if need.gpu and not any(node.gpu for node in nodes):
        why = "no node has one" if graph.cluster.given else "the topology declares no nodes, and so no GPUs"
        help = f"write Topology(..., nodes={_nodes_with_gpus(graph)})"
        fields.error("FD114", "gpu", f"it asks for {spec.resources.gpu_words}, but {why}", help)
        fields.problems.mark_wrong(owner_of(graph), "nodes")  # other roles that ask for GPUs have the same error
    elif graph.cluster.given and not any(fits(need, offered(node)) for node in nodes):
        largest = max(nodes, key=lambda node: (node.gpu, node.cpu, node.memory))
        size = f"{largest.cpu:g} cpu, {largest.gpu} gpu, {format_memory(largest.memory)}"
        argument = next((name for name in ("cpu", "gpu", "memory") if fields.values.get(name) is not None), "resources")
        fields.error("FD112", argument, f"a replica is larger than any node ({size})", "ask for less, or larger nodes")


def _nodes_with_gpus(graph: RoleGraph) -> str:
    """Return nodes that have room for each replica that needs GPUs, as users write them: `4 * [Node(gpu=2)]`."""
    roles = [spec for spec in graph.roles if spec.resources.gpu]
    size = f"gpu={max(spec.resources.gpu for spec in roles)}"
    usual = NodeSpec("")
    cpu, memory = (max(getattr(spec.resources, name) for spec in roles) for name in ("cpu", "memory"))
    size += f", cpu={math.ceil(cpu)}" if cpu > usual.cpu else ""
    size += f', memory="{math.ceil(memory / (1 << 30))}GiB"' if memory > usual.memory else ""
    count = max(sum(spec.max_replicas for spec in roles), len(graph.cluster.nodes))
    return f"{count} * [Node({size})]" if count > 1 else f"[Node({size})]"


def check_minima(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """Add an error for the first role whose minimum has no room beside the roles that are alive with it (FD113).

    Places are chosen as the controller chooses them. Nothing is checked if the topology declares no nodes, or if
    earlier problems leave the sizes of roles unknown.
    """
    if not graph.cluster.given or problems.is_wrong(owner_of(graph), "nodes", "labels"):
        return
    if any(problems.is_wrong(owner_of(spec), *_SEATING) for spec in graph.roles):
        return
    before = _before_success(graph)
    rooms = _Rooms(graph)
    for gone in moments(before):
        short = rooms.seat_all(gone, before)
        if short is not None:
            role = next(role for role, spec in zip(topology.roles, graph.roles, strict=True) if spec is short)
            message = f"its minimum of {short.min_replicas} has no room beside the roles that are alive with it"
            fields = Fields.of_role(role, problems)
            fields.error("FD113", "replicas", message, "lower a minimum, or add nodes")
            return


class _Rooms:
    """Seats (places on nodes) of the roles that start first, and the capacity of the nodes that these leave free."""

    def __init__(self, graph: RoleGraph) -> None:
        self._graph = graph
        self._needs = {spec.name: needed(spec.resources) for spec in graph.roles}
        self._free = {node.name: offered(node) for node in graph.cluster.nodes}
        self._seats: dict[str, list[Seat]] = {}

    def seat_all(self, gone: frozenset[str], before: Mapping[str, Mapping[str, None]]) -> RoleSpec | None:
        """Give seats to the minimum of each role that can run once the roles `gone` have succeeded.

        Seats that are given while `gone` is empty are kept: roles that start later get what is left.

        Args:
            gone: Roles that have succeeded, and have left their seats.
            before: For each role, the roles that succeed before it starts.

        Returns:
            The first role without enough seats; None if all have seats.
        """
        free = self._free if not gone else self._without(gone)
        for spec in self._graph.roles:
            if spec.name in gone or spec.name in self._seats or not before[spec.name].keys() <= gone:
                continue
            seats = _seat(spec, self._needs[spec.name], free, _allowed(spec, self._graph, self._seats))
            if len(seats) < spec.min_replicas:
                return spec
            if not gone:
                self._seats[spec.name] = seats
        return None

    def _without(self, gone: frozenset[str]) -> dict[str, Capacity]:
        """Return the free capacity of each node after the roles `gone` have left their seats."""
        free = dict(self._free)
        for name in self._seats:
            for node, devices in self._seats[name] if name in gone else ():
                free[node] = add(free[node], self._needs[name], devices)
        return free


def _allowed(spec: RoleSpec, graph: RoleGraph, seats: dict[str, list[Seat]]) -> set[str]:
    """Return the nodes that `where`, `near` and `apart` of the role allow, given the seats of earlier roles."""
    names = {node.name for node in allowed_nodes(spec, graph.cluster.nodes)}
    # other roles start later, or have ended: only the controller knows their nodes
    names.intersection_update(*(_nodes_of(seats[near]) for near in spec.placement.near if near in seats))
    for apart in spec.placement.apart:
        names -= _nodes_of(seats.get(apart, ()))
    return names


def _nodes_of(seats: Iterable[Seat]) -> set[str]:
    return {node for node, _ in seats}


def _seat(spec: RoleSpec, need: Need, free: dict[str, Capacity], allowed: set[str]) -> list[Seat]:
    """Take seats for the role's minimum of replicas, in the order in which the controller gives them.

    Args:
        need: Need of one replica.
        free: Free capacity by node; this function subtracts what it takes.
        allowed: Names of the nodes that the role's placement allows.

    Returns:
        The seats, fewer than the minimum if the nodes have no more room.
    """
    sign = 1 if spec.placement.strategy == "pack" else -1
    left = [
        (sign * slots(need, capacity), i, name)
        for i, (name, capacity) in enumerate(free.items())
        if name in allowed and fits(need, capacity)
    ]
    heapify(left)
    seats: list[Seat] = []
    while left and len(seats) < spec.min_replicas:
        _, i, name = left[0]
        seats.append((name, pick(need, free[name])))
        free[name] = subtract(free[name], need)
        if fits(need, free[name]) and spec.name not in spec.placement.apart:
            heapreplace(left, (sign * slots(need, free[name]), i, name))
        else:
            heappop(left)
    return seats


def _before_success(graph: RoleGraph) -> dict[str, dict[str, None]]:
    """Return, for each role, the roles that succeed before it can start, directly or through the gates of others.

    The roles of a joint world start and succeed together, so a gate of one of them counts for all.
    """
    mates: dict[str, tuple[str, ...]] = {spec.name: (spec.name,) for spec in graph.roles}
    mates |= {name: world.roles for world in graph.worlds for name in world.roles}
    found: dict[str, dict[str, None]] = {spec.name: {} for spec in graph.roles}
    before, count = -1, 0
    while count > before:  # a gate of one role delays all roles of its world, also those declared before
        for spec in graph.roles:
            for gate in spec.gates:
                more = found[gate.role] | dict.fromkeys(mates[gate.role] if gate.condition == "succeeded" else ())
                for mate in mates[spec.name]:
                    found[mate] |= more
        before, count = count, sum(map(len, found.values()))
    return found
