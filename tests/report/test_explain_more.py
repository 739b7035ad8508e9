"""Explanations of joint worlds, wider restarts, drained and preempted nodes, and hangs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flowdist.control.protocol import events as ev
from flowdist.graph import (
    SECOND,
    Cluster,
    Gate,
    JointWorld,
    NodeSpec,
    Placement,
    RestartPolicy,
    RoleGraph,
    Rule,
    VersionEdge,
)
from flowdist.report.static.explain import explanation_text
from flowdist.report.static.plan import plan_of
from tests.control.harness import Talk, graph, restart, role
from tests.report.test_explain import because, explained, ps_train, waves, who

# Joint worlds


def joint(**fields: Any) -> RoleGraph:
    """Return a joint world of `a` and `c`, in which `c` waits for `b`, and a role `d` beside them."""
    c = role("c", gates=(Gate("b", "started"),), **fields)
    d = role("d", primary=False, gates=(Gate("a", "started", "restart"),))
    topology = graph(role("a", **fields), role("b", restart=restart("role")), c, d)
    return msgspec.structs.replace(topology, worlds=(JointWorld("rpc", ("a", "c")),))


def test_a_joint_world_restarts_as_one_and_starts_as_one() -> None:
    told = explained(joint(restart=restart("role")), "c/0")
    assert who(told["restarts"]) == ["a", "c", "d"]
    assert because(told["restarts"], "a") == 'it is in the world "rpc" with c, which re-forms as one'
    assert because(told["restarts"], "d") == 'its gate on a says on_restart="restart"'
    assert waves(told, "starts") == [["a", "c"], ["d"]]
    told = explained(joint(restart=restart("job")), "c/0")
    assert waves(told, "starts") == [["b"], ["a", "c"], ["d"]]
    assert told["starts"][1][0]["after"] == ["b started"]  # it waits with its world


def test_a_joint_world_is_ended_as_one_and_roles_that_wait_for_it_are_stuck() -> None:
    topology = joint(primary=False, restart=restart("role", rules=(Rule("ignore"),)))
    after = role("after", primary=False, gates=(Gate("a", "succeeded"),))
    told = explained(msgspec.structs.replace(topology, roles=(*topology.roles, after)), "c/0")
    assert (told["outcome"], who(told["ended"]), who(told["stuck"])) == ("ignore", ["a", "c"], ["after"])
    assert because(told["ended"], "a") == "a and c are ended for good, not succeeded; the job continues without them"


def test_a_world_is_held_up_by_what_one_of_its_roles_waits_for() -> None:
    look = role("look", primary=False, restart=restart("replica", rules=(Rule("ignore"),)))
    a, c = role("a", primary=False), role("c", primary=False, gates=(Gate("look", "succeeded"),))
    topology = graph(look, a, c, role("main"))
    told = explained(msgspec.structs.replace(topology, worlds=(JointWorld("rpc", ("a", "c")),)), "look/0")
    assert because(told["stuck"], "a") == "it is in one world with c, which cannot start, and is ended as well"


def test_a_note_names_roles_that_may_not_have_started_by_then() -> None:
    look = role("look", primary=False, restart=restart("replica", rules=(Rule("ignore"),)))
    late = role("late", gates=(Gate("look", "started"), Gate("first", "succeeded")))
    told = explained(graph(look, role("first"), late), "look/0")
    assert told["notes"] == ["if late still waits for first to succeed, it cannot start without look: the job fails"]


# What comes when a budget is used up


def widening(budget: int, scope: str = "role", **fields: Any) -> RoleGraph:
    wider = RestartPolicy("job", max_restarts=2, within_ns=3600 * 10**9, then="fail")
    policy = restart(scope, budget, then="widen", wider=wider)
    return graph(role("a", max_replicas=3, restart=policy, **fields), role("b"), nodes=3)


def test_the_next_policy_is_named_with_what_it_restarts() -> None:
    told = explained(widening(1), "a/0")
    assert who(told["restarts"]) == ["a"] and told["verdicts"][0]["because"] == (
        "its policy is restart the role, once, then restart the job, 2 times within 1h, then fail"
    )
    assert told["charged"]["words"][0] == "a is charged 1 of its 1 restart, once all of it runs again"
    assert (
        "when the budget is used up: restart the job, 2 times within 1h, then fail; that restarts a, b"
        in (told["charged"]["words"])
    )


def test_with_no_budget_of_its_own_the_wider_one_decides_and_pays() -> None:
    told = explained(widening(0), "a/0")
    assert who(told["restarts"]) == ["a", "b"] and not told["verdicts"][0]["exhausted"]
    assert because(told["restarts"], "b") == 'the scope of the wider policy of a is "job"'
    assert (told["charged"]["scope"], told["charged"]["levels"], told["charged"]["budget"]) == ("job", [1], 2)
    assert (
        told["charged"]["words"][0]
        == "a is charged 1 of its 2 restarts of the job within 1h, once all of it runs again"
    )
    assert told["charged"]["words"][-1] == "when the budget is used up: the job fails"


def test_replicas_that_fail_together_go_from_one_budget_to_the_next() -> None:
    told = explained(widening(1, "replica"), "a")
    assert who(told["restarts"]) == ["a", "b"] and told["charged"]["levels"] == [0, 1]
    assert told["charged"]["words"][:2] == [
        "a is charged 1 of its 1 restart, once all of it runs again",
        "a is charged 1 of its 2 restarts of the job within 1h, once all of it runs again",
    ]


# Nodes that are left in order, and hangs


def test_a_drained_node_is_left_in_order_and_asks_no_rule() -> None:
    told = explained(ps_train("reconnect", restart=restart("role", rules=(Rule("fail"),))), "node0:drain")
    assert (told["how"], told["outcome"]) == ("node0 is drained by the operator", "restart")
    assert waves(told, "stops") == [["trainer"], ["ps/0"]] and told["stops"][0][0]["grace_s"] == 10
    assert told["charged"] is None and told["notes"][0] == (
        "before that, a world in which every rank asks should_stop(step) stops at one step, within 30s; "
        "a world that does not ask is stopped at once"
    )
    assert not any("such losses in a row" in note for note in told["notes"])


def test_a_drain_that_would_leave_too_few_is_refused() -> None:
    topology = graph(role("main", min_replicas=2, max_replicas=2), nodes=2, cpu=1)
    told = explained(topology, "node0:drain")
    assert (told["outcome"], told["verdicts"], told["stops"]) == ("refused", [], [])
    assert explanation_text(told) == (
        "node0 is drained by the operator: the drain is refused, and nothing changes\n\nNotes\n"
        "  drain node0 is refused: without it, main needs 1 cpu; "
        "node0 is cordoned (to be drained), node1 has 0 of 1 cpu free\n"
    )
    talk = Talk(topology)
    talk.join("node0", "node1")
    talk.tell(ev.DrainRequested("node0"))
    assert "drain node0 is refused" in talk.texts()[-1]


def test_room_is_counted_for_all_roles_together_and_by_their_placement() -> None:
    two = graph(role("a"), role("b"), nodes=2, cpu=2)
    assert explained(two, "node0:drain")["outcome"] == "restart"
    both = msgspec.structs.replace(two, cluster=graph(nodes=1, cpu=2).cluster)
    assert explained(both, "node0:drain")["outcome"] == "refused"
    alone = role("a", min_replicas=2, max_replicas=2, placement=Placement(apart=("a",)))
    assert explained(graph(alone, nodes=2, cpu=4), "node0:drain")["outcome"] == "refused"
    assert explained(graph(alone, nodes=3, cpu=4), "node0:drain")["outcome"] == "restart"
    told = explained(graph(alone, nodes=3, cpu=4), "node0")
    assert told["notes"][0].startswith("a has 1 of 2 left, and needs 2; the other nodes have room for 1 more")
    beside = role("b", placement=Placement("pack", near=("a",)))
    told = explained(graph(role("a"), beside, nodes=2, cpu=4), "node0")
    assert told["notes"][1].startswith("b has 0 of 1 left, and needs 1; the other nodes have room for 1 more")


def test_a_gang_with_a_mesh_continues_in_a_size_that_its_mesh_has() -> None:
    pairs = role(
        "a", min_replicas=2, max_replicas=4, parallel=(("pp", 2), ("dp", None)), placement=Placement(apart=("a",))
    )
    told = explained(graph(pairs, nodes=4, cpu=4), "node0")
    assert told["notes"][0].startswith("a has 3 of 4 left, and needs 2: it continues at once with 2, as its mesh needs")
    told = explained(graph(msgspec.structs.replace(pairs, parallel=()), nodes=4, cpu=4), "node0")
    assert told["notes"][0].startswith("a has 3 of 4 left, and needs 2: it continues at once; the other")


def test_a_preempted_node_is_left_before_it_is_gone_and_its_rules_decide() -> None:
    told = explained(ps_train("reconnect"), "node1:preempt=30s")
    assert told["how"] == "node1 is taken away in 30s" and told["charged"] is None
    assert told["notes"][0].endswith("stops at one step; at the latest 10s before node1 is taken away")
    assert "a node that is taken away is no failure" in told["verdicts"][0]["because"]
    rules = (Rule("fail", kind="preempted"),)
    assert explained(ps_train(restart=restart("role", rules=rules)), "node0:preempt")["outcome"] == "fail"
    counted = restart("replica", 5, rules=(Rule("restart", kind="preempted"),))
    told = explained(
        graph(role("a", max_replicas=2, restart=counted), role("b", restart=counted), cpu=4), "node0:preempt"
    )
    assert told["charged"]["times"] == 2
    assert "each world leaves by itself and is charged by itself: a, b" in told["notes"]


@pytest.mark.parametrize("node", ["node0", "node1"])
def test_control_leaves_a_preempted_node_as_the_explanation_says(node: str) -> None:
    """Two loose roles whose rule counts, and a gang that follows one of them: each world leaves by itself."""
    counted = restart("replica", 5, rules=(Rule("restart", kind="preempted"),))
    gates = (Gate("a", "started", "restart"),)
    a, b = role("a", min_replicas=1, max_replicas=4, restart=counted), role("b", restart=counted)
    topology = graph(a, b, role("t", max_replicas=2, gates=gates), nodes=2)
    told = explained(topology, f"{node}:preempt=30s")
    talk = Talk(topology)
    talk.join("node0", "node1")
    before = talk.attempts()
    talk.tell(ev.NodePreempted(node, 30 * SECOND))
    talk.wait(40)
    names = {name for entry in told["restarts"] for name in entry["who"].split(", ")}
    restarted = {name for name, attempt in talk.attempts().items() if attempt > before[name]}
    assert restarted == {name for name in before if {name, name.partition("/")[0]} & names}
    payers = {
        name for note in told["notes"] if "charged by itself" in note for name in note.partition(": ")[2].split(", ")
    }
    charges = {name: len(state.charges) for name, state in talk.job.roles.items() if state.charges}
    assert charges["a"] == told["charged"]["times"] == 2 and set(charges) == (payers or {"a"})


def test_of_several_that_pay_for_a_lost_node_the_one_that_was_seated_first_does() -> None:
    """The minimum of `b` gets its seat before `a` grows."""
    counted = restart("role", 3, rules=(Rule("restart", kind="node_lost"),))
    a = role("a", min_replicas=1, max_replicas=3, restart=counted)
    topology = graph(a, role("b", restart=counted), nodes=2, cpu=4)
    talk = Talk(topology)
    talk.join("node0", "node1")
    told = explained(topology, "node1")
    assert set(told["hits"]) == {"a/2", "b/0"} and told["charged"]["role"] == "b"
    talk.gone("node1")
    talk.wait(60)
    assert [name for name, state in talk.job.roles.items() if state.charges] == ["b"]


def test_a_rank_that_hangs_is_stopped_with_its_gang() -> None:
    topology = ps_train("reconnect", hang_after_ns=60 * 10**9)
    told = explained(topology, "trainer/0:hang")
    assert told["how"] == "trainer/0 hangs: no sign of it for 1m" and waves(told, "stops") == [["trainer"]]
    assert told["notes"] == [
        "its Python workers write their stacks to their logs before they are stopped",
        "one rank that hangs stalls its gang: the least advanced of the stalled ranks is blamed, unless several are",
    ]
    told = explained(graph(role("a", start_timeout_ns=10**9, restart=restart())), "a/0:hang")
    assert told["how"] == "a/0 reports no progress within 1s" and len(told["notes"]) == 1
    rules = (Rule("fail", kind="hang"),)
    topology = ps_train(hang_after_ns=10**9, restart=restart("role", rules=rules))
    assert explained(topology, "trainer:hang")["outcome"] == "fail"


# What only the controller knows


def test_a_role_with_the_address_of_another_in_its_command_restarts_when_that_moves() -> None:
    topology = ps_train("reconnect", address_edges=("ps",))
    seats = plan_of(topology)["placement"]
    assert seats["ps/1"] == "node1" and not any(seats[name] == "node1" for name in seats if name.startswith("trainer"))
    told = explained(topology, "node1")
    assert because(told["restarts"], "trainer") == "it has the address of ps in its command or env, which changes"
    assert "trainer" not in who(explained(topology, "ps/1")["restarts"])  # on its node it keeps its port


def test_the_room_on_other_nodes_is_that_of_all_roles_together() -> None:
    first, second = role("first"), role("second")
    topology = graph(first, second, nodes=2, cpu=3)
    one = msgspec.structs.replace(topology, cluster=Cluster((NodeSpec("node0", cpu=3), NodeSpec("node1", cpu=1))))
    told = explained(one, "node0")
    assert [note.partition("; ")[2] for note in told["notes"][:2]] == [
        "the other nodes have room for 1 more: it continues there",
        "the other nodes have no room for more: it waits up to 10m for a node, then the job fails",
    ]
    assert waves(told, "starts") == [["first"], ["second"]]  # the second one when the node is back


def test_a_replica_that_has_no_room_is_told_of_as_if_it_had() -> None:
    topology = graph(role("a", max_replicas=4, restart=restart("role")), nodes=2, cpu=1)
    assert explained(topology, "a")["hits"] == ["a/0", "a/1"]
    told = explained(topology, "a/3")
    assert (told["hits"], who(told["restarts"]), told["outcome"]) == (["a/3"], ["a"], "restart")


def test_a_role_that_starts_after_the_end_of_the_job_never_fails() -> None:
    topology = graph(role("main"), role("after", primary=False, gates=(Gate("main", "succeeded"),), restart=restart()))
    told = explained(topology, "after/0")
    assert (told["outcome"], told["notes"]) == (
        "nothing",
        ["after does not run: the job has succeeded before it starts"],
    )


def test_workers_that_need_a_version_have_one() -> None:
    learner = role("learner", restart=restart("role"))
    actor = role("actor", versions=VersionEdge("learner"), primary=False, restart=restart("role"))
    judge = role("judge", gates=(Gate("actor", "ready", "restart"),), primary=False)
    told = explained(graph(learner, actor, judge), "actor/0")
    assert who(told["restarts"]) == ["actor", "judge"] and waves(told, "starts") == [["actor"], ["judge"]]


def test_a_service_leaves_a_drained_node_at_once_because_it_asks_for_no_step() -> None:
    """The gang leaves later, and could grow into the only room for the service."""
    zone = (("zone", "a"),)
    service = role("service", kind="service", placement=Placement(where=zone))
    nodes = NodeSpec("node0", cpu=2, labels=zone), NodeSpec("node1", cpu=4), NodeSpec("node2", cpu=1, labels=zone)
    topology = graph(role("gang", min_replicas=1, max_replicas=5), service)
    told = explained(msgspec.structs.replace(topology, cluster=Cluster(nodes)), "node0:drain")
    assert set(told["hits"]) == {"gang/3", "service/0"}
    (note,) = [note for note in told["notes"] if note.startswith("service has 0 of 1 left")]
    assert note.endswith("it continues there")
