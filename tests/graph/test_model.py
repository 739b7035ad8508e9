"""The role graph: its methods, and its JSON."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from flowdist.graph import (
    NODE_PROCS,
    Domain,
    Gate,
    NodeSpec,
    Resources,
    RoleGraph,
    RoleSpec,
    WorkloadSpec,
    decode_graph,
    encode_graph,
)
from flowdist.graph.capacity import MOMENTS_MAX, moments

PS = RoleSpec("ps", ("ps",))
TRAINER = RoleSpec("trainer", ("train",), gates=(Gate("ps", "ready"),))
EVALUATOR = RoleSpec("evaluator", ("evaluate",), gates=(Gate("trainer"), Gate("ps")))
GRAPH = RoleGraph("x", (PS, TRAINER, EVALUATOR), (Domain("core", ("ps", "trainer")),))


HELD = {"loose": {"gang": False}, "on-devices": {"resources": Resources(gpu=2)}, "mesh": {"parallel": (("dp", 2),)}}


def test_a_checkpoint_in_the_memory_of_peers_survives_the_loss_of_one_node() -> None:
    load = WorkloadSpec(restore_ns=9, peer_restore_ns=2)
    assert [load.restore_ns_after(lost) for lost in (0, 1, 2)] == [2, 2, 9]
    assert WorkloadSpec(restore_ns=9).restore_ns_after(0) == 9


def test_a_role_is_found_by_its_name() -> None:
    assert GRAPH.role("trainer") is TRAINER
    with pytest.raises(KeyError, match="trianer"):
        GRAPH.role("trianer")


def test_who_waits_for_a_role_is_told_with_the_gate() -> None:
    assert GRAPH.dependents("ps") == ((TRAINER, Gate("ps", "ready")), (EVALUATOR, Gate("ps")))
    assert GRAPH.dependents("evaluator") == ()


def test_the_gate_on_a_role_is_found() -> None:
    assert TRAINER.gate_on("ps") == Gate("ps", "ready")
    assert TRAINER.gate_on("trainer") is None


def test_a_role_may_be_in_a_domain() -> None:
    assert GRAPH.domain_of("trainer") == Domain("core", ("ps", "trainer"))
    assert GRAPH.domain_of("evaluator") is None


def test_equal_graphs_are_equal_bytes_and_come_back() -> None:
    again = RoleGraph("x", (PS, TRAINER, EVALUATOR), (Domain("core", ("ps", "trainer")),))
    assert encode_graph(again) == encode_graph(GRAPH)
    assert decode_graph(encode_graph(GRAPH)) == GRAPH


@pytest.mark.parametrize("text", ["", "{", '{"name": 3}', '{"name": "x", "roles": [{"name": "a"}]}'])
def test_what_is_no_role_graph_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_graph(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "123456", "\u0663"])
def test_a_host_that_says_no_number_of_workers_says_nothing(text: str) -> None:
    node = NodeSpec("a", labels=(("zone", "b"), (NODE_PROCS, text)))
    assert (node.procs, GRAPH.on(node)) == (0, GRAPH)


def test_the_host_says_how_many_workers_it_runs_unless_they_have_devices_or_a_mesh() -> None:
    node = NodeSpec("a", labels=((NODE_PROCS, "3"),))
    gang = RoleSpec("trainer", ("true",), procs=2)
    held = [replace(gang, name=name, **fields) for name, fields in HELD.items()]
    here = RoleGraph("test", (gang, *held)).on(node)
    assert [role.procs for role in here.roles] == [3, 2, 2, 2]
    assert [gang.procs_on(each) for each in (node, NodeSpec("b"))] == [3, 2]


def test_at_a_moment_any_of_the_roles_that_others_wait_for_may_have_succeeded() -> None:
    before = {"a": (), "b": ("x",), "c": ("y",), "d": ("x", "b")}
    found = [set(gone) for gone in moments(before)]
    assert found == [set(), {"x"}, {"y"}, {"x", "y"}, {"x", "b"}, {"x", "y", "b"}]


def test_of_many_moments_each_by_itself_and_all_together_are_named() -> None:
    before = {f"after{i}": (f"x{i}",) for i in range(20)}
    found = moments(before)
    assert len(found) < 2 * MOMENTS_MAX and {frozenset(names) for names in before.values()} <= set(found)
    assert found[-1] == {f"x{i}" for i in range(20)}


def test_a_checkpoint_blocks_all_of_its_time_or_what_the_workload_says() -> None:
    whole = WorkloadSpec(checkpoint_every_ns=60, checkpoint_ns=10)
    part = replace(whole, checkpoint_blocks_ns=2)
    assert [(load.blocking_ns, load.lag_ns, load.cycle_ns) for load in (whole, part)] == [(10, 0, 70), (2, 8, 62)]
