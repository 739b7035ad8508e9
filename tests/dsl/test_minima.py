"""Room for the minima: `check` takes seats as the controller does, in reasonable time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.dsl.compile import compile_topology
from flowdist.dsl.problems.problem import Problems
from flowdist.dsl.topology import Role, Topology
from flowdist.dsl.words import Node
from flowdist.graph import RoleGraph
from tests.choosing import examples
from tests.control.harness import Talk


def codes(topology: Topology, *, by_engine: bool = False) -> list[str]:
    problems = Problems()
    compile_topology(topology, problems, by_engine=by_engine)
    return [problem.code for problem in problems.sorted()]


@settings(max_examples=examples(100, 300), deadline=None)
@given(
    nodes=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4),
    roles=st.lists(st.tuples(st.sampled_from([0, 0.5, 1, 2, 3]), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_check_finds_no_room_exactly_where_the_controller_finds_none(
    nodes: list[int], roles: list[tuple[float, int]]
) -> None:
    topology = Topology("x", nodes=[Node(cpu=cpu) for cpu in nodes])
    for i, (cpu, replicas) in enumerate(roles):
        topology.role(f"r{i}", "true", cpu=min(cpu, max(nodes)), replicas=replicas)
    problems = Problems()
    talk = Talk(compile_topology(topology, problems))
    talk.join(*(f"node{i}" for i in range(len(nodes))))
    fits = all(replica.node is not None for replica in talk.job.replicas.values())
    assert [problem.code for problem in problems.sorted()] == ([] if fits else ["FD113"])


@settings(max_examples=examples(100, 300), deadline=None)
@given(
    nodes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    roles=st.lists(st.tuples(st.sampled_from([0.3, 0.4, 0.6, 1, 2]), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_check_seats_shares_of_gpus_as_the_controller_does(nodes: list[int], roles: list[tuple[float, int]]) -> None:
    topology = Topology("x", nodes=[Node(gpu=gpu) for gpu in nodes])
    for i, (gpu, replicas) in enumerate(roles):
        topology.role(f"r{i}", "true", cpu=0, gpu=min(gpu, max(nodes)), replicas=replicas)
    problems = Problems()
    talk = Talk(compile_topology(topology, problems))
    talk.join(*(f"node{i}" for i in range(len(nodes))))
    fits = all(replica.node is not None for replica in talk.job.replicas.values())
    assert [problem.code for problem in problems.sorted()] == ([] if fits else ["FD113"])


@settings(max_examples=examples(100, 300), deadline=None)
@given(
    nodes=st.lists(st.tuples(st.sampled_from([2, 4]), st.sampled_from("ab")), min_size=1, max_size=4),
    roles=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(["spread", "pack"]),
            st.sampled_from(["", "near", "apart", "alone"]),
            st.sampled_from(["", "", "a", "b"]),
        ),
        min_size=1,
        max_size=4,
    ),
    data=st.data(),
)
def test_check_places_as_the_controller_places(
    nodes: list[tuple[int, str]], roles: list[tuple[int, str, str, str]], data: st.DataObject
) -> None:
    """With where=, near= and apart=, the check finds no room exactly where the controller would wait."""
    topology = Topology("x", nodes=[Node(cpu=cpu, labels={"zone": zone}) for cpu, zone in nodes])
    for i, (replicas, strategy, whom, zone) in enumerate(roles):
        given: dict[str, Any] = {"placement": strategy, "where": {"zone": zone} if zone else None}
        if whom == "alone":
            given["apart"] = True
        elif whom and topology.roles:
            given[whom] = data.draw(st.sampled_from(topology.roles))
        topology.role(f"r{i}", "true", replicas=replicas, **given)
    problems = Problems()
    graph = compile_topology(topology, problems)
    talk = Talk(graph)
    talk.join(*(node.name for node in graph.cluster.nodes))
    fits = all(replica.node is not None for replica in talk.job.replicas.values())
    found = [problem.code for problem in problems.sorted()]
    assert (not found) == fits and set(found) <= {"FD113", "FD146"}


def test_small_replicas_are_spread_so_that_a_large_one_may_find_no_room() -> None:
    """Both small replicas would fit one node, but the controller takes the node with the most room for each."""
    topology = Topology("x", nodes=[Node(cpu=4), Node(cpu=4)])
    topology.role("small", "true", replicas=2)
    topology.role("large", "true", cpu=4)
    assert codes(topology) == ["FD113"]


def test_a_succeeded_role_leaves_its_seats_to_all_that_wait_for_it() -> None:
    topology = Topology("x", nodes=[Node(cpu=4)])
    prepare = topology.role("prepare", "true", cpu=4)
    train = topology.role("train", "true", cpu=3, depends_on=[prepare.succeeded()])
    topology.role("evaluate", "true", cpu=1, depends_on=[train.started()])
    assert codes(topology) == []
    topology.role("watch", "true", cpu=1)
    assert codes(topology) == ["FD113"]


@pytest.mark.parametrize(("cpu", "fits"), [(2, True), (3, False)])
def test_roles_that_wait_for_the_same_one_to_succeed_are_alive_together(cpu: int, fits: bool) -> None:
    topology = Topology("x", nodes=[Node(cpu=4)])
    prepare = topology.role("prepare", "true", cpu=4)
    for name in ("train", "evaluate"):
        topology.role(name, "true", cpu=cpu, depends_on=[prepare.succeeded()])
    assert codes(topology) == ([] if fits else ["FD113"])


def test_roles_that_wait_for_different_ones_to_succeed_end_up_alive_together() -> None:
    """Each role has room beside the role that the other waits for, but either of these may succeed first."""
    topology = Topology("x", nodes=[Node(cpu=4)])
    x, y = topology.role("x", "true"), topology.role("y", "true")
    first = topology.role("first", "true", cpu=2, depends_on=[x.succeeded()])
    second = topology.role("second", "true", cpu=3, depends_on=[y.succeeded()])
    assert codes(topology) == ["FD113"]
    second.fields["depends_on"] = [y.succeeded(), first.succeeded()]
    assert codes(topology) == []


@settings(max_examples=examples(12, 300), deadline=None)
@given(
    cpu=st.integers(3, 6),
    roles=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.booleans(),
            st.lists(st.sampled_from(["", "", "succeeded", "succeeded", "started"]), min_size=4, max_size=4),
        ),
        min_size=4,
        max_size=5,
    ),
)
def test_check_finds_no_room_where_the_controller_may_wait_for_some_in_any_order(
    cpu: int, roles: list[tuple[int, bool, list[str]]]
) -> None:
    """On one node, where all seats are equal, check and controller agree on every topology, also while roles grow."""
    topology = Topology("x", nodes=[Node(cpu=cpu)])
    for i, (replicas, grows, conditions) in enumerate(roles):
        gates = [getattr(role, how)() for role, how in zip(topology.roles, conditions, strict=False) if how]
        least = min(replicas, cpu)
        topology.role(f"r{i}", "true", replicas=f"{least}:{least + 2 * grows}", depends_on=gates)
    problems = Problems()
    graph = compile_topology(topology, problems)
    assert bool(problems.sorted()) == _waits(graph, ())


def _waits(graph: RoleGraph, order: tuple[str, ...]) -> bool:
    """Return whether some role waits for room after these roles, and perhaps more, have succeeded."""
    talk = Talk(graph)
    talk.join("node0")
    for name in order:
        talk.finish(*(replica for replica in talk.up() if replica.startswith(f"{name}/")))
    if not talk.job.admitted or any(due.what == "pending" for due in talk.job.due):
        return True
    up = {replica.partition("/")[0]: None for replica in talk.up()}
    return any(_waits(graph, (*order, name)) for name in up)


def test_a_joint_world_takes_the_seats_of_those_that_one_of_its_roles_waits_for() -> None:
    """`ps` has no gate, but starts with `train`, which has one; `after` waits for both to succeed."""
    topology = Topology("x", nodes=[Node(cpu=4)])
    prepare = topology.role("prepare", "true", cpu=4)
    ps = topology.role("ps", "true", cpu=2)
    train = topology.role("train", "true", cpu=2, depends_on=[prepare.succeeded()])
    topology.role("after", "true", cpu=4, depends_on=[ps.succeeded()])
    topology.world("core", ps, train)
    assert codes(topology) == []
    talk = Talk(compile_topology(topology, Problems()))
    talk.join("node0")
    for names in (["prepare/0"], ["ps/0", "train/0"], ["after/0"]):
        assert talk.up() == names
        talk.finish(*names)


def test_a_ladder_of_gates_is_checked_in_no_time() -> None:
    """Each role waits for two roles of the rung before, so that 2 ** 60 paths lead from the first to the last."""
    topology = Topology("x", nodes=[Node(cpu=130)])
    rungs: list[Role] = []
    for i in range(60):
        gates = [role.started() for role in rungs[-2:]]
        rungs += [topology.role(f"{side}{i}", "true", depends_on=gates) for side in ("left", "right")]
    assert codes(topology) == []


def test_a_circle_of_gates_is_refused_once_for_the_gate_that_closes_it() -> None:
    topology = Topology("x", nodes=1)
    first = topology.role("first", "true")
    second = topology.role("second", "true", depends_on=[first.succeeded()])
    first.fields["depends_on"] = [second.succeeded()]
    assert codes(topology) == ["FD117"]


@pytest.mark.parametrize(
    ("size", "code"), [({"gpu": 1}, "FD114"), ({"cpu": 16}, "FD112"), ({"replicas": 9, "cpu": 1}, "FD113")]
)
def test_nodes_that_an_engine_starts_have_room_for_all(size: dict[str, Any], code: str) -> None:
    topology = Topology("x", nodes=[Node(cpu=4)])
    topology.role("train", "true", **size)
    assert codes(topology) == [code] and codes(topology, by_engine=True) == []
