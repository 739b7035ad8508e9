"""R7-R11: what a failure means, who pays for it, and what comes when the budget is used up."""

from __future__ import annotations

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StopReplica
from flowdist.graph import MINUTE, SECOND, Domain, Gate, RestartPolicy, Rule
from tests.control.harness import TCP, Talk, graph, joined, r, restart, role
from tests.control.test_rules_recovery import ps_and_trainers, trainers


def test_r7_one_charge_for_one_incident_however_many_fail():
    talk = joined(trainers(4, 4))
    talk.auto = False
    for i in range(4):
        talk.fail(f"trainer/{i}")
    talk.tell(ev.StoreOpened("trainer", 2, 1))
    for i in range(4):
        assert talk.job.roles["trainer"].charges == []
        talk.tell(ev.ReplicaStarted(r(f"trainer/{i}"), 2))
    assert talk.job.roles["trainer"].charges == [(0, 0)]


def test_r7_a_failure_inside_an_incident_is_still_judged():
    rules = (Rule("fail", exit=2),)
    talk = joined(trainers(restart=restart("role", 3, rules=rules)))
    talk.auto = False
    talk.fail("trainer/0", 1)
    talk.fail("trainer/1", 2)
    assert talk.outcome()[0] == "failed"


def test_r7_the_dependents_failure_right_after_its_upstreams_is_not_charged_to_it():
    talk = ps_and_trainers("reconnect")
    talk.fail("ps/0")
    talk.wait(1.5)
    talk.fail("trainer/0")
    assert talk.attempts()["trainer/0"] == 2
    assert talk.job.roles["trainer"].charges == [] and len(talk.job.roles["ps"].charges) == 1
    talk.wait(10)
    talk.fail("trainer/0")
    assert len(talk.job.roles["trainer"].charges) == 1


def test_r7_an_attempt_that_started_after_its_upstreams_failure_has_no_excuse():
    talk = ps_and_trainers("restart")
    talk.now = SECOND
    talk.fail("ps/0")
    talk.now += SECOND // 10
    talk.fail("trainer/0")
    assert len(talk.job.roles["trainer"].charges) == 1


def test_r7_also_when_the_dependents_failure_is_reported_first():
    talk = ps_and_trainers("reconnect")
    talk.fail("trainer/0")
    assert len(talk.job.roles["trainer"].charges) == 1
    talk.wait(0.5)
    talk.fail("ps/0")
    assert talk.job.roles["trainer"].charges == [] and len(talk.job.roles["ps"].charges) == 1


def test_r7_a_used_up_budget_waits_a_moment_for_the_upstream_to_take_the_blame():
    talk = ps_and_trainers("reconnect", restart=restart("role", 0))
    talk.fail("trainer/0")
    talk.wait(1)
    talk.fail("ps/0")
    talk.wait(10)
    assert talk.outcome()[0] is None and talk.attempts()["trainer/0"] == 2
    talk.fail("trainer/0")
    talk.wait(1.9)
    assert talk.outcome()[0] is None
    talk.wait(0.1)
    outcome, reason = talk.outcome()
    assert outcome == "failed" and "trainer has used up its budget" in reason


def test_r6_a_service_that_has_just_restarted_is_not_stopped_again_because_its_callers_fail():
    talk = ps_and_trainers("reconnect")
    talk.auto = False
    talk.fail("ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 2, (("rpc", 4000),)))
    effects = talk.fail("trainer/0")
    assert {stop.replica.role for stop in effects if isinstance(stop, StopReplica)} == {"trainer"}
    assert talk.job.incidents[1].counted is False
    assert "(caused by incident 1 (ps/0), not counted)" in talk.texts()[-1]
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    talk.auto = True
    talk.tell(ev.ReplicaReady(r("ps/0"), 2))
    talk.tell(ev.StoreOpened("trainer", 2, 1))
    assert talk.up() == ["ps/0", "ps/1", "trainer/0", "trainer/1"] and talk.attempts()["ps/0"] == 2
    assert not talk.job.open and [len(talk.charges(name)) for name in ("ps", "trainer")] == [1, 0]


def test_r7_what_an_incident_has_caused_goes_on_when_its_restart_fails_again():
    talk = ps_and_trainers("reconnect")
    talk.auto = False
    talk.fail("ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 2, (("rpc", 4000),)))
    talk.fail("trainer/0")  # caused by the incident, which has begun to start
    assert talk.world("trainer").phase == "stopping" and talk.world("trainer").incident == 2
    talk.fail("ps/0")
    assert talk.job.incidents[0].result == "ps/0 failed again"
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    talk.auto = True
    talk.wait(5)
    for start in ("ps/0", "trainer"):
        if talk.world(start).phase == "opening":
            talk.tell(ev.StoreOpened(start, talk.world(start).generation, 1))
    talk.wait(5)
    assert talk.up() == ["ps/0", "ps/1", "trainer/0", "trainer/1"]


def test_r7_a_restart_that_fails_again_is_charged_again():
    talk = joined(trainers(1, 1, restart=restart("role", 2), ready=TCP), auto=False)
    for attempt in (1, 2, 3):
        talk.tell(ev.StoreOpened("trainer", attempt, 1))
        talk.tell(ev.ReplicaStarted(r("trainer/0"), attempt))
        talk.fail("trainer/0")  # never ready
        talk.wait(60)
    assert talk.outcome()[0] == "failed" and len(talk.job.roles["trainer"].charges) == 2


def test_r8_a_lost_node_burns_no_budget_and_needs_no_policy():
    talk = joined(trainers(1, 2, restart=None), nodes=2, cpu=1)
    talk.gone("node1")
    assert talk.up() == ["trainer/0"] and talk.outcome()[0] is None


def test_r8_a_rule_may_count_lost_nodes():
    rules = (Rule("restart", kind="node_lost"),)
    talk = joined(trainers(1, 1, restart=restart("role", 1, rules=rules)), nodes=3, cpu=1)
    talk.gone("node0")
    assert len(talk.job.roles["trainer"].charges) == 1 and talk.up() == ["trainer/0"]
    talk.gone("node1")
    outcome, reason = talk.outcome()
    assert outcome == "failed" and "used up its budget of 1 restart" in reason


def test_r8_free_incidents_without_progress_between_them_are_limited():
    talk = joined(trainers(1, 1, restart=None), nodes=2, cpu=1)
    for _ in range(5):
        name = talk.replica("trainer/0").node
        talk.gone(name)
        talk.join(name)
        talk.wait(1)
    assert talk.outcome()[0] is None
    talk.gone(talk.replica("trainer/0").node)
    outcome, reason = talk.outcome()
    assert outcome == "failed" and "6 changes of membership of trainer in a row" in reason


def test_r8_progress_or_health_between_them_starts_the_row_anew():
    for heal in ("progress", "health"):
        talk = joined(trainers(1, 1, restart=None), nodes=2, cpu=1)
        for step in range(8):
            if heal == "progress":
                talk.report(ev.ReplicaProgressed, "trainer/0", step)
            else:
                talk.wait(60)
            name = talk.replica("trainer/0").node
            talk.gone(name)
            talk.join(name)
        assert talk.outcome()[0] is None, heal


def test_r9_the_first_rule_that_matches_decides():
    rules = (Rule("ignore", exit=3), Rule("fail", kind="exit"), Rule("restart", kind="signal", counted=False))
    policy = restart("replica", 1, rules=rules)
    talk = joined(role("actor", min_replicas=1, max_replicas=3, restart=policy))
    talk.fail("actor/2", 3)
    assert talk.replica("actor/2").phase == "ended" and talk.up() == ["actor/0", "actor/1"]
    for _ in range(3):
        attempt = talk.replica("actor/1").attempt
        talk.tell(ev.ReplicaExited(r("actor/1"), attempt, "signal", 139, "SEGV"))
    assert talk.attempts()["actor/1"] == 4 and talk.job.roles["actor"].charges == []
    talk.fail("actor/0", 4)
    outcome, reason = talk.outcome()
    assert outcome == "failed" and 'rule On("exit") says fail' in reason


def test_r9_an_ignored_replica_is_ended_not_succeeded():
    policy = restart("replica", 0, then="ignore")
    talk = joined(role("actor", min_replicas=1, max_replicas=2, restart=policy))
    talk.fail("actor/0")
    assert talk.outcome()[0] is None
    talk.finish("actor/1")
    assert talk.outcome()[0] == "succeeded" and talk.replica("actor/0").phase == "ended"


def test_r9_ignoring_below_the_minimum_fails_the_job():
    policy = restart("replica", 0, then="ignore")
    talk = joined(role("actor", min_replicas=2, max_replicas=2, restart=policy))
    talk.fail("actor/0")
    assert talk.outcome()[0] == "failed"


def test_r10_back_off_doubles_up_to_its_cap_and_starts_anew_after_health():
    policy = RestartPolicy(
        "role", max_restarts=99, backoff_ns=SECOND, backoff_max_ns=4 * SECOND, backoff_reset_ns=MINUTE
    )
    talk = joined(trainers(1, 1, restart=policy))
    waits = []
    for _ in range(5):
        talk.fail("trainer/0")
        started = talk.now
        while not talk.replica("trainer/0").is_up:
            talk.wait(1)
        waits.append((talk.now - started) // SECOND)
    assert waits == [0, 1, 2, 4, 4]
    talk.wait(60)
    talk.fail("trainer/0")
    assert talk.replica("trainer/0").is_up


def backing_off() -> Talk:
    """Return a job whose actor has failed twice, and waits for a minute until it restarts."""
    ps = role("ps", kind="service", restart=restart("replica"))
    learner = role("learner", min_replicas=1, max_replicas=2, restart=restart())
    policy = RestartPolicy("role", max_restarts=9, backoff_ns=MINUTE)
    gates = (Gate("ps", "started", "reconnect"), Gate("learner", "started", "restart"))
    actor = role("actor", primary=False, restart=policy, gates=gates)
    talk = Talk(graph(ps, learner, actor, nodes=2, cpu=3))
    talk.join("node0")
    talk.wait(600)
    talk.fail("actor/0")
    talk.fail("actor/0")
    assert not talk.replica("actor/0").is_up
    return talk


def test_r10_an_incident_that_takes_in_another_one_waits_for_its_back_off_too():
    talk = backing_off()
    talk.wait(10)
    talk.fail("learner/0")
    assert len(talk.job.incidents) == 3 and talk.job.incidents[-1].backoff_ns == 50 * SECOND
    talk.wait(49)
    assert talk.up() == ["ps/0"]
    talk.wait(1)
    assert talk.replica("actor/0").is_up and talk.replica("learner/0").is_up


def test_r13_growth_waits_for_the_back_off_of_what_restarts_with_it():
    talk = backing_off()
    talk.wait(10)
    talk.join("node1")
    talk.wait(49)
    assert sorted(talk.up()) == ["learner/0", "ps/0"] and len(talk.job.incidents) == 2
    talk.wait(1)
    assert sorted(talk.up()) == ["actor/0", "learner/0", "learner/1", "ps/0"]


def test_r7_a_back_off_ends_with_its_charge_wherever_it_was_taken_over():
    talk = backing_off()
    talk.tell(ev.StoreLost("learner", 1))
    assert len(talk.job.incidents) == 3 and talk.world("learner").incident == talk.world("actor").incident == 3
    talk.fail("ps/0")
    assert "incident 2 was caused by ps/0: not counted" in talk.texts()
    assert talk.replica("actor/0").is_up


def test_r10_free_incidents_know_no_back_off():
    talk = joined(trainers(1, 1), nodes=2, cpu=1)
    talk.fail("trainer/0")
    for name in ("node0", "node1"):
        talk.gone(name)
        talk.join(name)
        assert talk.replica("trainer/0").is_up


def test_r11_a_used_up_budget_fails_the_job_with_its_cause():
    talk = joined(trainers(restart=restart("role", 1)))
    talk.fail("trainer/0")
    talk.fail("trainer/1", 7)
    outcome, reason = talk.outcome()
    assert outcome == "failed"
    assert reason == ("trainer/1 failed on node0: exit code 7; role trainer has used up its budget of 1 restart")


def test_r11_a_budget_with_a_window_forgets_what_is_older():
    talk = joined(trainers(1, 1, restart=restart("role", 2, within_ns=MINUTE, backoff_ns=0)))
    for _ in range(6):
        talk.fail("trainer/0")
        talk.wait(31)
    assert talk.outcome()[0] is None
    talk.fail("trainer/0")
    talk.wait(20)
    talk.fail("trainer/0")
    assert talk.outcome()[0] == "failed"


def test_r11_then_ignore_ends_an_auxiliary_role_and_nothing_else():
    aux = role(
        "evaluator", primary=False, gates=(Gate("trainer", "started"),), restart=restart("role", 1, then="ignore")
    )
    talk = joined(trainers(), aux)
    talk.fail("evaluator/0")
    talk.wait(10)
    talk.fail("evaluator/0")
    talk.wait(10)
    assert talk.job.roles["evaluator"].outcome == "ignored" and talk.up() == ["trainer/0", "trainer/1"]


def test_no_policy_means_that_a_failure_fails_the_job():
    talk = joined(trainers(restart=None))
    talk.fail("trainer/1")
    assert talk.outcome() == (
        "failed",
        "trainer/1 failed on node0: exit code 1; role trainer has no restart policy",
    )


WIDER = restart("job", 1, backoff_ns=0)


def two_roles(policy: RestartPolicy, **fields: object) -> Talk:
    return joined(trainers(restart=policy, **fields), role("reader", restart=restart()))


def test_r11_after_a_used_up_budget_a_wider_scope_restarts_with_a_budget_of_its_own():
    talk = two_roles(restart("role", 1, then="widen", wider=WIDER))
    talk.fail("trainer/0")
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2, "reader/0": 1}
    talk.fail("trainer/0")
    assert talk.attempts() == {"trainer/0": 3, "trainer/1": 3, "reader/0": 2}
    assert any("(restart 1 of 1 of the job)" in text for text in talk.texts())
    assert [charge.level for charge in talk.job.roles["trainer"].charges] == [0, 1]
    assert talk.job.roles["reader"].charges == []


def test_r11_what_is_used_up_at_last_is_the_widest_budget():
    talk = two_roles(restart("role", 1, then="widen", wider=WIDER))
    for _ in range(3):
        assert talk.outcome()[0] is None
        talk.fail("trainer/0", 7)
    assert talk.outcome() == (
        "failed",
        "trainer/0 failed on node0: exit code 7; role trainer has used up its budget of 1 restart of the job",
    )


def test_r11_it_may_be_widened_again_and_again():
    wider = restart("role", 1, then="widen", wider=WIDER, backoff_ns=0)
    actor = role("actor", min_replicas=2, max_replicas=2, restart=restart("replica", 1, then="widen", wider=wider))
    talk = joined(actor, role("reader", restart=restart()))
    seen = []
    for _ in range(3):
        talk.fail("actor/0")
        seen.append(talk.attempts())
    assert seen == [
        {"actor/0": 2, "actor/1": 1, "reader/0": 1},
        {"actor/0": 3, "actor/1": 2, "reader/0": 1},
        {"actor/0": 4, "actor/1": 3, "reader/0": 2},
    ]


def test_r11_a_narrow_budget_that_its_window_has_renewed_is_used_again():
    talk = two_roles(restart("role", 1, within_ns=MINUTE, backoff_ns=0, then="widen", wider=WIDER))
    talk.fail("trainer/0")
    talk.fail("trainer/0")
    talk.wait(61)
    talk.fail("trainer/0")
    assert talk.attempts() == {"trainer/0": 4, "trainer/1": 4, "reader/0": 2}
    assert [charge.level for charge in talk.job.roles["trainer"].charges] == [0, 1, 0]


def test_r11_a_wider_scope_without_budget_left_may_be_ignored():
    wider = restart("role", 0, then="ignore")
    aux = role("evaluator", primary=False, restart=restart("role", 1, then="widen", wider=wider))
    talk = joined(trainers(), aux)
    talk.fail("evaluator/0")
    talk.fail("evaluator/0")
    assert talk.job.roles["evaluator"].outcome == "ignored" and talk.up() == ["trainer/0", "trainer/1"]


def test_r11_the_wider_policy_has_its_own_back_off():
    wider = restart("job", 2, backoff_ns=20 * SECOND)
    talk = two_roles(restart("role", 1, then="widen", wider=wider, backoff_ns=SECOND))
    talk.fail("trainer/0")
    talk.fail("trainer/0")
    assert "after a back-off of 20s (restart 1 of 2 of the job)" in talk.texts()[-1]
    talk.wait(19.9)
    assert talk.up() == []
    talk.wait(0.1)
    assert talk.up() == ["trainer/0", "trainer/1", "reader/0"]


def test_r11_a_charge_of_the_wider_budget_is_taken_back_from_it():
    wider = restart("domain", 1, backoff_ns=0)
    policy = restart("role", 0, then="widen", wider=wider)
    ps = role("ps", kind="service", restart=restart("replica"))
    late = trainers(gates=(Gate("ps", "started"),), restart=policy)
    talk = joined(ps, late, role("reader"), domains=(Domain("core", ("trainer", "reader")),))
    talk.fail("trainer/0")
    assert [charge.level for charge in talk.job.roles["trainer"].charges] == [1]
    assert talk.attempts() == {"ps/0": 1, "trainer/0": 2, "trainer/1": 2, "reader/0": 2}
    talk.wait(0.5)
    talk.fail("ps/0")
    assert talk.job.roles["trainer"].charges == []


def test_r9_a_lost_node_may_be_ignored_by_rule():
    policy = restart("replica", 1, rules=(Rule("ignore", kind="node_lost"),))
    actor = role("actor", min_replicas=1, max_replicas=2, primary=False, restart=policy)
    talk = joined(role("trainer"), actor, nodes=3, cpu=1)
    talk.gone("node1")
    assert talk.replica("actor/0").phase == "ended" and talk.job.incidents == []
    says = 'node1 lost (its agent died); lost replicas: actor/0; ignored: rule On("node_lost") says ignore'
    assert says in talk.texts()
    assert talk.job.roles["actor"].outcome is None, "one of it still runs"
    talk.gone("node2")
    assert talk.job.roles["actor"].outcome == "ignored" and talk.up() == ["trainer/0"]
    talk.join("node1")
    talk.wait(3600)
    assert talk.up() == ["trainer/0"]


def test_r9_below_its_minimum_an_auxiliary_role_goes_on_with_what_is_left():
    policy = restart("replica", 0, then="ignore")
    actor = role("actor", min_replicas=2, max_replicas=2, primary=False, restart=policy)
    talk = joined(role("trainer"), actor)
    talk.fail("actor/0")
    assert talk.up() == ["trainer/0", "actor/1"] and talk.job.roles["actor"].outcome is None


def test_r9_an_incident_whose_last_world_is_ignored_is_over():
    rules = (Rule("ignore", exit=3),)
    aux = role("aux", primary=False, min_replicas=2, max_replicas=2, restart=restart("role", 2, rules=rules))
    talk = joined(trainers(), aux)
    talk.auto = False
    talk.fail("aux/0")
    talk.fail("aux/1", 3)
    assert not talk.job.open and talk.world("aux").phase == "ended"
    assert talk.job.roles["aux"].outcome == "ignored" and talk.up() == ["trainer/0", "trainer/1"]


def test_r9_who_is_ignored_leaves_the_incident_to_the_others():
    rules = (Rule("ignore", exit=3),)
    policy = restart("role", 2, rules=rules)
    actor = role("actor", min_replicas=1, max_replicas=2, primary=False, gang=False, restart=policy)
    talk = joined(role("trainer"), actor)
    talk.auto = False
    talk.fail("actor/0")
    talk.fail("actor/1", 3)
    (incident,) = talk.job.incidents
    assert list(incident.worlds) == ["actor/0"] and talk.world("actor/1").phase == "ended"
    talk.auto = True
    talk.tell(ev.StoreOpened("actor/0", 2, 29400))
    talk.tell(ev.ReplicaStarted(r("actor/0"), 2))
    assert talk.up() == ["trainer/0", "actor/0"] and incident.result == "re-formed"


def test_r5_without_a_gang_the_scope_may_still_be_the_role():
    actor = role("actor", min_replicas=3, max_replicas=3, gang=False, restart=restart("role"))
    talk = joined(actor)
    talk.fail("actor/1")
    assert talk.attempts() == {"actor/0": 2, "actor/1": 2, "actor/2": 2}
    assert len(talk.job.roles["actor"].charges) == 1


def test_r9_an_ignored_replica_takes_no_seat_from_one_that_was_scaled_away():
    policy = restart("replica", 3, rules=(Rule("ignore", kind="signal"),))
    talk = joined(role("actor", min_replicas=1, max_replicas=2, restart=policy))
    talk.tell(ev.ScaleRequested("actor", 1))
    talk.tell(ev.ReplicaExited(r("actor/0"), 1, "signal", signal="KILL"))
    assert talk.up() == ["actor/1"]
    talk.finish("actor/1")
    assert talk.outcome()[0] == "succeeded"
