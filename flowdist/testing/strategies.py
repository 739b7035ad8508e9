"""Hypothesis strategies for users, `topologies()`, `fault_plans(topology)` and `schedules(topology)`.

What is drawn is plain data: Hypothesis alone searches and shrinks, and a case that fails is the same in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from hypothesis import strategies as st

from flowdist.dsl import Topology
from flowdist.faults.grammar import Fault, NodeOrder, Plan, Scale, parse_fault
from flowdist.graph import (
    MINUTE,
    MS,
    NODE_PROCS,
    SECOND,
    Cluster,
    Domain,
    FailureKind,
    Gate,
    JointWorld,
    NodeSpec,
    Placement,
    Readiness,
    Resources,
    RestartPolicy,
    RoleGraph,
    RoleSpec,
    Rule,
    WorkloadSpec,
)
from flowdist.graph.role_graph import GateCondition
from flowdist.testing.kit import graph_of
from flowdist.testing.tracing import untraced

NODES = ("node0", "node1", "node2")
COLLECTIVES: tuple[Literal["fail", "hang"], ...] = ("fail", "hang")
FAILURES: tuple[FailureKind, ...] = ("exit", "signal", "oom", "start_failed")
BRISK = WorkloadSpec(
    steps=40, step_ns=SECOND, startup_ns=2 * SECOND, checkpoint_every_ns=15 * SECOND, checkpoint_ns=SECOND
)
STAYING = msgspec.structs.replace(BRISK, rejoin_ns=200 * MS)  # workers are suspended between generations
LOADS = (BRISK, STAYING, *(msgspec.structs.replace(BRISK, collective=how) for how in COLLECTIVES))


@st.composite
def policies(draw: st.DrawFn, *, may_ignore: bool) -> RestartPolicy | None:
    """Draw a restart policy of a gang, which may ignore failures with `may_ignore`: None in a quarter of the cases."""
    if draw(st.booleans()) and draw(st.booleans()):
        return None
    actions = ["restart", "fail", "ignore"] if may_ignore else ["restart", "fail"]
    kinds = st.sampled_from([*FAILURES, "node_lost", None])
    rules = draw(st.lists(st.builds(Rule, st.sampled_from(actions), kind=kinds), max_size=2))
    wider = RestartPolicy("job", max_restarts=draw(st.integers(0, 2))) if draw(st.booleans()) else None
    then = "widen" if wider else "ignore" if may_ignore and draw(st.booleans()) else "fail"
    return RestartPolicy(
        scope=draw(st.sampled_from(["role", "job", "domain"])),
        max_restarts=draw(st.integers(0, 3)),
        within_ns=draw(st.sampled_from([None, MINUTE])),
        then=then,  # type: ignore[arg-type]
        rules=tuple(rules),
        wider=wider,
    )


@st.composite
def placements(draw: st.DrawFn, others: list[str]) -> Placement:
    """Draw the placement of a role. In a quarter of the cases it may be near, or apart from, one of `others`."""
    if draw(st.integers(0, 3)):
        return Placement(draw(st.sampled_from(["spread", "pack"])))
    names = st.lists(st.sampled_from(others), max_size=1) if others else st.just([])
    return Placement("spread", tuple(draw(names)), tuple(draw(names)))


_RESOURCES = st.sampled_from([Resources(gpu=1), Resources(gpu=1), Resources(gpu=1, gpu_share=500), Resources()])


@st.composite
def roles_of(draw: st.DrawFn, name: str, before: list[RoleSpec], *, gpus: bool) -> RoleSpec:
    """Draw a role with this name, which has gates on some of the roles `before`; with `gpus` it may need GPUs."""
    service = not before and draw(st.booleans())
    gang = not service and draw(st.booleans())
    primary = draw(st.booleans()) or not before
    gates = [
        Gate(other.name, draw(st.sampled_from(_conditions(other))), draw(st.sampled_from(["reconnect", "restart"])))
        for other in before
        if draw(st.booleans())
    ]
    low = draw(st.integers(1, 2))
    policy = draw(policies(may_ignore=not gang or not primary))
    if policy is not None and not gang and draw(st.booleans()):
        policy = msgspec.structs.replace(policy, scope="replica")
    return RoleSpec(
        name,
        ("true",),
        kind="service" if service else "task",
        gang=gang,
        primary=primary,
        min_replicas=low,
        max_replicas=low + draw(st.integers(0, 2)),
        procs=draw(st.integers(1, 2)),
        resources=draw(_RESOURCES) if gpus else Resources(),
        gates=tuple(gates),
        restart=policy,
        ports=("rpc",) if draw(st.booleans()) else (),
        ready=Readiness("tcp", "rpc") if draw(st.booleans()) else None,
        placement=draw(placements([other.name for other in before])),
        address_edges=tuple(gate.role for gate in gates if draw(st.booleans())),
        workload=BRISK if service else draw(st.sampled_from(LOADS)),
    )


@st.composite
@untraced()
def topologies(draw: st.DrawFn, *, gpus: bool = False, domains: bool = True) -> RoleGraph:
    """Draw a compiled topology of one to three roles on three nodes.

    The roles have gates, policies, placement rules, ports and readiness checks. A fourth role is added where the job
    could not end otherwise. Draw from it in a test as `@given(topologies())`.

    Args:
        draw: Supplied by Hypothesis.
        gpus: True: roles may need a GPU, or half of one, and each node has two.
        domains: True: there may be a restart domain and a joint world.
    """
    roles: list[RoleSpec] = []
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        roles.append(draw(roles_of(name, list(roles), gpus=gpus)))
    roles = _with_primary_task(roles)
    names = tuple(spec.name for spec in roles)
    together = (Domain("d", names[:2]),) if domains and len(names) > 1 and draw(st.booleans()) else ()
    roles = [_without_stray_domain(spec, together) for spec in roles]
    worlds = _joint_worlds(draw, roles) if domains else ()
    return RoleGraph("test", tuple(roles), together, _cluster(draw, gpus=gpus), worlds=worlds)


def _with_primary_task(roles: list[RoleSpec]) -> list[RoleSpec]:
    """Return the roles, with a primary task added if there is none: without one the job never ends."""
    if any(spec.kind == "task" and spec.primary for spec in roles):
        return roles
    gates = tuple(Gate(spec.name, "started") for spec in roles[:1])
    return [*roles, RoleSpec("main", ("true",), gates=gates, resources=Resources(cpu=1.0), workload=BRISK)]


def _joint_worlds(draw: st.DrawFn, roles: list[RoleSpec]) -> tuple[JointWorld, ...]:
    gangs = [spec for spec in roles if spec.gang and spec.kind == "task"]
    pair = next(((a.name, b.name) for a, b in itertools.combinations(gangs, 2) if _may_be_joint(a, b)), None)
    return (JointWorld("joint", pair),) if pair and draw(st.booleans()) else ()


def _cluster(draw: st.DrawFn, *, gpus: bool) -> Cluster:
    """Draw the three nodes, all of one size; some clusters set the number of workers per replica on each node."""
    cpu = draw(st.sampled_from([2.0, 1.0, 4.0, 8.0]))
    uneven = draw(st.booleans())  # each node has its own number of workers per replica
    labels = {name: ((NODE_PROCS, str(draw(st.integers(1, 3)))),) if uneven else () for name in NODES}
    return Cluster(tuple(NodeSpec(name, cpu=cpu, gpu=2 if gpus else 0, labels=labels[name]) for name in NODES))


def _may_be_joint(a: RoleSpec, b: RoleSpec) -> bool:
    """Return whether two gangs can share a world: the second has no gates, and both end the job in the same way."""
    return not b.gates and a.primary == b.primary and ignores(a) == ignores(b)


def ignores(spec: RoleSpec) -> bool:
    """Return whether the role's policy can ignore a failure."""
    policy = spec.restart
    return policy is not None and (policy.then == "ignore" or any(rule.do == "ignore" for rule in policy.rules))


def _conditions(other: RoleSpec) -> list[GateCondition]:
    """Return the conditions that a gate on the role can have; "succeeded" twice, to be drawn more often."""
    conditions: list[GateCondition] = ["started"]
    conditions += ["ready"] if other.has_readiness else []
    conditions += ["succeeded", "succeeded"] if other.kind == "task" else []
    return conditions


def _without_stray_domain(spec: RoleSpec, domains: tuple[Domain, ...]) -> RoleSpec:
    """Return the role; if its policy has the scope "domain", and no domain has the role, with the scope "role"."""
    policy = spec.restart
    if policy is not None and policy.scope == "domain" and not any(spec.name in domain.roles for domain in domains):
        return msgspec.structs.replace(spec, restart=msgspec.structs.replace(policy, scope="role"))
    return spec


def fault_plans(
    topology: str | Path | Topology | RoleGraph, *, most: int = 4, operator: bool = True
) -> st.SearchStrategy[Plan]:
    """Return a strategy for plans of any faults, for `simulate(topology, plan)`; the topology need not survive them.

    Few times are drawn, so that faults meet: at one moment, one just after another, inside a restart, after a
    cool-down. Plans shrink towards no fault, and towards the first kinds and times.

    Args:
        topology: Path of a topology file, a Topology, or a compiled graph.
        most: Largest number of faults, or pairs of faults, in a plan.
        operator: True: the operator may also scale a role and drain a node.

    Returns:
        A strategy that draws values of `flowdist.faults.grammar.Plan`.
    """
    return _plans(graph_of(topology), most, operator)


class Schedule(NamedTuple):
    """Timing and orders of a run without faults: `simulate(topology, plan, **schedule._asdict())`."""

    seed: int = 0  # draws start-up times; 0: as the workload says
    schedule: int = 0  # draws the order of events at the same time; 0: as planned
    scale: tuple[str, ...] = ()  # "trainer=3@12s"
    add: tuple[str, ...] = ()  # "extra0@30s"
    drain: tuple[str, ...] = ()  # "node1@50s"


def schedules(topology: str | Path | Topology | RoleGraph, *, most: int = 3) -> st.SearchStrategy[Schedule]:
    """Return a strategy for start-up times, the order of ties, orders of the operator, and new nodes; no faults.

    Schedules shrink towards the nominal run: seed 0, schedule 0, no orders.

    Args:
        topology: Path of a topology file, a Topology, or a compiled graph. Its gangs are scaled within their bounds.
        most: Largest number of orders of each kind (scale, add, drain).

    Returns:
        A strategy that draws values of `Schedule`.
    """
    graph = graph_of(topology)
    elastic = [
        spec for spec in graph.roles if spec.gang and spec.kind == "task" and spec.min_replicas < spec.max_replicas
    ]
    sizes = [f"{spec.name}={n}" for spec in elastic for n in range(spec.min_replicas, spec.max_replicas + 1)]
    return _schedules(sizes, [f"extra{n}" for n in range(most)], [node.name for node in graph.cluster.nodes][1:], most)


# The strategies below are functions instead of combinations of `tuples` and `builds`: once a failing case is small,
# Hypothesis runs a hundred more examples for each part of such a combination, to find parts that do not matter.


@st.composite
@untraced()
def _schedules(draw: st.DrawFn, sizes: list[str], extra: list[str], nodes: list[str], most: int) -> Schedule:
    numbers = st.integers(0, 1 << 16)
    orders = [_orders(names, most) for names in (sizes, extra, nodes)]
    return Schedule(draw(numbers), draw(numbers), *map(draw, orders))


@st.composite
def _orders(draw: st.DrawFn, names: Sequence[str], most: int) -> tuple[str, ...]:
    """Draw at most `most` entries such as `node3@90s`, each for another one of the names."""
    chosen = draw(st.lists(st.sampled_from(names), max_size=most, unique=True)) if names else []
    return tuple(f"{name}@{draw(_TIMES)}" for name in chosen)


@st.composite
@untraced()
def _plans(draw: st.DrawFn, graph: RoleGraph, most: int, operator: bool) -> Plan:
    nodes = [node.name for node in graph.cluster.nodes]
    hits = _hits(graph)
    pairs = _pairs(st.one_of(hits)), _failing_while_preempted(nodes, [role.name for role in graph.roles])
    parts = draw(st.lists(st.one_of(*map(_single, hits), *pairs), max_size=most))
    faults = _once_a_node(graph, [fault for part in parts for fault in part])
    if not operator:
        return Plan(faults)
    may_scale = [role.name for role in graph.roles if role.kind == "task" and (role.gang or not ignores(role))]
    scales = draw(st.lists(_scales(may_scale), max_size=1)) if may_scale else []
    return Plan(faults, tuple(scales), (), tuple(draw(st.lists(_drains(nodes), max_size=1))))


@st.composite
def _scales(draw: st.DrawFn, roles: list[str]) -> Scale:
    return Scale(draw(st.sampled_from(roles)), draw(st.integers(1, 4)), draw(_MOMENTS))


@st.composite
def _drains(draw: st.DrawFn, nodes: list[str]) -> NodeOrder:
    return NodeOrder(draw(st.sampled_from(nodes)), draw(_MOMENTS))


def _once_a_node(graph: RoleGraph, faults: list[Fault]) -> tuple[Fault, ...]:
    """Return the faults, at most one for each node and each other one once: a node that is there cannot come back."""
    nodes = [node.name for node in graph.cluster.nodes]
    return tuple({fault.target if fault.target in nodes else fault.spec: fault for fault in faults}.values())


TIMES = ("1s", "3s", "12s", "12.1s", "13s", "16s", "30s", "50s", "80s", "2m")
_TIMES = st.sampled_from(TIMES)
_MOMENTS = st.sampled_from([1 * SECOND, 12 * SECOND, 40 * SECOND])
_FIRST = st.sampled_from([3, 12, 30])
_LATER = st.sampled_from([0.0, 0.1, 1.0, 4.0])
OF_NODES = ("", "/20s", ":lost/20s", ":lost", ":leave/5s", ":leave", ":preempt=15s/5s", ":preempt=15s")
OF_REPLICAS = ("", ":exit=3", ":oom")
Hit = tuple[str, str]  # target and kind of a fault


def _hits(graph: RoleGraph) -> list[st.SearchStrategy[Hit]]:
    """Return strategies for target and kind of a fault: of a role or replica, of a node, and of the controller."""
    replicas = [f"{role.name}/{i}" for role in graph.roles for i in range(role.max_replicas)]
    nodes = [node.name for node in graph.cluster.nodes]
    of_replicas = _of([*[role.name for role in graph.roles], *replicas], OF_REPLICAS)
    return [of_replicas, _of(nodes, OF_NODES), _of(["controller"], [""])]


@st.composite
def _of(draw: st.DrawFn, targets: Sequence[str], kinds: Sequence[str]) -> Hit:
    return draw(st.sampled_from(targets)), draw(st.sampled_from(kinds))


def _fault(hit: Hit, at: str) -> Fault:
    target, kind = hit
    return parse_fault(f"{target}@{at}{kind}")


# A single fault in a list takes five choices: one more or not, which strategy, target, kind, time. Hypothesis drops up
# to five choices at once when it shrinks: with a sixth choice, faults that do not matter would stay in the plan.


@st.composite
def _single(draw: st.DrawFn, hit: st.SearchStrategy[Hit]) -> tuple[Fault, ...]:
    return (_fault(draw(hit), draw(_TIMES)),)


@st.composite
def _pairs(draw: st.DrawFn, hits: st.SearchStrategy[Hit]) -> tuple[Fault, ...]:
    """Draw two faults, the second 0 to 4 s after the first."""
    at = draw(_FIRST)
    return _fault(draw(hits), f"{at}s"), _fault(draw(hits), f"{at + draw(_LATER):g}s")


@st.composite
def _failing_while_preempted(draw: st.DrawFn, nodes: list[str], roles: list[str]) -> tuple[Fault, ...]:
    """Draw the preemption of a node with 15 s notice, and the failure of a role 0 to 4 s later."""
    at = draw(_FIRST)
    first = _fault((draw(st.sampled_from(nodes)), ":preempt=15s"), f"{at}s")
    return first, _fault((draw(st.sampled_from(roles)), ""), f"{at + draw(_LATER):g}s")
