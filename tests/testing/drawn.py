"""Topologies that the proofs draw besides those of `flowdist.testing.strategies`."""

from __future__ import annotations

from typing import Literal

import msgspec
from hypothesis import strategies as st

from flowdist.graph import Cluster, Domain, Gate, NodeSpec, Resources, RestartPolicy, RoleGraph, RoleSpec
from flowdist.testing.strategies import BRISK, NODES, ignores


@st.composite
def restarting_topologies(draw: st.DrawFn) -> RoleGraph:
    """Draw a topology of two to five roles that fit on any two nodes, start at once, and restart after failures."""
    names = ("a", "b", "c", "d", "e")[: draw(st.integers(2, 5))]
    domains = (Domain("x", tuple(draw(st.permutations(names))[:2])),) if draw(st.booleans()) else ()
    roles = []
    for i, name in enumerate(names):
        edges: st.SearchStrategy[Literal["restart", "reconnect"]] = st.sampled_from(["restart", "reconnect"])
        gates = tuple(Gate(other, "started", draw(edges)) for other in names[:i] if draw(st.booleans()))
        in_domain = any(name in domain.roles for domain in domains)
        gang = draw(st.booleans())
        scopes = ["role", "job"] + (["domain"] if in_domain else []) + ([] if gang else ["replica"])
        policy = RestartPolicy(draw(st.sampled_from(scopes)), max_restarts=9)
        count = draw(st.integers(1, 3))
        roles.append(
            RoleSpec(
                name,
                ("true",),
                min_replicas=count,
                max_replicas=count,
                gang=gang,
                gates=gates,
                restart=policy,
                resources=Resources(cpu=1.0),
                workload=BRISK,
            )
        )
    cluster = Cluster(tuple(NodeSpec(name, cpu=20.0) for name in NODES))
    return RoleGraph("test", tuple(roles), domains, cluster)


def with_steady_services(graph: RoleGraph) -> RoleGraph:
    """Return the graph with services that always have all their replicas: one size, and no failure is ignored.

    In simulation the clients of a service wait for every one of its replicas.
    """
    roles = []
    for role in graph.roles:
        if role.kind == "service":
            role = msgspec.structs.replace(role, max_replicas=role.min_replicas)
            if role.restart is not None and ignores(role):
                policy = RestartPolicy(role.restart.scope, role.restart.max_restarts)
                role = msgspec.structs.replace(role, restart=policy)
        roles.append(role)
    return msgspec.structs.replace(graph, roles=tuple(roles))
