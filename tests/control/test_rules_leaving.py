"""R14: a node is drained, or will be taken away: its worlds agree on a step, stop there, and re-form elsewhere."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AskStep, Effect, StopAtStep, StopReplica
from flowdist.graph import SECOND, RestartPolicy, Rule
from tests.control.harness import TCP, Talk, joined, r, restart, role, trainers


def two_of_three(**fields: object) -> Talk:
    """Two trainers, one a node, and a spare node."""
    return joined(trainers(**fields), nodes=3, cpu=1)


def drain(talk: Talk, node: str) -> list[Effect]:
    return talk.tell(ev.DrainRequested(node))


def preempt(talk: Talk, node: str, seconds: float) -> list[Effect]:
    return talk.tell(ev.NodePreempted(node, round(seconds * SECOND)))


def orders(effects: list[Effect], *kinds: type) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kinds)]


def seats(talk: Talk) -> dict[str, str]:
    return {str(replica.id): replica.node for replica in talk.job.replicas.values() if replica.is_up}


def test_r14_the_notice_goes_to_the_whole_world_and_all_stop_at_one_step():
    talk = two_of_three()
    asked = orders(drain(talk, "node0"), AskStep, StopReplica)
    assert asked == [AskStep("node0", r("trainer/0"), 1), AskStep("node1", r("trainer/1"), 1)]
    assert orders(talk.report(ev.StepTold, "trainer/0", 7), StopAtStep) == []
    named = talk.report(ev.StepTold, "trainer/1", 5)
    assert orders(named, StopAtStep, StopReplica) == [
        StopAtStep("node0", r("trainer/0"), 1, 8),
        StopAtStep("node1", r("trainer/1"), 1, 8),
    ]
    assert talk.texts()[-1] == "trainer: every rank stops at step 8 (node0 is drained by the operator)"


def test_r14_all_re_form_elsewhere_when_the_last_rank_has_left_the_step():
    talk = two_of_three()
    drain(talk, "node0")
    talk.report(ev.StepTold, "trainer/0", 7)
    talk.report(ev.StepTold, "trainer/1", 7)
    assert talk.report(ev.ReplicaLeftStep, "trainer/0") == []
    assert talk.attempts() == {"trainer/0": 1, "trainer/1": 1}
    stops = orders(talk.report(ev.ReplicaLeftStep, "trainer/1"), StopReplica)
    assert stops == [
        StopReplica("node0", r("trainer/0"), 1, 10 * SECOND),
        StopReplica("node1", r("trainer/1"), 1, 10 * SECOND),
    ]
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"}
    (incident,) = talk.job.incidents
    assert (incident.kind, incident.root, incident.result) == ("drained", "node0", "re-formed")


def test_r14_a_drain_burns_no_budget_and_needs_no_policy():
    for policy in (None, restart("role", 0)):
        talk = two_of_three(restart=policy)
        drain(talk, "node0")
        talk.wait(30)
        assert talk.outcome()[0] is None and talk.job.roles["trainer"].charges == []
        assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2}


def test_r14_where_one_worker_never_asks_no_step_is_named_and_a_drain_goes_at_once():
    talk = two_of_three()
    drain(talk, "node0")
    talk.report(ev.StepTold, "trainer/0", 7)
    effects = talk.report(ev.StepTold, "trainer/1", None)
    assert [order.step for order in orders(effects, StopAtStep)] == [None, None]
    assert len(orders(effects, StopReplica)) == 2
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"} and talk.now == 0


def test_r14_a_drain_does_not_wait_longer_than_its_time_for_an_answer_or_a_step():
    for answer in (False, True):
        talk = two_of_three(drain_ns=30 * SECOND)
        drain(talk, "node0")
        if answer:
            talk.report(ev.StepTold, "trainer/0", 7)
            talk.report(ev.StepTold, "trainer/1", 7)
        talk.wait(29.9)
        assert talk.attempts()["trainer/1"] == 1
        talk.wait(0.1)
        assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"}


def test_r14_a_preempted_world_is_stopped_at_notice_minus_grace_at_the_latest():
    talk = two_of_three(grace_ns=10 * SECOND)
    preempt(talk, "node0", 60)
    talk.report(ev.StepTold, "trainer/0", None)
    talk.report(ev.StepTold, "trainer/1", None)
    talk.wait(49.9)
    assert talk.attempts() == {"trainer/0": 1, "trainer/1": 1}
    effects = talk.wait(0.1)
    assert [order.grace_ns for order in orders(effects, StopReplica)] == [10 * SECOND] * 2
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"}


def test_r14_a_preempted_world_that_has_left_its_step_is_not_kept_waiting():
    talk = two_of_three()
    preempt(talk, "node0", 60)
    for name in ("trainer/0", "trainer/1"):
        talk.report(ev.StepTold, name, 3)
    for name in ("trainer/0", "trainer/1"):
        talk.report(ev.ReplicaLeftStep, name)
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"} and talk.now == 0
    assert [incident.kind for incident in talk.job.incidents] == ["preempted"]
    talk.gone("node0")
    assert len(talk.job.incidents) == 1, "what was taken away in order is not lost once more"


def test_r14_a_notice_shorter_than_the_grace_stops_at_once():
    talk = two_of_three(grace_ns=10 * SECOND)
    preempt(talk, "node0", 5)
    talk.wait(0)
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"}


def test_r14_a_preempted_node_burns_no_budget_unless_a_rule_says_so():
    free = two_of_three(restart=restart("role", 1))
    counted = two_of_three(restart=restart("role", 1, rules=(Rule("restart", kind="preempted"),)))
    for talk, charges in ((free, 0), (counted, 1)):
        preempt(talk, "node0", 0)
        talk.wait(60)
        assert len(talk.job.roles["trainer"].charges) == charges and talk.outcome()[0] is None


def test_r14_a_rule_may_fail_the_job_when_a_node_is_taken_away():
    talk = two_of_three(restart=restart("role", 1, rules=(Rule("fail", kind="preempted"),)))
    preempt(talk, "node0", 20)
    talk.wait(10)
    outcome, reason = talk.outcome()
    assert outcome == "failed"
    assert reason == 'node0 is taken away in 20s; lost replicas: trainer/0; rule On("preempted") says fail'


def test_r14_a_drain_that_leaves_a_role_below_its_minimum_is_refused_in_words():
    talk = joined(trainers(2, 2), nodes=2, cpu=1)
    drain(talk, "node0")
    assert talk.texts()[-1] == (
        "drain node0 is refused: without it, trainer needs 1 cpu; "
        "node0 is cordoned (to be drained), node1 has 0 of 1 cpu free"
    )
    assert talk.job.nodes["node0"].cordoned == "" and talk.world("trainer").notice is None
    assert talk.attempts() == {"trainer/0": 1, "trainer/1": 1}


def test_r14_an_elastic_role_shrinks_rather_than_keep_the_node():
    talk = joined(trainers(1, 2), nodes=2, cpu=1)
    drain(talk, "node0")
    talk.wait(30)
    assert seats(talk) == {"trainer/1": "node1"} and talk.starts[-1].world_size == 1


def test_r14_a_second_drain_counts_who_still_has_to_leave_for_the_first():
    spec = role("a", min_replicas=2, max_replicas=2, drain_ns=60 * SECOND)
    talk = joined(spec, nodes=3, cpu=1)
    talk.auto = False  # the gang has not left its step yet: both replicas are where they were
    drain(talk, "node0")
    drain(talk, "node1")
    assert [node.is_leaving for node in talk.job.nodes.values()] == [True, False, False]
    assert talk.texts()[-1].startswith("drain node1 is refused: without it, ")


def test_r14_a_node_that_is_not_up_can_neither_be_drained_nor_taken_away():
    talk = two_of_three()
    talk.gone("node2")
    for name in ("node2", "node9"):
        drain(talk, name)
        assert talk.texts()[-1] == f"drain {name} is refused: no such node is up"
        assert preempt(talk, name, 60) == []


def test_r14_nothing_is_placed_on_a_leaving_node_until_the_operator_takes_it_back():
    talk = joined(trainers(1, 2), nodes=2, cpu=1)
    drain(talk, "node0")
    talk.wait(3600)
    assert seats(talk) == {"trainer/1": "node1"}
    talk.tell(ev.UncordonRequested("node0"))
    talk.wait(60)
    assert seats(talk) == {"trainer/0": "node0", "trainer/1": "node1"}


def test_r14_what_ends_under_a_notice_has_stopped_and_its_answer_is_not_awaited():
    talk = two_of_three(restart=None)
    drain(talk, "node0")
    talk.report(ev.StepTold, "trainer/0", 7)
    effects = talk.report(ev.ReplicaStopped, "trainer/1")
    assert orders(effects, StopAtStep) == [StopAtStep("node0", r("trainer/0"), 1, 8)]
    assert talk.attempts()["trainer/0"] == 1, "the others still have their step to reach"
    talk.report(ev.ReplicaLeftStep, "trainer/0")
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"} and talk.outcome()[0] is None


def test_r14_a_world_whose_last_member_has_ended_under_the_notice_waits_for_nobody():
    talk = two_of_three()
    preempt(talk, "node0", 60)
    talk.report(ev.ReplicaStopped, "trainer/0")
    assert talk.attempts()["trainer/1"] == 1
    talk.report(ev.ReplicaStopped, "trainer/1")
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"} and talk.now == 0


def test_r14_two_nodes_that_leave_at_the_same_time_are_one_incident():
    talk = joined(trainers(1, 3), nodes=3, cpu=1)
    assert len(orders(drain(talk, "node0"), AskStep)) == 3
    assert orders(drain(talk, "node1"), AskStep) == [], "nobody is asked twice"
    for name in ("trainer/0", "trainer/1", "trainer/2"):
        talk.report(ev.StepTold, name, 4)
    for name in ("trainer/0", "trainer/1", "trainer/2"):
        talk.report(ev.ReplicaLeftStep, name)
    assert len(talk.job.incidents) == 1 and seats(talk) == {"trainer/2": "node2"}


def test_r14_of_two_notices_the_shorter_one_counts():
    for first, second in ((60, 20), (20, 60)):
        talk = joined(trainers(1, 3), nodes=3, cpu=1)
        preempt(talk, "node0", first)
        preempt(talk, "node1", second)
        talk.wait(9.9)
        assert talk.world("trainer").generation == 1
        talk.wait(0.1)
        assert talk.world("trainer").generation == 2


def test_r14_a_node_that_is_being_drained_may_be_taken_away_sooner():
    talk = two_of_three(drain_ns=300 * SECOND)
    drain(talk, "node0")
    preempt(talk, "node0", 20)
    talk.wait(10)
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"}


def test_r9_a_drained_node_that_is_taken_away_after_all_counts_as_preempted():
    policy = RestartPolicy("role", max_restarts=1, rules=(Rule("fail", "preempted"),))
    talk = two_of_three(drain_ns=300 * SECOND, restart=policy)
    drain(talk, "node0")
    preempt(talk, "node0", 20)
    talk.wait(20)
    assert talk.outcome() == (
        "failed",
        'node0 is taken away in 20s; lost replicas: trainer/0; rule On("preempted") says fail',
    )


def test_r14_a_notice_that_is_said_again_changes_nothing_and_an_earlier_end_does():
    talk = two_of_three()
    preempt(talk, "node0", 300)
    talk.wait(10)
    assert preempt(talk, "node0", 290) == []
    talk.wait(100)
    assert talk.world("trainer").generation == 1
    preempt(talk, "node0", 20)
    talk.wait(20)
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"}


def test_r14_a_drained_node_is_not_preempted_because_another_one_is():
    talk = two_of_three(drain_ns=300 * SECOND)
    talk.join("node3")
    drain(talk, "node0")
    preempt(talk, "node1", 20)
    talk.wait(20)
    (incident,) = talk.job.incidents
    assert (incident.kind, incident.root, list(incident.lost)) == ("preempted", "node1", [r("trainer/1")])
    assert set(seats(talk).values()) <= {"node2", "node3"}


def test_r14_said_twice_a_drain_changes_nothing():
    talk = two_of_three()
    drain(talk, "node0")
    assert drain(talk, "node0") == []


def test_r14_a_failure_under_the_notice_re_forms_the_world_without_the_leaving_node():
    talk = two_of_three(restart=restart())
    drain(talk, "node0")
    talk.report(ev.StepTold, "trainer/0", 7)
    talk.fail("trainer/1")
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"}
    assert talk.world("trainer").notice is None and len(talk.job.incidents) == 1
    talk.wait(60)
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2}, "the drain is over with that"


def test_r14_late_answers_change_nothing():
    talk = two_of_three()
    assert talk.report(ev.StepTold, "trainer/0", 7) == [] and talk.report(ev.ReplicaLeftStep, "trainer/0") == []
    drain(talk, "node0")
    talk.report(ev.StepTold, "trainer/0", 7)
    assert talk.report(ev.StepTold, "trainer/0", 9) == []
    talk.report(ev.StepTold, "trainer/1", 7)
    assert talk.world("trainer").notice.stop_at == 8
    talk.wait(30)
    for event in (ev.StepTold(r("trainer/1"), 1, 9), ev.ReplicaLeftStep(r("trainer/1"), 1)):
        assert talk.tell(event) == []


def test_r14_replicas_without_a_gang_leave_one_by_one():
    actor = role("actor", min_replicas=3, max_replicas=3, restart=restart("replica"))
    talk = joined(actor, nodes=2, cpu=3)
    there = [name for name, node in seats(talk).items() if node == "node0"]
    asked = orders(drain(talk, "node0"), AskStep)
    assert [str(order.replica) for order in asked] == there and 0 < len(there) < 3
    for name in there:
        talk.report(ev.StepTold, name, None)
    assert set(seats(talk).values()) == {"node1"}
    assert [name for name, attempt in talk.attempts().items() if attempt == 2] == there


def test_r14_a_world_that_is_about_to_form_chooses_other_seats():
    talk = joined(trainers(1, 1), nodes=2, cpu=1, auto=False)
    assert talk.world("trainer").phase == "opening" and talk.replica("trainer/0").node == "node0"
    drain(talk, "node0")
    assert talk.world("trainer").phase == "opening" and talk.replica("trainer/0").node == "node1"
    assert talk.world("trainer").store_node == "node1"


def test_r14_a_world_that_waits_for_its_back_off_gives_only_the_seat_there_back():
    policy = RestartPolicy("role", max_restarts=5, backoff_ns=60 * SECOND)
    talk = two_of_three(restart=policy)
    talk.fail("trainer/0")
    talk.tell(ev.ReplicaExited(r("trainer/0"), 2, "signal", 139, "SEGV"))
    assert talk.world("trainer").phase == "waiting" and talk.replica("trainer/0").node == "node0"
    drain(talk, "node0")
    assert talk.replica("trainer/0").node is None and talk.replica("trainer/1").node == "node1"
    talk.wait(60)
    assert seats(talk) == {"trainer/0": "node2", "trainer/1": "node1"}


def test_r14_a_closing_world_is_not_asked_to_move():
    talk = two_of_three()
    talk.finish("trainer/0")
    assert orders(drain(talk, "node1"), AskStep) == []
    talk.wait(60)
    assert talk.attempts() == {"trainer/0": 1, "trainer/1": 1}
    talk.finish("trainer/1")
    assert talk.outcome()[0] == "succeeded"


@pytest.mark.parametrize("what", [drain, lambda talk, node: preempt(talk, node, 40)])
def test_r14_a_world_that_succeeds_under_the_notice_leaves_nothing_open(what):  # type: ignore[no-untyped-def]
    main = role("main")
    talk = joined(trainers(1, 1), main, nodes=3, cpu=1)
    what(talk, "node0")
    talk.finish("trainer/0")  # it was on its way when the node was told
    talk.wait(60)
    assert talk.job.incidents == [] and talk.world("trainer").notice is None
    talk.finish("main/0")
    assert talk.outcome()[0] == "succeeded"


def test_r14_a_member_that_succeeded_before_it_was_asked_is_not_waited_for():
    talk = two_of_three()
    drain(talk, "node0")
    talk.report(ev.StepTold, "trainer/1", 7)
    talk.finish("trainer/0")  # it was on its way when the node was told
    assert talk.world("trainer").notice.stop_at == 8
    talk.report(ev.ReplicaLeftStep, "trainer/1")
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2} and talk.now == 0


def test_r14_once_the_job_ends_nothing_leaves_any_more():
    talk = two_of_three()
    talk.auto = False
    talk.tell(ev.CancelRequested())
    drain(talk, "node0")
    assert talk.texts()[-1] == "drain node0 is refused: no such node is up"
    assert preempt(talk, "node0", 60) == []
    assert orders(talk.effects, AskStep) == []


def test_r18_an_answer_under_a_notice_opens_nothing_in_a_job_that_ends():
    service = role("a", kind="service")
    talk = joined(service, role("main"), nodes=3, cpu=1, auto=False)
    for world, name in (("a/0", "a/0"), ("main", "main/0")):
        talk.tell(ev.StoreOpened(world, 1, 1))
        talk.tell(ev.ReplicaStarted(r(name), 1))
    talk.tell(ev.DrainRequested(talk.replica("a/0").node))
    talk.fail("main/0")
    talk.tell(ev.StepTold(r("a/0"), 1, None))
    assert not talk.job.incidents
    talk.tell(ev.ReplicaStopped(r("a/0"), 1))
    assert talk.outcome()[0] == "failed"


def test_r14_a_deadline_that_an_earlier_one_has_made_void_does_not_come_after_it():
    ready = role("trainer", min_replicas=1, max_replicas=2, ready=TCP, ready_timeout_ns=29 * SECOND, restart=restart())
    talk = joined(ready, nodes=3, cpu=1, auto=False)
    talk.tell(ev.StoreOpened("trainer", 1, 1))
    for name in ("trainer/0", "trainer/1"):
        talk.tell(ev.ReplicaStarted(r(name), 1))
    talk.tell(ev.NodePreempted("node0", 40 * SECOND))  # with a grace of 10 s: it stops after 30 s
    talk.now = 31 * SECOND
    talk.tell(ev.TimePassed())
    assert [incident.kind for incident in talk.job.incidents] == ["unready"]
