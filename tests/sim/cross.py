"""Jobs that both modes of the simulator play: the fast one first, then the exact one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from flowdist import Node, Restart, Topology, Workload
from flowdist.faults.grammar import Plan
from flowdist.graph import SECOND, RestartPolicy, RoleGraph
from flowdist.sim.experiment.compare import Comparison
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.play import cross_check
from flowdist.sim.macro.books import MacroResult
from flowdist.testing.kit import graph_of

TIMES = {"steps": 600, "startup": "5s", "checkpoint_every": "1m", "checkpoint_time": "1s"}


def gang(load: dict[str, Any], replicas: str = "2:4", nodes: int = 4, max_restarts: int = 99, **more: Any) -> RoleGraph:
    t = Topology("features", nodes=nodes * [Node(cpu=1)])
    workload = Workload(**{**TIMES, **load})
    t.role(
        "trainer", "sleep inf", replicas=replicas, restart=Restart(max_restarts=max_restarts), workload=workload, **more
    )
    return graph_of(t)


def with_options(graph: RoleGraph, **fields: Any) -> RoleGraph:
    return msgspec.structs.replace(graph, options=msgspec.structs.replace(graph.options, **fields))


def with_policy(graph: RoleGraph, **fields: Any) -> RoleGraph:
    (role,) = graph.roles
    return msgspec.structs.replace(graph, roles=(msgspec.structs.replace(role, restart=RestartPolicy(**fields)),))


def sized(graph: RoleGraph, *seats: int) -> RoleGraph:
    """The graph on nodes that have room for so many replicas each."""
    nodes = (msgspec.structs.replace(node, cpu=float(n)) for node, n in zip(graph.cluster.nodes, seats, strict=True))
    return msgspec.structs.replace(graph, cluster=msgspec.structs.replace(graph.cluster, nodes=tuple(nodes)))


def patient(graph: RoleGraph) -> RoleGraph:
    """The graph with a lease of 20 s."""
    return with_options(graph, lease_ns=20 * SECOND)


def crossed(
    graph: RoleGraph,
    plan: Plan,
    seeds: Sequence[int],
    until_ns: int,
    tell: Callable[[int, int], None] | None = None,
) -> list[Comparison]:
    """Return the comparison of each seed."""
    return [found for _, found in cross_check(Experiment(graph, plan, until_ns), seeds, tell)]


def faults_of(one: Comparison) -> int:
    """Return how many faults hit something."""
    assert isinstance(one.a.result, MacroResult)
    return one.a.result.faults


def spent_of(one: Comparison) -> dict[str, int]:
    """Return the time by bucket of the only role."""
    (spent,) = one.a.spent.values()
    return {**spent}
