"""Restart table: the roles that restart together, and the waves of starts, computed from the graph with networkx.

`flowdist.control` computes the same by itself. The two share no code, so that this table is an oracle for it.
"""

from __future__ import annotations

from itertools import product
from typing import Literal

import networkx as nx

from flowdist.graph import RoleGraph
from flowdist.graph.policies import Scope

Cause = Literal["failure", "node_lost"]
Extent = Literal["replica", "role"]


def restart_set(graph: RoleGraph, role: str, cause: Cause, scope: Scope | None = None) -> dict[str, Extent]:
    """Return the roles that restart when one replica of `role` fails, or loses its node, in the order of the graph.

    A role without a policy counts as one whose scope is the replica.

    Args:
        graph: The topology.
        role: The name of the role.
        cause: What happened to the replica.
        scope: The scope of the policy that decides; None: that of the role's first policy. A lost node ignores it.

    Returns:
        By role, `role` if all of its replicas restart, and `replica` if only the replica itself does.
    """
    spec = graph.role(role)
    if cause == "node_lost" or spec.restart is None:
        scope = "replica"
    elif scope is None:
        scope = spec.restart.scope
    edges = _passing_on(graph)
    whole = _whole_by_scope(graph, role, scope)
    for start in sorted(whole | {role}):
        # at least one step: a role in a cycle or in a domain leads back to itself
        for successor in edges.successors(start):
            whole.add(successor)
            whole.update(nx.descendants(edges, successor))
    names = [other.name for other in graph.roles if other.name in whole or other.name == role]
    return {name: "role" if name in whole else "replica" for name in names}


def _whole_by_scope(graph: RoleGraph, role: str, scope: Scope) -> set[str]:
    """Return the roles of which every replica restarts by the scope alone, before edges are followed."""
    domain = graph.domain_of(role)
    if scope == "domain" and domain is not None:
        return set(domain.roles)
    if scope == "job":
        return {other.name for other in graph.roles}
    return {role} if scope != "replica" or graph.role(role).gang else set()


def _passing_on(graph: RoleGraph) -> nx.DiGraph[str]:
    """Return the direct edges along which a restart passes, with all roles as nodes.

    An edge leads from a role to each role that restarts in whole when any replica of the first restarts. The edges
    come from gates with on_restart="restart", from domains and from joint worlds (where each role also leads to
    itself), not from the scopes of policies.
    """
    edges: nx.DiGraph[str] = nx.DiGraph()
    edges.add_nodes_from(spec.name for spec in graph.roles)
    for together in [*(world.roles for world in graph.worlds), *(domain.roles for domain in graph.domains)]:
        edges.add_edges_from(product(together, together))
    for spec in graph.roles:
        edges.add_edges_from((gate.role, spec.name) for gate in spec.gates if gate.on_restart == "restart")
    return edges


def start_waves(graph: RoleGraph) -> list[list[str]]:
    """Return the names of the roles in waves: the gates of a role wait only for roles of earlier waves."""
    names = [spec.name for spec in graph.roles]
    edges: nx.DiGraph[tuple[str, ...]] = nx.DiGraph()  # all of a joint world start together
    edges.add_nodes_from(map(graph.mates_of, names))
    for name in names:
        gates = (gate for mate in graph.mates_of(name) for gate in graph.role(mate).gates)
        edges.add_edges_from((graph.mates_of(gate.role), graph.mates_of(name)) for gate in gates)
    waves = list(nx.topological_generations(edges))
    return [[name for name in names if graph.mates_of(name) in wave] for wave in waves]
