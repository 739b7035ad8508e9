"""The role graph: what can be asked of it, and its JSON."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.graph import Domain, Gate, RoleGraph, RoleSpec, decode_graph, encode_graph

PS = RoleSpec("ps", ("ps",))
TRAINER = RoleSpec("trainer", ("train",), gates=(Gate("ps", "ready"),))
EVALUATOR = RoleSpec("evaluator", ("evaluate",), gates=(Gate("trainer"), Gate("ps")))
GRAPH = RoleGraph("x", (PS, TRAINER, EVALUATOR), (Domain("core", ("ps", "trainer")),))


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
