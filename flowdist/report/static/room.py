"""Room on other nodes for the replicas of lost nodes: capacity, labels and neighbours, from the graph alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flowdist.faults.grammar import Plan
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec, format_duration
from flowdist.graph.capacity import Capacity, fits, needed, offered, slots, subtract

Seats = Mapping[str, str]  # the node of each replica, by the name of the replica
FOR_GOOD = ("kill", "lost", "leave", "preempt", "pause")  # faults that take a node away, without /DURATION for good


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
