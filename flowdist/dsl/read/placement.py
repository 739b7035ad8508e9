"""Reading of `placement=`, `near=`, `apart=` and `where=`: the nodes on which replicas of a role may run."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from flowdist.dsl.problems.problem import did_you_mean
from flowdist.dsl.read.fields import DOUBLE, Fields, owner_of
from flowdist.dsl.topology import Role, Topology
from flowdist.graph import NodeSpec, Placement, RoleGraph, RoleSpec


def read_placement(fields: Fields, topology: Topology) -> Placement:
    """Return the placement of a role. Anything in `near=` or `apart=` but roles of this topology adds an error."""
    apart: Any = fields.values["apart"]
    own = (str(fields.values["name"]),) if apart is True else ()
    return Placement(
        strategy=fields.choice("placement", ("spread", "pack")),
        near=_roles(fields, "near", topology),
        apart=own if apart in (True, False) else _roles(fields, "apart", topology),
        where=fields.pairs("where"),
    )


def _roles(fields: Fields, name: str, topology: Topology) -> tuple[str, ...]:
    """Return the names of the roles in the argument `name`; anything but roles of this topology adds an error."""
    help = f"write {name}=ROLE or {name}=[ROLE, ...] with what this topology's role() returned"
    known = [role.name for role in topology.roles]
    value = fields.values[name]
    found: dict[str, None] = {}
    for i, role in enumerate([value] if isinstance(value, str) else fields.items(name, Role, help=help)):
        if isinstance(role, Role) and role.topology is topology:
            found[role.name] = None
            continue
        message = f"{name}= takes roles of this topology, not {role!r}"
        near = did_you_mean(role, known, otherwise="") if isinstance(role, str) and role not in known else ""
        fields.error("FD135", name, message, f"{near} {help}".strip(), fields.element(name, i))
    return tuple(found)


def check_placement(fields: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    """Add an error if the placement of a role contradicts itself, or if the nodes cannot satisfy it (FD146)."""
    placement = spec.placement
    earlier = list(takewhile(lambda name: name != spec.name, (role.name for role in graph.roles)))
    for name in placement.near:
        if name in placement.apart and not fields.is_wrong(DOUBLE):
            fields.error("FD146", "near", f"it is both near {name!r} and apart from it", "leave one of them out")
        if name not in earlier and not fields.is_wrong(DOUBLE):  # replicas are placed in the order of the roles
            fields.error("FD146", "near", f"it is near {name!r}, which is not declared before it", "leave it out")
    if not graph.cluster.given or fields.is_wrong("where") or fields.problems.is_wrong(owner_of(graph), "labels"):
        return
    allowed = allowed_nodes(spec, graph.cluster.nodes)
    if not allowed:
        _no_such_node(fields, spec, graph.cluster.nodes)
    if fields.is_wrong("replicas", DOUBLE) or fields.problems.is_wrong(owner_of(graph), "nodes"):
        return
    if spec.name in placement.apart and 0 < len(allowed) < spec.min_replicas:
        nodes = f"{len(allowed)} node{'s' * (len(allowed) != 1)}"
        message = f"with apart=True its minimum of {spec.min_replicas} needs as many nodes, but it may use {nodes}"
        fields.error("FD146", "apart", message, "lower the minimum, or leave apart= out")


def _no_such_node(fields: Fields, spec: RoleSpec, nodes: tuple[NodeSpec, ...]) -> None:
    """Add an error for each label in `where=` that no node has; if all exist, one error: no node has them together."""
    labels = [label for node in nodes for label in node.labels]
    keys = sorted({key for key, _ in labels})
    missing = [label for label in spec.placement.where if label not in labels]
    for key, value in missing:
        values = sorted({known for label, known in labels if label == key})
        help = f'write Node(..., labels={{"{key}": "{value}"}})'
        if values:
            help = did_you_mean(value, values)
        elif keys:
            help = f"{did_you_mean(key, keys)} Or {help}"
        fields.error("FD146", "where", f"no node has the label {key}={value}", help)
    if not missing:
        wanted = " and ".join(f"{key}={value}" for key, value in spec.placement.where)
        fields.error("FD146", "where", f"no node has both {wanted}", "leave one of them out")


def allowed_nodes(spec: RoleSpec, nodes: tuple[NodeSpec, ...]) -> list[NodeSpec]:
    """Return the nodes that have all labels in the role's `where=`; all nodes if it has none."""
    return [node for node in nodes if set(spec.placement.where) <= set(node.labels)]
