"""If this restarts, what restarts with it? The static answer, computed from the graph with networkx.

Control computes its own closure; the two share no code, so that this table is an oracle for it in the tests.
"""

from __future__ import annotations

from typing import Literal

import networkx as nx

from flowdist.graph import RoleGraph
from flowdist.graph.policies import Scope

Cause = Literal["failure", "node_lost"]
Extent = Literal["replica", "role"]


def restart_set(graph: RoleGraph, role: str, cause: Cause, scope: Scope | None = None) -> dict[str, Extent]:
    """The roles that restart when one replica of `role` fails, or loses its node, in the order of the graph.

    `replica` means that only the replica itself does, `role` that all of its replicas do. `scope` is for a failure that
    another than the first budget pays for.
    """
    spec = graph.role(role)
    if cause == "node_lost" or spec.restart is None:
        scope = "replica"
    elif scope is None:
        scope = spec.restart.scope
    edges = _passing_on(graph)
    whole: set[str] = set()
    alone = scope == "replica" and not spec.gang
    if scope == "domain" and (domain := graph.domain_of(role)) is not None:
        whole.update(domain.roles)
    elif scope == "job":
        whole.update(other.name for other in graph.roles)
    elif not alone:
        whole.add(role)
    world = graph.world_of(role)
    whole.update(world.roles if world is not None else ())
    for start in sorted(whole | {role}):
        # a walk of at least one step: a role in a circle, or in a domain, comes back to itself
        for successor in edges.successors(start):
            whole.add(successor)
            whole.update(nx.descendants(edges, successor))
    extents: dict[str, Extent] = {}
    for other in graph.roles:
        if other.name in whole:
            extents[other.name] = "role"
        elif other.name == role:
            extents[other.name] = "replica"
    return extents


def _passing_on(graph: RoleGraph) -> nx.DiGraph[str]:
    """An edge from a role to each role that restarts in whole whenever any replica of the first does."""
    edges: nx.DiGraph[str] = nx.DiGraph()
    edges.add_nodes_from(spec.name for spec in graph.roles)
    for spec in graph.roles:
        edges.add_edges_from((gate.role, spec.name) for gate in spec.gates if gate.on_restart == "restart")
    for roles in [*(domain.roles for domain in graph.domains), *(world.roles for world in graph.worlds)]:
        edges.add_edges_from((a, b) for a in roles for b in roles)
    return edges


def start_waves(graph: RoleGraph) -> list[list[str]]:
    """The roles in the order in which they can start: each wave waits for gates into earlier ones."""
    joint = {role: world.name for world in graph.worlds for role in world.roles}  # all of a world start together
    gates: nx.DiGraph[str] = nx.DiGraph()
    gates.add_nodes_from(joint.get(spec.name, spec.name) for spec in graph.roles)
    for spec in graph.roles:
        mine = joint.get(spec.name, spec.name)
        gates.add_edges_from((joint.get(gate.role, gate.role), mine) for gate in spec.gates)
    waves = [set(wave) for wave in nx.topological_generations(gates)]
    return [[spec.name for spec in graph.roles if joint.get(spec.name, spec.name) in wave] for wave in waves]
