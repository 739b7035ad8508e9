"""Room on the nodes that a plan of faults leaves: a warning before the job starts, from the graph alone."""

from __future__ import annotations

from collections.abc import Collection

from flowdist.faults.grammar import Fault, Plan
from flowdist.graph import RoleGraph, RoleSpec, format_duration
from flowdist.graph.capacity import fits, needed, offered, slots

FOR_GOOD = ("kill", "lost", "leave", "preempt", "pause")  # faults that take a node away, without /DURATION for good


def stranding(plan: Plan, graph: RoleGraph) -> str:
    """Return a warning about the first fault of a plan that leaves a role without room for its minimum; empty for none.

    Roles that take room from each other, and plans with nodes that join, give no warning: only the run can show that.
    """
    lost: set[str] = set()
    for fault in plan.faults if not plan.new_nodes else ():
        if fault.kind not in FOR_GOOD or fault.duration_ns is not None:
            continue
        lost.update(nodes_hit(fault, graph))
        short = next((spec for spec in graph.roles if room_without(graph, spec, lost) < spec.min_replicas), None)
        if short is not None:
            back = f"a node comes back only with a /DURATION ({fault.spec}/30s)"
            wait = f"it will wait up to {format_duration(short.pending_timeout_ns)} (pending_timeout) for one"
            return (
                f"after {fault.spec} no room is left for the minimum of {short.name}, and {back}: "
                f"{wait}, then the job fails"
            )
    return ""


def nodes_hit(fault: Fault, graph: RoleGraph) -> list[str]:
    """Return the nodes that a fault names, by their name or a label."""
    return [node.name for node in graph.cluster.nodes if fault.target == node.name or fault.label in node.labels]


def room_without(graph: RoleGraph, spec: RoleSpec, lost: Collection[str]) -> int:
    """Return how many replicas of the role fit on the nodes that are not lost, if no other role takes room there.

    Which neighbours a replica has is not known, so `near` does not count, and `apart` only among those of the role.
    """
    need = needed(spec.resources)
    counts = [
        slots(need, offered(node))
        for node in (graph.cluster.nodes if graph.cluster.given else ())
        if node.name not in lost and set(spec.placement.where) <= set(node.labels) and fits(need, offered(node))
    ]
    return len(counts) if spec.name in spec.placement.apart else sum(counts)
