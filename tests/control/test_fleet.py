"""Members of a job on an engine: which are submitted, replaced, drained and cancelled, and when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowdist.control.controller import Controller
from flowdist.control.fleet.fleet import (
    AVOID_NS,
    CANCEL_NS,
    DRAIN_NS,
    FAILURES_MAX,
    IDLE_NS,
    REPLACE_NS,
    RETRY_NS,
    WAITS_NS,
    Fleet,
)  # fmt: skip
from flowdist.control.fleet.values import (
    Cancel,
    Cause,
    Drain,
    FleetState,
    GiveUp,
    JobSeen,
    NodeSeen,
    Order,
    Pool,
    Seen,
    Size,
    Submit,
    Tell,
    job_seen,
)
from flowdist.control.protocol.events import CancelRequested, NodeJoined, ScaleRequested
from flowdist.graph import NODE_MEMBER, SECOND, NodeSpec
from tests.control.harness import graph, role

ALL = Pool("", ("trainer",), 1, 3, Size(4))


class Cluster:
    """A fleet with an engine and a job that do what the test says. Every submitted member gets a reference at once."""

    def __init__(self, *pools: Pool, sizes: dict[str, int] | None = None, state: FleetState | None = None) -> None:
        self.pools = pools or (ALL,)
        self.sizes = sizes or {"trainer": 3}
        self.fleet = Fleet(self.pools, self.sizes, state)
        self.targets = dict(self.sizes)
        self.seen: dict[str, Seen] = {}
        self.nodes: dict[str, NodeSeen] = {}
        self.scalings: dict[str, int] = {}
        self.now = 0

    def look(self, after_ns: int = SECOND, *, is_ending: bool = False, accept: bool = True) -> list[Order]:
        self.now += after_ns
        job = JobSeen(self.targets, tuple(self.nodes.values()), is_ending, self.scalings)
        orders = self.fleet.look(job, self.seen, self.now)
        for order in orders:
            if isinstance(order, Submit) and accept:
                self.fleet.submitted(order.member, f"job-{order.member}")
                self.seen[order.member] = Seen("pending")
        return orders

    def join(self, *members: str, replicas: int = 1) -> None:
        for member in members:
            host = f"host-{member}"
            self.seen[member] = Seen("running", host)
            self.nodes[member] = NodeSeen(f"node-{member}", member, True, replicas=replicas)

    def change(self, member: str, **fields: object) -> None:
        self.nodes[member] = NodeSeen(**{**_fields(self.nodes[member]), **fields})  # type: ignore[arg-type]

    def end(self, member: str, cause: Cause, host: str = "") -> None:
        self.seen[member] = Seen("ended", host, cause, cause.upper())

    def running(self) -> Cluster:
        self.look()
        self.join("m1", "m2", "m3")
        assert self.look() == []
        return self


def _fields(node: NodeSeen) -> dict[str, object]:
    return {name: getattr(node, name) for name in node.__struct_fields__}


def submits(orders: Sequence[Order]) -> list[tuple[str, tuple[str, ...]]]:
    return [(order.member, order.avoid) for order in orders if isinstance(order, Submit)]


def cancels(orders: Sequence[Order]) -> list[str]:
    return [order.member for order in orders if isinstance(order, Cancel)]


def test_as_many_members_are_submitted_as_the_roles_want_replicas_for() -> None:
    cluster = Cluster()
    assert submits(cluster.look()) == [("m1", ()), ("m2", ()), ("m3", ())]
    assert cluster.look() == []


def test_a_member_whose_node_is_lost_is_cancelled_and_replaced_on_another_host() -> None:
    cluster = Cluster().running()
    cluster.change("m2", is_usable=False, lost_because="not heard for 5s")
    assert cluster.look() == []  # an agent that has died may be back in a moment
    assert cluster.look(REPLACE_NS) == [
        Cancel("m2", "job-m2", "node-m2 is lost (not heard for 5s)"),
        Submit("m4", "", ("host-m2",)),
    ]


def test_a_node_that_is_back_at_once_is_not_replaced() -> None:
    cluster = Cluster().running()
    cluster.change("m2", is_usable=False)
    cluster.look()
    cluster.change("m2", is_usable=True)
    assert cluster.look(REPLACE_NS) == []
    cluster.change("m2", is_usable=False)
    assert cluster.look() == []


def test_a_cancelled_member_that_the_engine_still_has_is_cancelled_again() -> None:
    cluster = Cluster().running()
    cluster.change("m2", is_usable=False)
    cluster.look()
    assert cancels(cluster.look(REPLACE_NS)) == ["m2"]
    assert cluster.look() == []
    assert cluster.look(CANCEL_NS) == [Cancel("m2", "job-m2", "node-m2 is lost", again=True)]
    cluster.end("m2", "cancelled")
    assert cluster.look(CANCEL_NS) == []


def test_a_member_that_the_engine_requeues_is_waited_for() -> None:
    cluster = Cluster().running()
    cluster.change("m2", is_usable=False)
    cluster.seen["m2"] = Seen("pending", reason="PENDING (BeginTime)")
    assert cluster.look(REPLACE_NS) == []
    cluster.seen["m2"] = Seen("running", "other")
    assert cluster.look(REPLACE_NS) == []  # it has not joined yet: its lost node is that from before
    cluster.nodes["again"] = NodeSeen("other", "m2", True, replicas=1)
    cluster.nodes["older"] = NodeSeen("older", "m2", False)
    assert cluster.look(REPLACE_NS) == []
    assert cluster.fleet.state.members[1].host == "other"


def test_a_member_that_the_engine_is_ending_may_be_requeued_and_is_not_lost_at_once() -> None:
    cluster = Cluster().running()
    cluster.change("m2", is_usable=False)
    cluster.seen["m2"] = Seen("running", "host-m2", is_ending=True)
    assert cluster.look() == cluster.look(REPLACE_NS) == []
    assert submits(cluster.look(CANCEL_NS)) == [("m4", ("host-m2",))]


@pytest.mark.parametrize("cause", ["failed", "time limit", "preempted", "succeeded", ""])
def test_a_member_that_is_over_is_replaced(cause: Cause) -> None:
    cluster = Cluster().running()
    cluster.end("m1", cause)
    tell, submit = cluster.look()
    assert isinstance(tell, Tell) and tell.text.startswith("m1 on host-m1 is over: ")
    assert submit == Submit("m4", "")


def test_a_host_that_has_failed_by_the_engine_is_avoided_for_a_while() -> None:
    cluster = Cluster().running()
    cluster.end("m1", "node failed")
    assert submits(cluster.look()) == [("m4", ("host-m1",))]
    cluster.join("m4")
    cluster.end("m2", "failed")
    assert submits(cluster.look(AVOID_NS)) == [("m5", ())]


def test_a_member_that_the_engine_could_not_launch_has_no_host_to_avoid() -> None:
    cluster = Cluster()
    cluster.look()
    cluster.end("m1", "node failed")
    cluster.look()
    assert submits(cluster.look(RETRY_NS)) == [("m4", ())]


def test_a_member_that_somebody_has_cancelled_is_not_replaced_until_the_operator_scales() -> None:
    cluster = Cluster().running()
    cluster.end("m3", "cancelled")
    assert cluster.look() == [Tell("m3 on host-m3 was cancelled outside flowdist, and is not replaced", "warning")]
    assert cluster.look() == []
    cluster.targets["trainer"] = 2
    cluster.look()
    cluster.targets["trainer"] = 3
    assert submits(cluster.look()) == [("m4", ())]


def test_a_member_that_somebody_has_cancelled_is_wanted_again_when_the_operator_scales_to_the_same_size() -> None:
    cluster = Cluster().running()
    cluster.end("m3", "cancelled")
    cluster.look()
    cluster.scalings["trainer"] = 1
    assert submits(cluster.look()) == [("m4", ())]
    cluster.join("m4")
    cluster.end("m4", "cancelled")
    assert submits(cluster.look()) == []  # an order counts once


def test_scaling_one_role_brings_back_no_member_of_another_pool() -> None:
    cluster = Cluster(Pool("ps", ("ps",), 1, 2, Size()), Pool("trainer", ("trainer",), 1, 1, Size()),
                      sizes={"ps": 2, "trainer": 1})  # fmt: skip
    cluster.look()
    cluster.join("m1", "m2", "m3")
    cluster.look()
    cluster.end("m1", "cancelled")
    cluster.scalings["trainer"] = 1
    assert submits(cluster.look()) == []
    cluster.scalings["ps"] = 1
    assert submits(cluster.look()) == [("m4", ())]


def test_people_are_told_once_why_members_wait_for_a_machine() -> None:
    cluster = Cluster()
    cluster.look()
    cluster.join("m1")
    for member in ("m2", "m3"):
        cluster.seen[member] = Seen("pending", reason="PENDING (PartitionConfig)")
    assert cluster.look() == cluster.look(WAITS_NS - 1) == []
    assert cluster.look(1) == [Tell("m2, m3 wait for a machine: PENDING (PartitionConfig)")]
    assert [member.waits for member in cluster.fleet.state.members] == ["", *["PENDING (PartitionConfig)"] * 2]
    cluster.seen["m2"] = Seen("pending", reason="PENDING (Resources)")
    assert cluster.look() == []
    assert cluster.look(WAITS_NS) == [Tell("m2 waits for a machine: PENDING (Resources)")]
    cluster.seen["m2"] = Seen("pending", reason="PENDING (PartitionConfig)")
    assert cluster.look() == cluster.look(WAITS_NS) == []  # that is known
    cluster.join("m2")
    cluster.look()
    assert cluster.fleet.state.members[1].waits == ""


def test_a_line_about_hundreds_of_members_that_wait_names_a_few() -> None:
    cluster = Cluster(Pool("", ("trainer",), 1, 200, Size()), sizes={"trainer": 200})
    cluster.look()
    for number in range(1, 201):
        cluster.seen[f"m{number}"] = Seen("pending", reason="PENDING (Priority)")
    cluster.look()
    text = "m1, m2, m3, m4, m5, m6 and 194 more wait for a machine: PENDING (Priority)"
    assert cluster.look(WAITS_NS) == [Tell(text)]


def test_the_job_is_given_up_when_somebody_has_cancelled_all_members() -> None:
    cluster = Cluster().running()
    for member in ("m1", "m2", "m3"):
        cluster.end(member, "cancelled")
    assert cluster.look()[-1] == GiveUp("all members were cancelled outside flowdist", "cancelled")
    assert cluster.look() == []


def test_a_node_that_is_about_to_be_taken_away_is_replaced_first_and_cancelled_when_empty() -> None:
    cluster = Cluster().running()
    cluster.change("m1", is_leaving=True, cordoned="host-m1 is taken away in 1m")
    tell, submit = cluster.look()
    assert (tell, submit) == (Tell("m1 on host-m1 is to be replaced: host-m1 is taken away in 1m"), Submit("m4", ""))
    assert cluster.look() == []  # its work is still moving
    cluster.change("m1", replicas=0)
    assert cluster.look() == [Cancel("m1", "job-m1", "host-m1 is taken away in 1m")]


def test_a_member_that_ends_while_it_leaves_is_not_taken_for_unwanted() -> None:
    cluster = Cluster().running()
    cluster.change("m1", is_leaving=True, cordoned="it is taken away in 1m")
    cluster.look()
    cluster.nodes.pop("m1")  # no node is known of it any more
    assert cluster.look() == []
    cluster.end("m1", "cancelled")
    cluster.look()
    assert cluster.fleet.state.pools[""].unwanted == 0


def test_a_host_that_the_engine_drains_is_emptied_once_the_replacement_is_there() -> None:
    cluster = Cluster().running()
    cluster.seen["m1"] = Seen("running", "host-m1", is_host_drained=True)
    tell, submit = cluster.look()
    assert isinstance(tell, Tell) and submit == Submit("m4", "")
    assert cluster.look() == []
    cluster.join("m4", replicas=0)
    assert cluster.look() == [Drain("node-m1", "host-m1 is drained by its administrator")]
    assert cluster.look() == []
    cluster.change("m1", is_leaving=True, cordoned="drained", replicas=0)
    assert cancels(cluster.look()) == ["m1"]


def test_a_drained_host_is_emptied_after_a_while_even_if_the_engine_has_no_other() -> None:
    cluster = Cluster().running()
    cluster.seen["m1"] = Seen("running", "host-m1", is_host_drained=True)
    cluster.look()
    assert cluster.look(DRAIN_NS) == [Drain("node-m1", "host-m1 is drained by its administrator")]
    assert cluster.look(DRAIN_NS) == [Drain("node-m1", "host-m1 is drained by its administrator")]  # it was refused


def test_a_cordoned_node_is_replaced_elsewhere_and_released_when_its_work_is_done() -> None:
    cluster = Cluster().running()
    cluster.change("m1", cordoned="3 failures of one kind")
    assert submits(cluster.look()) == [("m4", ("host-m1",))]
    cluster.join("m4", replicas=0)
    assert cluster.look() == []
    cluster.change("m1", replicas=0)
    assert cancels(cluster.look()) == ["m1"]


def test_a_node_that_the_operator_uses_again_stays() -> None:
    cluster = Cluster().running()
    cluster.change("m1", cordoned="by the operator")
    cluster.look()
    cluster.change("m1", cordoned="")
    assert cancels(cluster.look()) == ["m4"]  # its replacement has not joined yet


def test_idle_members_are_released_after_the_operator_has_scaled_down() -> None:
    cluster = Cluster().running()
    cluster.targets["trainer"] = 1
    assert cluster.look() == []
    cluster.change("m2", replicas=0)
    cluster.look()
    assert cancels(cluster.look(IDLE_NS - SECOND)) == []
    assert cancels(cluster.look()) == ["m2"]
    assert cluster.look(IDLE_NS) == []  # m3 has work


def test_members_that_wait_for_a_machine_are_released_first() -> None:
    cluster = Cluster()
    cluster.look()
    cluster.join("m1")
    cluster.targets["trainer"] = 2
    assert cancels(cluster.look()) == ["m3"]


def test_the_minimum_of_a_pool_is_kept() -> None:
    cluster = Cluster(Pool("", ("trainer",), 2, 4, Size()), sizes={"trainer": 4})
    cluster.targets["trainer"] = 1
    assert len(submits(cluster.look())) == 2


def test_a_role_that_is_over_needs_no_members() -> None:
    cluster = Cluster(Pool("ps", ("ps",), 1, 1, Size()), Pool("trainer", ("trainer",), 1, 1, Size()),
                      sizes={"ps": 1, "trainer": 1})  # fmt: skip
    assert [order.pool for order in cluster.look() if isinstance(order, Submit)] == ["ps", "trainer"]
    cluster.join("m1", "m2")
    cluster.look()
    cluster.targets["ps"] = 0
    cluster.change("m1", replicas=0)
    cluster.look()
    assert cancels(cluster.look(IDLE_NS)) == ["m1"]


def test_members_that_end_before_they_join_are_replaced_ever_more_slowly_and_then_the_job_is_given_up() -> None:
    cluster = Cluster(Pool("", ("trainer",), 1, 1, Size()), sizes={"trainer": 1})
    cluster.look()
    for number in range(1, FAILURES_MAX):
        cluster.seen[f"m{number}"] = Seen("running", "h1")
        cluster.look()
        cluster.end(f"m{number}", "failed")
        wait_ns = RETRY_NS << (number - 1)
        assert submits(cluster.look()) == []
        assert submits(cluster.look(wait_ns - 1)) == []
        assert submits(cluster.look(1)) == [(f"m{number + 1}", ())]
    cluster.end(f"m{FAILURES_MAX}", "failed")
    last = cluster.look()[-1]
    assert last == GiveUp("6 members in a row never joined: m6 is over: FAILED", "failed")


def test_the_job_is_given_up_at_once_when_the_engine_refuses_the_first_member() -> None:
    cluster = Cluster(Pool("gpu", ("trainer",), 1, 1, Size()), sizes={"trainer": 1})
    cluster.look(accept=False)
    cluster.fleet.refused("m1", "sbatch: invalid partition", cluster.now)
    why = "1 member of gpu in a row never joined: sbatch: invalid partition"
    assert cluster.look(accept=False) == [GiveUp(why, "failed")]


def test_a_refused_replacement_is_tried_again_without_avoiding_hosts() -> None:
    cluster = Cluster().running()
    cluster.end("m1", "node failed")
    cluster.look(accept=False)
    cluster.fleet.refused("m4", "no such node configuration", cluster.now)
    assert submits(cluster.look(RETRY_NS)) == [("m5", ())]


def test_members_that_wait_are_cancelled_when_the_job_ends_and_those_that_run_end_with_it() -> None:
    cluster = Cluster()
    cluster.look()
    cluster.join("m1")
    assert cancels(cluster.look(is_ending=True)) == ["m2", "m3"]
    cluster.end("m2", "cancelled"), cluster.end("m3", "cancelled"), cluster.end("m1", "succeeded")
    assert cancels(cluster.look(is_ending=True)) == []


def test_nothing_is_decided_about_a_member_that_the_engine_was_not_asked_about() -> None:
    cluster = Cluster().running()
    del cluster.seen["m2"]
    cluster.change("m2", is_usable=False)
    assert cluster.look(REPLACE_NS) == cluster.look(REPLACE_NS) == []


def test_members_that_look_for_the_controller_elsewhere_are_replaced() -> None:
    cluster = Cluster().running()
    cluster.fleet.moved("login:29400")
    assert cluster.look() == []
    resumed = Cluster(state=cluster.fleet.state)
    resumed.fleet.moved("login2:29400")
    resumed.seen, resumed.nodes = cluster.seen, cluster.nodes
    orders = resumed.look()
    assert cancels(orders) == ["m1", "m2", "m3"] and len(submits(orders)) == 3


def test_the_fleet_sees_of_a_job_what_its_roles_want_and_the_nodes_of_members() -> None:
    controller = Controller(graph(role("trainer", max_replicas=2), nodes=0))
    labels = ((NODE_MEMBER, "m1"),)
    controller.handle(NodeJoined("h1", NodeSpec("h1", labels=labels)), 1)
    controller.handle(NodeJoined("other", NodeSpec("other")), 2)
    seen = job_seen(controller.state)
    assert (seen.targets, seen.is_ending) == ({"trainer": 2}, False)
    assert [(node.node, node.member, node.is_usable) for node in seen.nodes] == [("h1", "m1", True)]
    assert seen.scalings == {"trainer": 0}
    controller.handle(ScaleRequested("trainer", 2), 3)
    controller.handle(ScaleRequested("trainer", 9), 4)  # refused
    assert job_seen(controller.state).scalings == {"trainer": 1}
    controller.handle(CancelRequested(), 5)
    assert job_seen(controller.state).is_ending
