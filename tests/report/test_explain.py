"""Explanations of failures in small topologies, and failures that cannot be explained."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flowdist.control.protocol import events as ev
from flowdist.errors import FlowdistError
from flowdist.graph import Cluster, Domain, Gate, NodeSpec, Readiness, RoleGraph, Rule
from flowdist.report.static.explain import Explainer, explanation_text
from flowdist.report.static.failing import parse_failing, parse_failings
from flowdist.report.static.plan import plan_of
from tests.control.harness import Talk, graph, restart, role


def explained(topology: RoleGraph, fault: str) -> dict[str, Any]:
    return Explainer(topology).explain(parse_failing(fault, topology))


def who(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["who"] for entry in entries]


def waves(told: dict[str, Any], key: str) -> list[list[str]]:
    return [who(layer) for layer in told[key]]


def because(entries: list[dict[str, Any]], name: str) -> str:
    (found,) = [entry["because"] for entry in entries if entry["who"] == name]
    return str(found)


def ps_train(on_restart: str = "restart", **trainer: Any) -> RoleGraph:
    """Return two servers, three trainers that depend on them, and an evaluator; three nodes with spare room."""
    ps = role(
        "ps", kind="service", min_replicas=2, max_replicas=2, ready=Readiness("tcp", "rpc"), ports=("rpc",),
        restart=restart("replica"),
    )  # fmt: skip
    trainer.setdefault("restart", restart("role", 5, within_ns=3600 * 10**9))
    gates = (Gate("ps", "ready", on_restart),)  # type: ignore[arg-type]
    trainers = role("trainer", min_replicas=2, max_replicas=3, gates=gates, **trainer)
    evaluator = role("evaluator", primary=False, gates=(Gate("trainer", "started"),), restart=restart("replica", 1))
    return graph(ps, trainers, evaluator, nodes=3, cpu=4)


def test_roles_that_have_succeeded_or_have_not_started_are_not_stopped_with_the_job() -> None:
    trainer = role("trainer", ready=Readiness("tcp", "rpc"), ports=("rpc",))
    evaluator = role("evaluator", gates=(Gate("trainer", "succeeded"),), max_replicas=2, min_replicas=2)
    upload = role("upload", gates=(Gate("evaluator", "succeeded"),))
    board = role("board", kind="service", primary=False)
    topology = graph(trainer, evaluator, upload, board, nodes=2, cpu=4)
    for fault in ("evaluator/0", "evaluator"):
        told = explained(topology, fault)
        left = [] if fault == "evaluator" else [["the rest of evaluator"]]
        assert told["outcome"] == "fail" and [names for names in waves(told, "stops") if names != ["board"]] == left
        assert "trainer" not in str(told["stops"]) and "upload" not in str(told["stops"])
    assert waves(explained(topology, "trainer/0:unready"), "stops") == [["trainer", "board"]]


def test_a_killed_server_takes_the_trainers_along_because_their_gate_says_so() -> None:
    told = explained(ps_train(), "ps/0")
    assert told["outcome"] == "restart" and who(told["restarts"]) == ["ps/0", "trainer"]
    assert because(told["restarts"], "ps/0") == 'the scope of the policy of ps is "replica"'
    assert because(told["restarts"], "trainer") == 'its gate on ps says on_restart="restart"'
    assert waves(told, "stops") == [["trainer"]]
    assert waves(told, "starts") == [["ps/0"], ["trainer"]] and told["starts"][1][0]["after"] == ["ps ready"]
    assert (told["charged"]["role"], told["charged"]["times"], told["charged"]["budget"]) == ("ps", 1, 3)
    assert [(entry["who"], entry["told"]) for entry in told["goes_on"]] == [("ps/1", False), ("evaluator", True)]


def test_reconnecting_trainers_keep_running_and_receive_the_address() -> None:
    told = explained(ps_train("reconnect"), "ps/0")
    assert who(told["restarts"]) == ["ps/0"] and told["stops"] == []
    text = 'its gate on ps says on_restart="reconnect"; it receives the new addresses of ps if these change'
    text += "; if it fails meanwhile, it restarts in an incident of its own, which costs nothing within 2s (R7)"
    assert because(told["goes_on"], "trainer") == text
    assert because(told["goes_on"], "evaluator") == "no gate, domain or scope leads to it"
    told = explained(ps_train("reconnect", restart=restart("job", 3)), "ps/0")
    assert because(told["goes_on"], "trainer").endswith("all of this restarts once more with it (R6)")


def test_an_address_in_the_command_is_a_reason_to_restart_once_it_changes() -> None:
    told = explained(ps_train("reconnect", address_edges=("ps",)), "ps/1")
    assert "it restarts if that changes" in because(told["goes_on"], "trainer")


def test_the_first_rule_that_matches_is_named() -> None:
    rules = (
        Rule("fail", kind="oom"),
        Rule("restart", exit=3, counted=False),
        Rule("fail", signal="SEGV"),
        Rule("fail", exit=2),
    )
    topology = ps_train(restart=restart("role", 5, rules=rules))
    told = explained(topology, "trainer/0:oom")
    assert told["outcome"] == "fail" and told["verdicts"][0]["rule"] == 'On("oom", do="fail")'
    assert waves(told, "stops") == [["evaluator"], ["the rest of trainer"], ["ps"]] and told["starts"] == []
    told = explained(topology, "trainer/0:exit=3")
    assert told["charged"] is None and told["verdicts"][0]["rule"] == "On(exit=3, count=False)"
    assert "nothing: the restart is not counted" in explanation_text(told)
    assert explained(topology, "trainer/0:exit=139")["verdicts"][0]["rule"] == 'On(signal="SEGV", do="fail")'
    assert explained(topology, "trainer/0:signal=ABRT")["verdicts"][0]["because"] == (
        "no rule matches; its policy is restart the role, 5 times, then fail"
    )


def test_without_a_policy_a_failure_fails_the_job_and_a_lost_node_does_not() -> None:
    topology = ps_train(restart=None)
    told = explained(topology, "trainer/1")
    assert told["outcome"] == "fail" and "no restart policy" in told["verdicts"][0]["because"]
    assert explained(topology, "node2")["outcome"] == "restart"


def test_every_replica_of_a_role_without_gang_pays_for_itself() -> None:
    told = explained(ps_train(), "ps")
    assert told["hits"] == ["ps/0", "ps/1"] and told["charged"]["times"] == 2
    assert (
        told["charged"]["words"][0] == "ps is charged 2 of its 3 restarts, one for each replica: each fails by itself"
    )
    assert explained(ps_train(), "trainer")["charged"]["times"] == 1


def test_too_many_at_once_use_the_budget_up() -> None:
    loose = role("actor", min_replicas=1, max_replicas=3, restart=restart("replica", 2))
    told = explained(graph(loose), "actor")
    assert told["outcome"] == "fail" and told["verdicts"][0]["exhausted"]
    patient = role("actor", min_replicas=1, max_replicas=3, restart=restart("replica", 2, then="ignore"))
    told = explained(graph(patient), "actor")
    assert (told["outcome"], who(told["restarts"]), who(told["ended"])) == (
        "restart",
        ["actor/0, actor/1"],
        ["actor/2"],
    )
    needed = role("actor", min_replicas=3, max_replicas=3, restart=restart("replica", 0, then="ignore"))
    told = explained(graph(needed), "actor/1")
    assert told["outcome"] == "fail" and "fewer than the 3 replicas that actor needs" in told["verdicts"][0]["because"]


def test_a_used_up_budget_can_be_excused_by_what_is_upstream() -> None:
    told = explained(ps_train(restart=restart("role", 0)), "trainer/0")
    assert told["notes"] == ["unless ps fails within 2s as well: that is then the cause, and is charged"]


def test_an_ignored_gang_is_ended() -> None:
    alone = role("look", primary=False, max_replicas=2, restart=restart("role", rules=(Rule("ignore"),)))
    told = explained(graph(alone, role("main")), "look/1")
    assert (told["outcome"], who(told["ended"]), told["restarts"]) == ("ignore", ["look"], [])
    assert who(told["goes_on"]) == ["main"]


def test_a_domain_and_the_whole_job_are_reasons() -> None:
    a, b = role("a", restart=restart("domain")), role("b", restart=restart("job"))
    topology = graph(a, b, role("c"), domains=(Domain("core", ("a", "c")),))
    told = explained(topology, "a/0")
    assert because(told["restarts"], "c") == 'the scope of the policy of a is "domain", which is core'
    assert because(told["goes_on"], "b") == "no gate, domain or scope leads to it"
    told = explained(topology, "b/0")
    assert who(told["restarts"]) == ["a", "b", "c"]
    assert because(told["restarts"], "a") == 'the scope of the policy of b is "job"'


def test_a_replica_brings_the_rest_of_its_role_along_when_a_domain_says_so() -> None:
    a = role("a", max_replicas=2, restart=restart("replica"))
    told = explained(graph(a, role("b"), domains=(Domain("core", ("a", "b")),)), "a/1")
    assert who(told["restarts"]) == ["a", "b"]
    assert because(told["restarts"], "a").endswith('all of it restarts: it is in the restart domain "core" with b')
    assert because(told["restarts"], "b") == 'it is in the restart domain "core" with a'


def test_a_role_that_waits_for_success_has_not_started_and_success_is_not_repeated() -> None:
    first = role("first", restart=restart("job"))
    second = role("second", gates=(Gate("first", "succeeded", "restart"),), restart=restart("job"))
    topology = graph(first, second, role("aside"))
    told = explained(topology, "first/0")
    assert who(told["restarts"]) == ["first", "aside"]
    assert because(told["spared"], "second") == "it has not started by then: it waits for first to succeed"
    told = explained(topology, "second/0")
    assert who(told["restarts"]) == ["second", "aside"]
    assert because(told["spared"], "first").startswith("it has succeeded by then, as second waits for that")


def test_a_role_that_may_not_run_by_then_has_a_condition() -> None:
    late = role("late", gates=(Gate("slow", "succeeded"), Gate("ps", "started", "restart")))
    mate = role("mate")
    topology = graph(
        role("ps", restart=restart("role")), role("slow"), late, mate, domains=(Domain("core", ("late", "mate")),)
    )
    told = explained(topology, "ps/0")
    assert [(entry["who"], entry["if"]) for entry in told["restarts"]] == [
        ("ps", None),
        ("late", "if slow has succeeded by then"),
        ("mate", "if what leads to it runs by then"),
    ]
    assert ", if slow has succeeded by then" in explanation_text(told)


def test_a_role_that_waits_for_an_ended_role_is_stuck() -> None:
    look = role(
        "look", primary=False, restart=restart("replica", 0, then="ignore", rules=(Rule("ignore", kind="oom"),))
    )
    topology = graph(look, role("after", primary=False, gates=(Gate("look", "succeeded"),)), role("main"))
    told = explained(topology, "look/0:oom")
    assert who(told["ended"]) == ["look/0"]
    assert because(told["stuck"], "after") == (
        "it waits for look to succeed, of which too few are left: it cannot start, and is ended as well"
    )


def test_a_lost_node_hits_its_replicas_and_the_notes_say_what_room_is_left() -> None:
    topology = ps_train("reconnect")
    told = explained(topology, "node1")
    assert plan_of(topology)["placement"]["ps/1"] == "node1"
    assert set(told["hits"]) == {name for name, seat in plan_of(topology)["placement"].items() if seat == "node1"}
    assert told["charged"] is None and "ps has 1 of 2 left, and needs 2" in told["notes"][0]
    told = explained(graph(role("main", min_replicas=2, max_replicas=2), nodes=2, cpu=1), "node0:lost")
    assert told["notes"][0].startswith("a silent node counts as lost after 5s; its agent kills")
    assert told["notes"][1] == (
        "main has 1 of 2 left, and needs 2; the other nodes have no room for more: "
        "it waits up to 10m for a node, then the job fails"
    )


def test_the_loss_of_an_empty_node_affects_no_replica() -> None:
    told = explained(graph(role("main"), nodes=2), "node1")
    assert told["outcome"] == "nothing" and who(told["goes_on"]) == ["main"]
    assert explanation_text(told).startswith("node1 is gone: nothing runs there, and the job continues\n")


def test_an_unready_replica_still_runs_and_is_stopped() -> None:
    told = explained(ps_train("reconnect"), "ps/0:unready")
    assert waves(told, "stops") == [["ps/0"]] and told["how"] == "ps/0 does not get ready within 5m"


@pytest.mark.parametrize(
    ("fault", "message", "help"),
    [
        ("pss/0", "there is no 'pss'", 'did you mean "ps"?'),
        ("ps/2", "ps has 2 replicas at most", "write ps/0 to ps/1"),
        ("ps/x", "'x' is no number of a replica", "write ps/0"),
        ("ps/0.1", "a replica of ps has one worker", "write ps/0.0"),
        ("node7", "there is no 'node7'", "did you mean"),
        ("zone=c", "no node is zone=c", "there is none"),
        ("controller:oom", "the controller does not fail by 'oom'", "write controller"),
        ("controller:partition=node2", "the controller keeps running; node2 fall silent", "write node2:lost"),
        ("node1/0", "node1 is a node: it has no replicas", "write node1"),
        ("node1:oom", "a node does not fail by 'oom'", "known: kill, lost, leave, preempt, drain"),
        ("node1:premept", "a node does not fail by 'premept'", 'did you mean "preempt"?'),
        ("node1:preempt=soon", "'soon' is no duration", "write node1:preempt=30s"),
        ("node1:preempt=", "'' is no duration", "write node1:preempt=30s"),
        ("node1:drain=30s", "drain takes no argument", "write node1:drain"),
        ("ps/0:drain", "kind 'drain' is unknown", "known: kill"),
        ("trainer/0:hang", "trainer has no limit after which it counts as hanging", "give it hang_after="),
        ("node1:lost=3", "lost takes no argument", "write node1:lost"),
        ("ps/0:omm", "kind 'omm' is unknown", 'did you mean "oom"?'),
        ("ps/0:", "kind '' is unknown", "known: kill"),
        ("ps/0:node_lost", "a replica is lost with its node", "name the node: node1"),
        ("ps/0:exit", "'' is no exit code", "write ps/0:exit=1 to exit=255"),
        ("ps/0:exit=0", "'0' is no exit code", "write ps/0:exit=1"),
        ("ps/0:signal=SEVG", "signal 'SEVG' is unknown", 'did you mean "SEGV"?'),
        ("ps/0:oom=1", "oom takes no argument", "write ps/0:oom"),
        ("trainer/0:unready", "trainer has no readiness check", "ready_when="),
        ("ps/0@20s:oom", "the time of the failure makes no difference here", "write ps/0:oom"),
        ("node1:kill/30s", "the duration of the failure makes no difference here", "write node1:kill"),
        ("", "there is no ''", "known:"),
    ],
)
def test_what_cannot_fail_is_refused_in_the_users_words(fault: str, message: str, help: str) -> None:
    with pytest.raises(FlowdistError) as caught:
        parse_failing(fault, ps_train())
    assert caught.value.message.startswith(f"--fail {fault}: {message}") and help in caught.value.help


def in_zones() -> RoleGraph:
    """Return the same topology on four nodes, the even ones in zone a and the others in zone b."""
    nodes = tuple(NodeSpec(f"node{i}", cpu=4, labels=(("zone", "ab"[i % 2]),)) for i in range(4))
    return msgspec.structs.replace(ps_train(), cluster=Cluster(nodes))


def test_a_label_is_all_nodes_that_have_it() -> None:
    told = explained(in_zones(), "zone=a")
    assert told["how"] == "node0, node2 (zone=a) are gone" and told["outcome"] == "restart"
    seats = plan_of(in_zones())["placement"]
    assert set(told["hits"]) == {replica for replica, node in seats.items() if node in ("node0", "node2")}
    assert told["charged"] is None and "more than 5 such losses in a row" in told["notes"][-1]
    assert explained(in_zones(), "zone=b:preempt=30s")["how"] == "node1, node3 (zone=b) are taken away in 30s"
    with pytest.raises(FlowdistError, match="no node is zoen=a") as caught:
        parse_failing("zoen=a", in_zones())
    assert caught.value.help == 'did you mean "zone=a"?'


def test_nodes_that_are_drained_go_one_by_one_as_long_as_there_is_room() -> None:
    topology = in_zones()
    nodes = tuple(msgspec.structs.replace(node, cpu=2) for node in topology.cluster.nodes)
    tight = msgspec.structs.replace(topology, cluster=Cluster(nodes))
    told = explained(tight, "zone=a:drain")
    talk = Talk(tight)
    talk.join("node0", "node1", "node2", "node3")
    for name in ("node0", "node2"):
        talk.tell(ev.DrainRequested(name))
    assert told["outcome"] == "restart" and told["notes"][0].startswith("drain node2 is refused: ")
    assert [name for name, node in talk.job.nodes.items() if node.is_leaving] == ["node0"]
    assert explained(graph(role("a"), nodes=1), "node0:drain")["outcome"] == "refused"


def test_all_is_every_role_each_by_itself() -> None:
    topology = ps_train()
    told = [Explainer(topology).explain(each) for each in parse_failings("all:exit=3", topology)]
    assert told == [
        {**explained(topology, f"{name}:exit=3"), "fault": "all:exit=3"} for name in ("ps", "trainer", "evaluator")
    ]
    assert parse_failings("ps/0:oom", topology) == [parse_failing("ps/0:oom", topology)]


def test_the_death_of_the_controller_stops_no_replica() -> None:
    told = explained(ps_train(), "controller")
    assert (told["outcome"], told["hits"], told["restarts"], told["stops"]) == ("takeover", [], [], [])
    text = explanation_text(told)
    assert text.startswith("the controller is killed: another controller takes over, and the job continues\n")
    assert "  trainer    agents keep their workers running for 10m without a controller\n" in text


def test_what_has_succeeded_passes_nothing_on_though_the_scope_names_it() -> None:
    first = role("first")
    second = role("second", gates=(Gate("first", "succeeded", "restart"),))
    third = role("third", gates=(Gate("second", "started"),), restart=restart("domain"))
    topology = graph(first, second, third, domains=(Domain("core", ("first", "third")),))
    told = explained(topology, "third/0")
    assert who(told["restarts"]) == ["third"] and who(told["spared"]) == ["first", "second"]
    talk = Talk(topology)
    talk.join("node0")
    talk.finish("first/0")
    talk.fail("third/0")
    assert talk.attempts() == {"first/0": 1, "second/0": 1, "third/0": 2}


def led_back(condition: str, *more: Gate) -> RoleGraph:
    """Return roles whose restart leads from c over d, which waits for c, and b back to all of c."""
    once = restart("replica")
    roles = (
        role("main"),
        role("a"),
        role("b", kind="service", restart=once),
        role("c", kind="service" if condition == "started" else "task", max_replicas=2, gang=False, restart=once,
             gates=(Gate("b", "started", "restart"),)),
        role("d", primary=False, gang=False, gates=(Gate("c", condition, "restart"), *more)),  # type: ignore[arg-type]
    )  # fmt: skip
    return graph(*roles, domains=(Domain("x", ("d", "b")),), nodes=2)


def test_a_restart_leads_back_to_the_whole_role_only_over_roles_that_run() -> None:
    over_a_running_role = explained(led_back("started"), "c/1:exit=1")
    assert who(over_a_running_role["restarts"]) == ["b", "c", "d"]
    over_one_that_waits = explained(led_back("succeeded"), "c/1:exit=1")
    assert who(over_one_that_waits["restarts"]) == ["c/1"]
    assert because(over_one_that_waits["restarts"], "c/1") == 'the scope of the policy of c is "replica"'
    told = explained(led_back("started", Gate("a", "succeeded")), "c/1:exit=1")
    (entry,) = [entry for entry in told["restarts"] if entry["role"] == "c"]
    assert entry["if"] == "the rest of it if what leads back to it runs by then"
