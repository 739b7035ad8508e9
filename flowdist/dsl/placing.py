"""Where replicas may run: `placement=`, `near=`, `apart=` and `where=`, and whether the nodes can give that at all."""

from __future__ import annotations

from typing import Any

from flowdist.dsl.fields import Fields
from flowdist.dsl.problems import did_you_mean
from flowdist.dsl.topology import Role, Topology
from flowdist.graph import NodeSpec, Placement, RoleGraph, RoleSpec


def read_placement(fields: Fields, topology: Topology) -> Placement:
    apart: Any = fields.values["apart"]
    own = (str(fields.values["name"]),) if apart is True else ()
    return Placement(
        strategy=fields.choice("placement", ("spread", "pack")),
        near=_roles(fields, "near", topology),
        apart=own or _roles(fields, "apart", topology),
        where=fields.pairs("where"),
    )


def _roles(fields: Fields, name: str, topology: Topology) -> tuple[str, ...]:
    """Handles of other roles of the topology; one may stand alone."""
    if fields.values[name] in (None, False):
        return ()
    help = f"write {name}=ROLE or {name}=[ROLE, ...] with what this topology's role() returned"
    found: dict[str, None] = {}
    for i, role in enumerate(fields.items(name, Role, help=help)):
        if not isinstance(role, Role) or role.topology is not topology:
            fields.error_at(fields.element(name, i), "FD135", f"{name}= takes roles of this topology", help)
        else:
            found[role.name] = None
    return tuple(found)


def check_placement(fields: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    """What no node can ever give, and what contradicts itself."""
    placement = spec.placement
    for name in placement.near:
        if name in placement.apart:
            fields.error("FD146", "near", f"it is to be near {name!r}, and apart from it", "leave one of them out")
    if not graph.cluster.given:
        return
    for key, value in placement.where:
        values = sorted({known for node in graph.cluster.nodes for label, known in node.labels if label == key})
        if value not in values:
            help = did_you_mean(value, values) if values else f'write Node(..., labels={{"{key}": "{value}"}})'
            fields.error("FD146", "where", f"no node has the label {key}={value}", help)
    allowed = allowed_nodes(spec, graph.cluster.nodes)
    if spec.name in placement.apart and 0 < len(allowed) < spec.min_replicas:
        nodes = f"{len(allowed)} node{'s' * (len(allowed) != 1)}"
        message = f"with apart=True its minimum of {spec.min_replicas} needs as many nodes, and it may use {nodes}"
        fields.error("FD146", "apart", message, "lower the minimum, or leave apart= out")


def allowed_nodes(spec: RoleSpec, nodes: tuple[NodeSpec, ...]) -> list[NodeSpec]:
    """Those with all the labels that the role asks for."""
    return [node for node in nodes if set(spec.placement.where) <= set(node.labels)]
