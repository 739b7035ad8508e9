"""Room on other nodes for the replicas of lost nodes: capacity, labels and neighbours, from the graph alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flowdist.faults.grammar import Plan
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec, format_duration
from flowdist.graph.capacity import Capacity, fits, needed, offered, slots, subtract

Seats = Mapping[str, str]  # the node of each replica, by the name of the replica
FOR_GOOD = ("kill", "lost", "leave", "preempt", "pause")  # faults that take a node away, without /DURATION for good


def room_note(graph: RoleGraph, spec: RoleSpec, lost: Collection[str], seats: Seats) -> str:
    """Return in words whether a role continues without the lost nodes, and how much room the other nodes have for it.

    Args:
        graph: The topology.
        spec: The role.
        lost: The names of the lost nodes.
        seats: The node of each replica before the loss.
    """
    left = _left(spec, lost, seats)
    least = spec.min_replicas
    room = min(room_without(graph, spec, lost, seats), spec.max_replicas - left)
    left_text = f"{spec.name} has {left} of {spec.max_replicas} left, and needs {least}"
    room_text = f"the other nodes have room for {room} more" if room else "the other nodes have no room for more"
    if left >= least:
        size = left - left % spec.step  # the role's mesh needs a multiple of `step`
        with_size = f" with {size}, as its mesh needs multiples of {spec.step}" if size < left else ""
        return f"{left_text}: it continues at once{with_size}; {room_text}"
    if left + room >= least:
        return f"{left_text}; {room_text}: it continues there"
    wait = format_duration(spec.pending_timeout_ns)
    return f"{left_text}; {room_text}: it waits up to {wait} for a node, then the job fails"


def short_without(graph: RoleGraph, lost: Collection[str], seats: Seats) -> str:
    """Return the first role whose minimum has no room without the lost nodes; empty if every minimum has.

    Args:
        graph: The topology.
        lost: The names of the lost nodes.
        seats: The node of each replica before the loss. Replicas on other nodes keep their room.
    """
    trial = {replica: seat for replica, seat in seats.items() if seat not in lost}
    for spec in graph.roles:
        for number in range(spec.min_replicas - _left(spec, lost, seats)):
            found = _best(graph, spec, lost, trial)
            if found is None:
                return spec.name
            trial[f"{spec.name}/new{number}"] = found
    return ""


def stranding(plan: Plan, graph: RoleGraph) -> str:
    """Return a warning about the first fault of a plan that leaves a role without room for its minimum.

    The result is empty if no fault does. Only nodes that a fault takes for good count. A plan with nodes that join
    gives no warning, and neither do roles that take room from each other: only the run can show that.
    """
    lost: set[str] = set()
    for fault in plan.faults if not plan.new_nodes else ():
        if fault.kind not in FOR_GOOD or fault.duration_ns is not None:
            continue
        lost |= {node.name for node in graph.cluster.nodes if fault.target == node.name or fault.label in node.labels}
        short = next((spec for spec in graph.roles if room_without(graph, spec, lost, {}) < spec.min_replicas), None)
        if short is not None:
            back = f"a node comes back only with a /DURATION ({fault.spec}/30s)"
            wait = f"it will wait up to {format_duration(short.pending_timeout_ns)} (pending_timeout) for one"
            return (
                f"after {fault.spec} no room is left for the minimum of {short.name}, and {back}: "
                f"{wait}, then the job fails"
            )
    return ""


def _left(spec: RoleSpec, lost: Collection[str], seats: Seats) -> int:
    """Return how many replicas of the role are on nodes that are not lost."""
    return sum(_role(replica) == spec.name and seat not in lost for replica, seat in seats.items())


def _role(replica: str) -> str:
    return replica.partition("/")[0]


def room_without(graph: RoleGraph, spec: RoleSpec, lost: Collection[str], seats: Seats) -> int:
    """Return how many more replicas of the role fit on the nodes that are not lost.

    Args:
        graph: The topology.
        spec: The role.
        lost: The names of the lost nodes.
        seats: The node of each replica, by the name of the replica. They take room there.
    """
    counts = _slots(graph, spec, lost, seats)
    return sum(min(count, 1) if spec.name in spec.placement.apart else count for count in counts.values())


def _best(graph: RoleGraph, spec: RoleSpec, lost: Collection[str], seats: Seats) -> str | None:
    """Return the node for the role's next replica; None if no node has room.

    That is the first node with the most room, or with the least for strategy `pack`.
    """
    counts = {name: count for name, count in _slots(graph, spec, lost, seats).items() if count}
    sign = 1 if spec.placement.strategy == "pack" else -1
    return min(counts, key=lambda name: sign * counts[name], default=None)


def _slots(graph: RoleGraph, spec: RoleSpec, lost: Collection[str], seats: Seats) -> dict[str, int]:
    """Return how many replicas of the role fit on each node that is not lost; nodes without room are left out."""
    nodes = graph.cluster.nodes if graph.cluster.given else ()
    need, found = needed(spec.resources), {}
    for node in nodes:
        there = [_role(replica) for replica, seat in seats.items() if seat == node.name]
        free = _free(graph, node, there)
        if node.name not in lost and fits(need, free) and _admits(spec, node, there):
            found[node.name] = slots(need, free)
    return found


def _free(graph: RoleGraph, node: NodeSpec, there: list[str]) -> Capacity:
    """Return the capacity of the node that replicas of the roles `there` leave free."""
    free = offered(node)
    for role in there:
        free = subtract(free, needed(graph.role(role).resources))
    return free


def _admits(spec: RoleSpec, node: NodeSpec, there: list[str]) -> bool:
    """Return whether the role's placement rules allow the node, given the roles `there` that have replicas on it."""
    placement = spec.placement
    labels = set(placement.where) <= set(node.labels)
    return labels and set(placement.near) <= set(there) and not set(placement.apart) & set(there)
