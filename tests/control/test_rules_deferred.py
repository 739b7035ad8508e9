"""R7, R8, R10 for deferred failures that share an incident with others, or whose incident does not end as it began."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND, Gate, RestartPolicy, Rule
from tests.control.harness import Talk, joined, restart, role
from tests.control.test_rules_dead_nodes import BUDGET, RULE, gang, merged, stopped

ONCE = restart("replica", 1)


def served(trainer: RestartPolicy | None, ps: RestartPolicy = BUDGET, trainers: int = 2) -> Talk:
    """A server on node0, and trainers that depend on it, one a node. It is 100 s, and the agents do not answer."""
    server = role("ps", kind="service", restart=ps)
    gates = (Gate("ps", "started"),)
    clients = role("trainer", min_replicas=1, max_replicas=trainers, restart=trainer, gates=gates)
    talk = joined(server, clients, nodes=trainers + 1, cpu=1)
    talk.now, talk.auto = 100 * SECOND, False
    return talk


def failing_again(ps: RestartPolicy, trainer: RestartPolicy | None) -> Talk:
    """The server is started again when a trainer fails; while that failure is deferred, the server fails again."""
    talk = served(trainer, ps)
    talk.fail("ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    talk.fail("trainer/0")
    assert talk.job.incidents[0].is_open and talk.world("trainer").incident == 1
    talk.fail("ps/0")
    assert talk.job.incidents[0].result == "ps/0 failed again" and talk.job.ending is None
    return talk


@pytest.mark.parametrize("ps", [restart("replica"), restart("replica", 1, wider=restart("job"))])
def test_r8_a_deferred_failure_is_still_judged_when_the_restart_that_it_joined_fails_again(ps: RestartPolicy):
    """The second restart of the server stops the trainers too, or leaves them to an incident of their own."""
    talk = failing_again(ps, RULE)
    stopped(talk, "trainer/1")  # the node of the server has answered by the second failure
    assert talk.job.ending == "failed" and talk.job.ending_reason.startswith("trainer/0 failed on ")


@pytest.mark.parametrize("ps", [restart("replica"), restart("replica", 1, wider=restart("job"))])
def test_r8_a_deferred_failure_is_dropped_for_a_loss_though_the_restart_that_it_joined_fails_again(ps: RestartPolicy):
    talk = failing_again(ps, RULE)
    talk.gone(talk.replica("trainer/1").node)
    assert talk.job.ending is None
    talk.answer()
    talk.wait(2)
    assert talk.up() == ["ps/0", "trainer/0"] and talk.charges("trainer") == []


def test_r8_a_deferred_failure_is_dropped_when_the_failure_that_interrupts_its_incident_ends_the_job():
    talk = served(RULE, ONCE)
    talk.fail("ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    talk.fail("trainer/0")
    talk.fail("ps/0")
    assert talk.job.ending == "failed" and talk.suspects() == []


def test_r9_a_replica_that_is_ignored_when_its_restart_fails_again_is_not_restarted_with_what_had_joined():
    talk = failing_again(restart("replica", 1, then="ignore"), RULE)
    assert talk.job.incidents[-1].kind == "interrupted" and list(talk.job.incidents[-1].worlds) == ["trainer"]
    talk.gone(talk.replica("trainer/1").node)
    talk.answer()
    assert talk.world("ps/0").phase == "ended" and talk.attempts()["ps/0"] == 2


def test_r8_a_deferred_failure_of_a_replica_that_is_scaled_away_is_not_judged_when_its_incident_is_interrupted():
    ps, rule = role("ps", kind="service", restart=BUDGET), restart("replica", 3, rules=(Rule("fail", exit=1),))
    workers = role("worker", min_replicas=1, max_replicas=2, restart=rule, gates=(Gate("ps", "started"),))
    talk = joined(ps, workers, nodes=3, cpu=1)
    talk.auto = False
    talk.fail("ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    talk.fail("worker/1")
    assert talk.world("worker/1").incident == 1 and talk.job.ending is None
    talk.tell(ev.ScaleRequested("worker", 1))
    talk.fail("ps/0")
    talk.answer()
    talk.wait(3)
    assert talk.up() == ["ps/0", "worker/0"] and talk.job.incidents[0].result == "ps/0 failed again"


def test_r8_a_failure_is_judged_when_all_of_its_incident_is_gone_though_a_node_is_overdue_by_then():
    talk = gang(BUDGET)
    talk.fail("trainer/0")
    talk.wait(1)
    talk.tell(ev.NodeSuspected("node1"))
    assert talk.charges_in_the_end("trainer") == [100]
    stopped(talk, "trainer/1")
    assert talk.world("trainer").phase == "opening" and talk.world("trainer").incident == 1
    talk.gone("node1")
    assert "incident 1 was caused by the loss of node1: not counted" not in talk.texts()
    assert talk.charges_in_the_end("trainer") == [100]


def test_r8_of_two_failures_the_one_that_a_lost_node_cannot_have_caused_is_still_judged():
    talk = merged()
    talk.gone(talk.replica("main/1").node)
    assert talk.job.ending is None and talk.job.roles["helper"].outcome is None
    assert "incident 2 was caused by the loss of node3: not counted" in talk.texts()
    stopped(talk, "helper/1")
    assert talk.job.roles["helper"].outcome == "ignored" and talk.job.ending is None
    talk.answer()
    assert talk.up() == ["main/0", "main/1", "wide/0"]


@pytest.mark.parametrize(("judged_s", "waits_s"), [(0.5, 1), (1.6, 0)])
def test_r10_a_back_off_counts_from_the_failure_not_from_its_judgement(judged_s: float, waits_s: float):
    talk = gang(restart("role", 3, backoff_ns=3 * SECOND // 2))
    talk.auto = True
    talk.fail("trainer/0")
    talk.auto = False
    talk.fail("trainer/0")
    talk.wait(judged_s)
    stopped(talk, "trainer/1")
    assert (talk.world("trainer").phase == "opening") == (not waits_s)
    says = ["after a back-off" in text for text in talk.texts() if text.startswith("incident 2: restart 2 of 3")]
    assert says == ([True] if waits_s else [])
    talk.wait(waits_s)
    assert talk.world("trainer").phase == "opening"


@pytest.mark.parametrize("is_lost", [True, False])
def test_r7_what_an_upstream_excuses_leaves_a_failure_that_a_rule_ends_to_be_judged(is_lost: bool):
    talk = served(restart("role", 3, rules=(Rule("fail", exit=2),)), trainers=3)
    talk.fail("trainer/0")
    talk.fail("trainer/2", code=2)
    talk.fail("ps/0")
    assert "incident 1 was caused by ps/0: not counted" in talk.texts() and talk.job.ending is None
    if is_lost:
        talk.gone(talk.replica("trainer/1").node)
        assert talk.charges_in_the_end("trainer") == [] and talk.charges_in_the_end("ps") == [100]
    else:
        stopped(talk, "trainer/1")
        talk.wait(2)
        assert talk.job.ending_reason.startswith("trainer/2 failed on ")


def test_r16_who_was_told_to_stop_costs_nothing_though_its_judgement_waits_for_that_of_another():
    """The helper, if its peer is not lost, is ignored. Until that is known, main has failed in the same incident."""
    helper_policy = restart("role", 3, rules=(Rule("ignore", exit=1),))
    helper = role("helper", min_replicas=2, max_replicas=2, restart=helper_policy, primary=False)
    talk = joined(helper, role("main"), role("wide", restart=restart("job")), nodes=4, cpu=1)
    talk.auto = False
    talk.fail("helper/0")
    talk.fail("wide/0")
    assert talk.replica("main/0").phase == "stopping"
    talk.fail("main/0")
    stopped(talk, "helper/1")
    assert talk.job.roles["helper"].outcome == "ignored" and talk.job.ending is None
    talk.answer()
    assert talk.up() == ["main/0", "wide/0"] and talk.charges("main") == []
