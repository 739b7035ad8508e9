"""Reading of `snapshots=`: copies of a gang's state in the memory of nodes, checked against the nodes (R24)."""

from __future__ import annotations

from flowdist.dsl.problems.problem import did_you_mean
from flowdist.dsl.read.fields import Fields, owner_of
from flowdist.dsl.read.placement import allowed_nodes
from flowdist.dsl.words import Snapshots
from flowdist.graph import RoleGraph, RoleSpec, SnapshotSpec, format_memory

HELD = 2  # snapshots in memory at one time: a new one is complete before the last one is dropped
EXAMPLE = "write snapshots=Snapshots(copies=2, every=20)"


def read_snapshots(fields: Fields) -> SnapshotSpec | None:
    """Return the snapshots of a role; None if it has none, and after an error."""
    given = fields.values["snapshots"]
    if given is None:
        return None
    if not isinstance(given, Snapshots):
        fields.error("FD134", "snapshots", f"snapshots={given!r} must be a Snapshots", EXAMPLE)
        return None
    part = fields.nested("snapshots", given)
    if not isinstance(given.apart, str) or not given.apart:
        help = 'write apart="node", or a label of the nodes such as apart="rack"'
        part.error("FD134", "apart", f"apart={given.apart!r} must be a text", help)
        return None
    return SnapshotSpec(part.whole("copies", least=1), part.whole("every", least=1), given.apart, part.memory("size"))


def check_snapshots(fields: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    """Add an error for each reason why the snapshots of a role cannot be (FD171)."""
    if spec.snapshots is None or fields.is_wrong("snapshots"):
        return
    part = fields.nested("snapshots", fields.values["snapshots"])
    if not spec.gang and not fields.is_wrong("kind", "gang", "restart"):
        help = "make it a gang, or leave snapshots= out"
        fields.error("FD171", "snapshots", "its replicas are no gang, so they have no common state", help)
    if spec.simulate:
        help = "leave one of the two out: the simulator knows no snapshots of your own model"
        fields.error("FD171", "snapshots", "it has simulate=, too", help)
    mates = [graph.role(name) for name in graph.mates_of(spec.name)]
    mates = [mate for mate in mates if not fields.problems.is_wrong(owner_of(mate), "snapshots")]
    if other := next((mate for mate in mates if mate.snapshots != spec.snapshots), None):
        message = f"role {other.name!r} shares its world, and has other snapshots or none"
        fields.error("FD171", "snapshots", message, "write the same snapshots= for all roles of a world")
    if not fields.is_wrong("replicas", "where"):
        _check_copies(part, spec, graph)
    if graph.cluster.given and not fields.problems.is_wrong(owner_of(graph), "nodes"):
        _check_apart(part, spec, graph)
        if not fields.is_wrong("replicas", "memory", "resources", "where"):
            _check_size(part, spec, graph)


def _check_copies(part: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    """Add an error for more copies than the world of the role has nodes at most: each copy is on a node of its own."""
    assert spec.snapshots is not None
    most, more = sum(graph.role(name).max_replicas for name in graph.mates_of(spec.name)), "replicas"
    why = f"its world has {most} replica{'s' * (most > 1)}"
    allowed = len(allowed_nodes(spec, graph.cluster.nodes))
    if graph.cluster.given and 0 < allowed < most:
        most, more, why = allowed, "nodes", f"it may run on {allowed} node{'s' * (allowed > 1)}"
    if spec.snapshots.copies > most:
        message = f"copies={spec.snapshots.copies} are on as many nodes, but {why}"
        part.error("FD171", "copies", message, f"write copies={most}, or give it more {more}")


def _check_apart(part: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    """Add an error for a label that no node has."""
    assert spec.snapshots is not None
    apart, labels = spec.snapshots.apart, {key for node in graph.cluster.nodes for key, _ in node.labels}
    if apart not in {"node", *labels}:
        help = did_you_mean(apart, ["node", *sorted(labels)])
        part.error("FD171", "apart", f"apart={apart!r}: no node has such a label", help)


def _check_size(part: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    """Add an error if the largest node has no memory for its share of the replicas and copies."""
    assert spec.snapshots is not None
    nodes = allowed_nodes(spec, graph.cluster.nodes)
    if not nodes or not spec.snapshots.size:
        return
    each = spec.resources.memory + spec.procs * spec.snapshots.copies * HELD * spec.snapshots.size
    needed, most = -(-spec.max_replicas // len(nodes)) * each, max(node.memory for node in nodes)
    if needed > most:
        message = f"{HELD} snapshots at a time and the replicas need {format_memory(needed)} on a node"
        message += f", and the largest has {format_memory(most)}"
        part.error("FD171", "size", message, "take fewer copies, or larger or more nodes")
