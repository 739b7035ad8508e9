"""The warning before the start about a plan of faults that leaves a role without room."""

from __future__ import annotations

import pytest

from flowdist.faults.files import parse_plan
from flowdist.graph import MINUTE, Placement
from flowdist.report.static.plan_faults import stranding
from tests.control.harness import graph, role

ONE = graph(role("trainer", pending_timeout_ns=5 * MINUTE), nodes=1)
TWO = graph(role("ps"), role("trainer", min_replicas=2, max_replicas=3), nodes=2, cpu=3)
TIGHT = graph(role("trainer", min_replicas=2, max_replicas=3), nodes=3, cpu=1)


def test_a_fault_that_takes_the_only_node_for_good_is_reported_with_a_remedy() -> None:
    assert stranding(parse_plan(["node0@1s"]), ONE) == (
        "after node0@1s no room is left for the minimum of trainer, and a node comes back only with a /DURATION "
        "(node0@1s/30s): it will wait up to 5m (pending_timeout) for one, then the job fails"
    )


@pytest.mark.parametrize("fault", ["node0@1s:lost", "node0@start=trainer:preempt=10s", "node0@9s:leave"])
def test_every_kind_that_takes_a_node_for_good_gives_a_warning(fault: str) -> None:
    assert f"({fault}/30s)" in stranding(parse_plan([fault]), ONE)


@pytest.mark.parametrize(
    "fault", ["node0@1s/30s", "trainer/0@1s", "controller@1s", "node0@1s:delay=1s", "node0@1s:drain"]
)
def test_what_ends_or_takes_no_node_is_not(fault: str) -> None:
    assert stranding(parse_plan([fault]), ONE) == ""


def test_nodes_that_are_left_or_will_join_have_room() -> None:
    assert stranding(parse_plan(["node0@1s"]), TWO) == stranding(parse_plan(["node2@1s"]), TIGHT) == ""
    assert stranding(parse_plan(["node0@1s"], adds=["node5@9s"]), ONE) == ""
    assert stranding(parse_plan(["node0@1s", "node1@2s"]), TIGHT).startswith("after node1@2s no room is left for")


def test_the_neighbours_of_a_role_do_not_matter_because_they_move_too() -> None:
    beside = graph(role("ps"), role("side", placement=Placement(near=("ps",))), nodes=3)
    assert stranding(parse_plan(["node2@1s"]), beside) == ""
