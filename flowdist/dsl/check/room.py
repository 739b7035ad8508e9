"""Room on the nodes for each replica and for the minima of all roles, and limits of Linux that no node can exceed."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from flowdist.dsl.problems.problem import Problems
from flowdist.dsl.read.fields import Fields, owner_of
from flowdist.dsl.read.placement import allowed_nodes
from flowdist.dsl.topology import Topology
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec, format_memory
from flowdist.graph.capacity import Capacity, Need, add, fits, moments, needed, offered, pick, slots, subtract
from flowdist.graph.units import HOSTS_MAX, PORTS_MAX

Seat = tuple[str, tuple[int, ...]]  # the place of one replica: the name of its node, and the numbers of its GPUs

STRING_MAX = 131_071  # bytes of one argument, or of one variable with its name, that Linux gives to a program
STRINGS_MAX = 6 << 20  # bytes of all of them together, whatever the limit of the stack is
POINTER_BYTES = 8  # each string needs one, and a NUL
OTHERS_BYTES = 4096  # that Linux and flowdist need in any case

_FILE = "put the text into a file, and its path into the variable"

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
    """Add an error for the first role whose minimum has no room beside the roles that are alive with it (FD113)."""
    if not graph.cluster.given or problems.is_wrong(owner_of(graph), "nodes", "labels"):
        return
    if any(problems.is_wrong(owner_of(spec), *_SEATING) for spec in graph.roles):
        return
    if (short := _without_room(graph)) is not None:
        role = next(role for role, spec in zip(topology.roles, graph.roles, strict=True) if spec is short)
        message = f"its minimum of {short.min_replicas} has no room beside the roles that are alive with it"
        Fields.of_role(role, problems).error("FD113", "replicas", message, "lower a minimum, or add nodes")


def _without_room(graph: RoleGraph) -> RoleSpec | None:
    """Return the first role whose minimum has too few seats (places on nodes) at some moment; None if all have enough.

    Seats that are given at the start of the job are kept until their role has succeeded.
    """
    before = {spec.name: graph.to_succeed_before(spec.name) for spec in graph.roles}
    needs = {spec.name: needed(spec.resources) for spec in graph.roles}
    free = {node.name: offered(node) for node in graph.cluster.nodes}
    seats: dict[str, list[Seat]] = {}
    for gone in moments(before):
        left = dict(free)
        for name in seats:
            for node, devices in seats[name] if name in gone else ():
                left[node] = add(left[node], needs[name], devices)
        for spec in graph.roles:
            if spec.name in gone or spec.name in seats or not before[spec.name] <= gone:
                continue
            found = _seat(spec, needs[spec.name], left, _allowed(spec, graph, seats))
            if len(found) < spec.min_replicas:
                return spec
            if not gone:
                seats[spec.name], free = found, left
    return None


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
    """Take seats for the role's minimum, or for fewer, out of `free`, in the order of the controller."""
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


def check_limits(fields: Fields, spec: RoleSpec) -> None:
    """Add an error if no process can be given the role's command and environment (FD183), or its ports (FD184)."""
    too_long = False
    for number, word in enumerate(spec.command):
        if (size := len(word.encode())) > STRING_MAX:
            what, too_long = f"argument {number} of its command", True
            fields.error("FD183", "command", f"{what} has {_bytes(size, STRING_MAX)}", "put the text into a file")
    for name, text in spec.env:
        if (size := len(f"{name}={text}".encode())) > STRING_MAX:
            too_long = True
            fields.error("FD183", f"env.{name}", f"env[{name!r}] has {_bytes(size, STRING_MAX)}", _FILE)
    strings = [*spec.command, *(f"{name}={text}" for name, text in spec.env)]
    size = sum(len(text.encode()) + 1 + POINTER_BYTES for text in strings)
    most = strings_max(resource.getrlimit(resource.RLIMIT_STACK)[0])
    if size > most and not too_long:
        fields.error("FD183", "env", f"its command and environment have {_bytes(size, most)}", _FILE)
    if len(spec.ports) > PORTS_MAX:
        message = f"each of its replicas has {len(spec.ports):,} ports, and a node has {PORTS_MAX}"
        fields.error("FD184", "ports", message, "name the ports that other roles need; a program may open more itself")


def check_limits_of_job(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """Add an error if the given nodes have too few ports (FD184); warn of more nodes than a run has (FD337)."""
    nodes, top = len(graph.cluster.nodes), Fields(owner_of(topology), topology.fields, topology.site, problems)
    if not graph.cluster.given or top.is_wrong("nodes"):
        return
    needs = [role.min_replicas * len(role.ports) for role in graph.roles]
    if sum(needs) > nodes * PORTS_MAX and not any(len(role.ports) > PORTS_MAX for role in graph.roles):
        most = Fields.of_role(topology.roles[needs.index(max(needs))], problems)
        message = f"the roles need {sum(needs):,} ports, and {nodes:,} node{'s' * (nodes > 1)} have {PORTS_MAX} each"
        most.error("FD184", "ports", message, "name fewer ports, or add nodes")
    if nodes > HOSTS_MAX + 1:
        message = f"{nodes:,} nodes can be simulated; a run has {HOSTS_MAX + 1:,} at most"
        top.warn("FD337", "nodes", message, "write fewer nodes to run the job")


def _bytes(size: int, most: int) -> str:
    return f"{size:,} bytes, and Linux gives a program at most {most:,}"


def strings_max(stack: int) -> int:
    """Return the bytes of arguments and environment that Linux gives a program: a quarter of the limit of its stack."""
    quarter = STRINGS_MAX if stack == resource.RLIM_INFINITY else stack // 4
    return min(STRINGS_MAX, max(STRING_MAX + 1, quarter)) - OTHERS_BYTES
