"""Who holds whose copies, what these survive, and what a gang would go on from: `plan` and `explain` (R24)."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowdist.graph import Cluster, NodeSpec, RestartPolicy, RoleGraph, RoleSpec, SnapshotSpec
from flowdist.report.static.explain import Explainer, explanation_text
from flowdist.report.static.failing import parse_failings
from flowdist.report.static.plan import plan_of, plan_text
from flowdist.report.static.survival import survival

NODES = "abcdef"


def graph(copies: int = 2, nodes: int = 6, apart: str = "node") -> RoleGraph:
    again, snapshots = RestartPolicy(max_restarts=3), SnapshotSpec(copies, 20, apart)
    role = RoleSpec("trainer", ("true",), max_replicas=nodes, restart=again, snapshots=snapshots)
    racked = (NodeSpec(f"node{number}", cpu=1.0, labels=(("rack", f"r{number // 2}"),)) for number in range(nodes))
    return RoleGraph("job", (role,), cluster=Cluster(tuple(racked)))


@given(
    st.integers(3, 6), st.sets(st.frozensets(st.sampled_from(NODES), min_size=1, max_size=3), min_size=1, max_size=8)
)
def test_the_count_of_fatal_losses_is_that_of_trying_each_of_them(nodes: int, drawn: set[frozenset[str]]) -> None:
    names = NODES[:nodes]
    holders = {each for each in drawn if each <= set(names)}
    expected = []
    for lost in (1, 2, 3):
        sets = [set(each) for each in combinations(names, lost)]
        survived = [not any(shard <= each for shard in holders) for each in sets]
        expected.append(Fraction(sum(survived), len(sets)))
    assert survival(holders, nodes) == expected


def test_a_plan_shows_the_holders_and_the_exact_probabilities() -> None:
    plan = plan_of(graph(2, 4, "rack"))
    told = plan["memory"]["trainer"]
    assert told["holders"]["trainer/0"] == ["node0", "node2"] and told["holders"]["trainer/2"] == ["node2", "node0"]
    shares = {each["lost"]: each["exact"] for each in told["survives"]}
    assert shares == {"1 node": "1", "2 nodes": "2/3", "3 nodes": "0", "one rack": "1"}
    text = plan_text(graph(2, 4, "rack"), plan)
    assert "    survives the loss of 2 nodes: 0.6667 (2/3)\n" in text and "one rack: always" in text
    without = RoleGraph("job", (RoleSpec("a", ("true",)),))
    assert "Snapshots" not in plan_text(without, plan_of(without))


def test_of_sixteen_nodes_with_two_copies_as_many_losses_are_survived_as_gemini_publishes() -> None:
    """Z. Wang et al., GEMINI, SOSP 2023, name 93.3 % for two nodes that fail at once, and 80.0 % for three."""
    told = plan_of(graph(2, 16))["memory"]["trainer"]
    shares = {each["lost"]: each["probability"] for each in told["survives"]}
    assert (round(shares["2 nodes"], 3), round(shares["3 nodes"], 3)) == (0.933, 0.8)


@pytest.mark.parametrize(
    ("copies", "fault", "tier", "words"),
    [
        (2, "trainer/0", "memory", "each shard has 2 copies left"),
        (1, "trainer/0", "memory", "each shard has 1 copy left"),
        (2, "node2", "memory", "each shard has 1 to 2 copies left"),
        (1, "node2", "checkpoint", "a shard of its newest snapshot is lost"),
        (2, "node2,node3", "checkpoint", "a shard of its newest snapshot is lost"),
        (2, "node1,node4", "memory", "each shard has 1 to 2 copies left"),
        (3, "rack=r1", "memory", "each shard has 2 copies left"),
    ],
)
def test_an_explanation_says_what_the_gang_goes_on_from(copies: int, fault: str, tier: str, words: str) -> None:
    (failing,) = parse_failings(fault, graph(copies))
    told = Explainer(graph(copies)).explain(failing)
    assert [entry["tier"] for entry in told["memory"]] == [tier]
    assert words in explanation_text(told)
