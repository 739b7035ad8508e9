"""R5-R11, R16, R18-R20: what restarts with what, who pays, and how it ends."""

from __future__ import annotations

from flowdist.control import events as ev
from flowdist.control.effects import AnswerCheckpoint, FinishJob, StartReplica, StopReplica
from flowdist.control.liveness import Liveness
from flowdist.graph import MINUTE, SECOND, Domain, Gate, RestartPolicy, Rule
from tests.control.harness import TCP, Talk, graph, r, restart, role


def trainers(low: int = 2, high: int = 2, **fields: object):  # type: ignore[no-untyped-def]
    fields.setdefault("restart", restart())
    return role("trainer", min_replicas=low, max_replicas=high, **fields)


def ps_and_trainers(on_restart: str, **fields: object) -> Talk:
    ps = role(
        "ps", kind="service", min_replicas=2, max_replicas=2, ports=("rpc",), ready=TCP, restart=restart("replica")
    )
    talk = Talk(graph(ps, trainers(gates=(Gate("ps", "ready", on_restart),), **fields)))  # type: ignore[arg-type]
    talk.join("node0")
    return talk


def test_r5_an_edge_with_reconnect_keeps_the_dependent_running():
    talk = ps_and_trainers("reconnect")
    talk.fail("ps/1")
    assert talk.attempts() == {"ps/0": 1, "ps/1": 2, "trainer/0": 1, "trainer/1": 1}


def test_r5_an_edge_with_restart_restarts_the_dependent_after_the_upstream():
    talk = ps_and_trainers("restart")
    talk.fail("ps/1")
    assert talk.attempts() == {"ps/0": 1, "ps/1": 2, "trainer/0": 2, "trainer/1": 2}
    assert [str(start.replica) for start in talk.starts[-3:]] == ["ps/1", "trainer/0", "trainer/1"]


def test_r5_a_domain_restarts_together_and_edges_in_a_circle_end():
    a, b = role("a", restart=restart("role")), role("b", gates=(Gate("a", "started", "restart"),))
    other = role("other", restart=restart("replica"), gang=False, max_replicas=1)
    talk = Talk(graph(a, b, other, domains=(Domain("core", ("a", "b")),)))
    talk.join("node0")
    talk.fail("a/0")
    assert talk.attempts() == {"a/0": 2, "b/0": 2, "other/0": 1}


def test_r5_job_scope_restarts_every_role():
    talk = Talk(graph(role("a"), role("b", restart=restart("job")), role("c")))
    talk.join("node0")
    talk.fail("b/0")
    assert talk.attempts() == {"a/0": 2, "b/0": 2, "c/0": 2}


def test_r5_what_has_not_restarted_passes_nothing_on():
    a = role("a", kind="service", restart=restart("replica"))
    b = role("b", gates=(Gate("a", "started", "restart"),))
    c = role("c", gates=(Gate("b", "succeeded", "restart"),))
    talk = Talk(graph(a, b, c))
    talk.join("node0")
    talk.finish("b/0")
    talk.fail("a/0")
    assert talk.attempts() == {"a/0": 2, "b/0": 1, "c/0": 1}


def test_r5_a_dependent_with_the_address_in_its_command_restarts_when_the_address_changes():
    ps = role("ps", kind="service", ports=("rpc",), ready=TCP, restart=restart("replica"))
    gate = (Gate("ps", "ready", "reconnect"),)
    baked = role("baked", gates=gate, address_edges=("ps",))
    told = role("told", gates=gate)
    talk = Talk(graph(ps, baked, told))
    talk.auto = False
    talk.join("node0")

    def start(world: str, generation: int, name: str, attempt: int, port: int) -> list[object]:
        talk.tell(ev.StoreOpened(world, generation, 1))
        effects = talk.tell(ev.ReplicaStarted(r(name), attempt, (("rpc", port),)))
        return [*effects, *talk.tell(ev.ReplicaReady(r(name), attempt))]

    start("ps/0", 1, "ps/0", 1, 4000)
    start("baked", 1, "baked/0", 1, 0)
    start("told", 1, "told/0", 1, 0)
    talk.fail("ps/0")
    effects = start("ps/0", 2, "ps/0", 2, 5000)
    kinds = {type(e).__name__: str(e.replica) for e in effects if hasattr(e, "replica")}  # type: ignore[attr-defined]
    assert kinds == {"StopReplica": "baked/0", "TellPeers": "told/0"}


def test_r6_all_of_the_set_is_gone_before_anything_of_it_starts_again():
    talk = Talk(graph(trainers()), auto=False)
    talk.join("node0")
    talk.tell(ev.StoreOpened("trainer", 1, 1))
    for name in ("trainer/0", "trainer/1"):
        talk.tell(ev.ReplicaStarted(r(name), 1))
    effects = talk.fail("trainer/0")
    assert [e for e in effects if not hasattr(e, "text")] == [StopReplica("node0", r("trainer/1"), 1, 2 * SECOND)]
    assert talk.world("trainer").phase == "stopping"
    talk.wait(10)
    assert talk.world("trainer").generation == 1
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    assert talk.world("trainer").generation == 2


def test_r6_the_upstream_does_not_start_while_a_dependent_of_its_set_still_runs():
    talk = ps_and_trainers("restart")
    talk.auto = False
    talk.fail("ps/0")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    assert talk.world("ps/0").generation == 1
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    assert talk.world("ps/0").generation == 2


def test_r6_all_are_signalled_at_once_dependents_first():
    talk = ps_and_trainers("restart")
    talk.auto = False
    effects = talk.fail("ps/0")
    assert [str(e.replica) for e in effects if isinstance(e, StopReplica)] == ["trainer/0", "trainer/1"]


def test_r6_a_node_with_a_worker_that_outlives_sigkill_is_lost_and_its_gpus_stay_taken():
    talk = Talk(graph(trainers(1, 2, restart=restart()), nodes=2, cpu=1))
    talk.join("node0", "node1")
    talk.auto = False
    talk.fail("trainer/0")
    talk.tell(ev.ReplicaUnkillable(r("trainer/1"), 1))
    assert not talk.job.nodes["node1"].usable and talk.job.nodes["node1"].stuck == {r("trainer/1"): ()}
    assert [str(m) for m in talk.world("trainer").members] == ["trainer/0"]
    talk.join("node1")
    assert talk.job.nodes["node1"].stuck == {r("trainer/1"): ()}


def test_r6_neighbours_of_an_unkillable_worker_are_dead_before_they_are_replaced():
    talk = Talk(graph(trainers(), role("b")))
    talk.join("node0")
    talk.join("node1")
    talk.auto = False
    talk.fail("trainer/0")
    effects = talk.tell(ev.ReplicaUnkillable(r("trainer/1"), 1))
    assert StopReplica("node0", r("b/0"), 1, 0) in effects
    assert talk.replica("b/0").phase == "stopping" and talk.world("b").generation == 1
    talk.tell(ev.ReplicaStopped(r("b/0"), 1))
    assert talk.world("b").generation == 2 and talk.replica("b/0").node == "node1"


def test_r7_one_charge_for_one_incident_however_many_fail():
    talk = Talk(graph(trainers(4, 4)), auto=False)
    talk.join("node0")
    talk.tell(ev.StoreOpened("trainer", 1, 1))
    for i in range(4):
        talk.tell(ev.ReplicaStarted(r(f"trainer/{i}"), 1))
    for i in range(4):
        talk.fail(f"trainer/{i}")
    talk.tell(ev.StoreOpened("trainer", 2, 1))
    for i in range(4):
        assert talk.job.roles["trainer"].charges == []
        talk.tell(ev.ReplicaStarted(r(f"trainer/{i}"), 2))
    assert talk.job.roles["trainer"].charges == [(0, 0)]


def test_r7_a_failure_inside_an_incident_is_still_judged():
    rules = (Rule("fail", exit=2),)
    talk = Talk(graph(trainers(restart=restart("role", 3, rules=rules))), auto=False)
    talk.join("node0")
    talk.tell(ev.StoreOpened("trainer", 1, 1))
    for i in range(2):
        talk.tell(ev.ReplicaStarted(r(f"trainer/{i}"), 1))
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


def test_r7_what_joined_an_incident_goes_on_when_its_restart_fails_again():
    talk = ps_and_trainers("reconnect")
    talk.auto = False
    talk.fail("ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 2, (("rpc", 4000),)))
    talk.fail("trainer/0")  # part of the incident, which has begun to start
    assert talk.world("trainer").phase == "stopping" and talk.world("trainer").incident == 1
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
    talk = Talk(graph(trainers(1, 1, restart=restart("role", 2), ready=TCP)), auto=False)
    talk.join("node0")
    for attempt in (1, 2, 3):
        talk.tell(ev.StoreOpened("trainer", attempt, 1))
        talk.tell(ev.ReplicaStarted(r("trainer/0"), attempt))
        talk.fail("trainer/0")  # never ready
        talk.wait(60)
    assert talk.outcome()[0] == "failed" and len(talk.job.roles["trainer"].charges) == 2


def test_r8_a_lost_node_burns_no_budget_and_needs_no_policy():
    talk = Talk(graph(trainers(1, 2, restart=None), nodes=2, cpu=1))
    talk.join("node0", "node1")
    talk.gone("node1")
    assert talk.up() == ["trainer/0"] and talk.outcome()[0] is None


def test_r8_a_rule_may_count_lost_nodes():
    rules = (Rule("restart", kind="node_lost"),)
    talk = Talk(graph(trainers(1, 1, restart=restart("role", 1, rules=rules)), nodes=3, cpu=1))
    talk.join("node0", "node1", "node2")
    talk.gone("node0")
    assert len(talk.job.roles["trainer"].charges) == 1 and talk.up() == ["trainer/0"]
    talk.gone("node1")
    outcome, reason = talk.outcome()
    assert outcome == "failed" and "used up its budget of 1 restart" in reason


def test_r8_free_incidents_without_progress_between_them_are_limited():
    talk = Talk(graph(trainers(1, 1, restart=None), nodes=2, cpu=1))
    talk.join("node0", "node1")
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
        talk = Talk(graph(trainers(1, 1, restart=None), nodes=2, cpu=1))
        talk.join("node0", "node1")
        for step in range(8):
            if heal == "progress":
                talk.tell(ev.ReplicaProgressed(r("trainer/0"), talk.replica("trainer/0").attempt, step))
            else:
                talk.wait(60)
            name = talk.replica("trainer/0").node
            talk.gone(name)
            talk.join(name)
        assert talk.outcome()[0] is None, heal


def test_r9_an_ignored_replica_takes_no_seat_from_one_that_was_scaled_away():
    policy = restart("replica", 3, rules=(Rule("ignore", kind="signal"),))
    talk = Talk(graph(role("actor", min_replicas=1, max_replicas=2, restart=policy)))
    talk.join("node0")
    talk.tell(ev.ScaleRequested("actor", 1))
    talk.tell(ev.ReplicaExited(r("actor/0"), 1, "signal", signal="KILL"))
    assert talk.up() == ["actor/1"]
    talk.finish("actor/1")
    assert talk.outcome()[0] == "succeeded"


def test_r9_the_first_rule_that_matches_decides():
    rules = (Rule("ignore", exit=3), Rule("fail", kind="exit"), Rule("restart", kind="signal", counted=False))
    policy = restart("replica", 1, rules=rules)
    talk = Talk(graph(role("actor", min_replicas=1, max_replicas=3, restart=policy)))
    talk.join("node0")
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
    talk = Talk(graph(role("actor", min_replicas=1, max_replicas=2, restart=policy)))
    talk.join("node0")
    talk.fail("actor/0")
    assert talk.outcome()[0] is None
    talk.finish("actor/1")
    assert talk.outcome()[0] == "succeeded" and talk.replica("actor/0").phase == "ended"


def test_r9_ignoring_below_the_minimum_fails_the_job():
    policy = restart("replica", 0, then="ignore")
    talk = Talk(graph(role("actor", min_replicas=2, max_replicas=2, restart=policy)))
    talk.join("node0")
    talk.fail("actor/0")
    assert talk.outcome()[0] == "failed"


def test_r10_back_off_doubles_up_to_its_cap_and_starts_anew_after_health():
    policy = RestartPolicy(
        "role", max_restarts=99, backoff_ns=SECOND, backoff_max_ns=4 * SECOND, backoff_reset_ns=MINUTE
    )
    talk = Talk(graph(trainers(1, 1, restart=policy)))
    talk.join("node0")
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


def test_r10_free_incidents_know_no_back_off():
    talk = Talk(graph(trainers(1, 1), nodes=2, cpu=1))
    talk.join("node0", "node1")
    talk.fail("trainer/0")
    for name in ("node0", "node1"):
        talk.gone(name)
        talk.join(name)
        assert talk.replica("trainer/0").is_up


def test_r11_a_used_up_budget_fails_the_job_with_its_cause():
    talk = Talk(graph(trainers(restart=restart("role", 1))))
    talk.join("node0")
    talk.fail("trainer/0")
    talk.fail("trainer/1", 7)
    outcome, reason = talk.outcome()
    assert outcome == "failed"
    assert reason == ("trainer/1 failed on node0: exit code 7; role trainer has used up its budget of 1 restart")


def test_r11_a_budget_with_a_window_forgets_what_is_older():
    talk = Talk(graph(trainers(1, 1, restart=restart("role", 2, within_ns=MINUTE, backoff_ns=0))))
    talk.join("node0")
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
    talk = Talk(graph(trainers(), aux))
    talk.join("node0")
    talk.fail("evaluator/0")
    talk.wait(10)
    talk.fail("evaluator/0")
    talk.wait(10)
    assert talk.job.roles["evaluator"].outcome == "ignored" and talk.up() == ["trainer/0", "trainer/1"]


def test_r16_any_exit_after_a_stop_is_neither_success_nor_failure():
    talk = Talk(graph(trainers()), auto=False)
    talk.join("node0")
    talk.tell(ev.StoreOpened("trainer", 1, 1))
    for i in range(2):
        talk.tell(ev.ReplicaStarted(r(f"trainer/{i}"), 1))
    talk.fail("trainer/0")
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    assert list(talk.job.incidents[0].lost) == [r("trainer/0")]


def test_r16_a_service_that_ends_has_failed_whatever_its_code():
    talk = Talk(graph(role("ps", kind="service", restart=restart("replica")), role("trainer")))
    talk.join("node0")
    talk.finish("ps/0")
    assert talk.attempts()["ps/0"] == 2 and len(talk.job.roles["ps"].charges) == 1


def test_no_policy_means_that_a_failure_fails_the_job():
    talk = Talk(graph(trainers(restart=None)))
    talk.join("node0")
    talk.fail("trainer/1")
    assert talk.outcome() == (
        "failed",
        "trainer/1 failed on node0: exit code 1; role trainer has no restart policy",
    )


def test_r18_the_job_succeeds_with_its_primaries_and_stops_the_rest_against_the_start_order():
    ps = role("ps", kind="service")
    aux = role("evaluator", primary=False, gates=(Gate("trainer", "started"),))
    talk = Talk(graph(ps, trainers(1, 1, gates=(Gate("ps", "started"),)), aux), auto=False)
    talk.join("node0")
    for world, name in (("ps/0", "ps/0"), ("trainer", "trainer/0"), ("evaluator", "evaluator/0")):
        talk.tell(ev.StoreOpened(world, 1, 1))
        talk.tell(ev.ReplicaStarted(r(name), 1))
    talk.finish("trainer/0")
    stops = [e for e in talk.effects if isinstance(e, StopReplica)]
    assert stops == [StopReplica("node0", r("evaluator/0"), 1, 30 * SECOND)]
    talk.tell(ev.ReplicaStopped(r("evaluator/0"), 1))
    assert [e for e in talk.effects if isinstance(e, StopReplica)][1:] == [
        StopReplica("node0", r("ps/0"), 1, 30 * SECOND)
    ]
    assert talk.outcome()[0] is None
    talk.tell(ev.ReplicaStopped(r("ps/0"), 1))
    assert talk.outcome()[0] == "succeeded"


def test_r18_a_terminal_state_means_that_nothing_runs_any_more():
    talk = Talk(graph(trainers(restart=None)), auto=False)
    talk.join("node0")
    talk.tell(ev.StoreOpened("trainer", 1, 1))
    for i in range(2):
        talk.tell(ev.ReplicaStarted(r(f"trainer/{i}"), 1))
    talk.fail("trainer/0")
    assert talk.outcome()[0] is None
    effects = talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    assert isinstance(effects[-1], FinishJob)
    assert talk.tell(ev.NodeGone("node0")) == []


def test_cancel_gives_grace_layer_by_layer_and_a_second_one_none():
    talk = Talk(graph(role("ps", kind="service"), trainers(1, 1, gates=(Gate("ps", "started"),))))
    talk.join("node0")
    talk.auto = False
    assert [e for e in talk.tell(ev.CancelRequested()) if isinstance(e, StopReplica)] == [
        StopReplica("node0", r("trainer/0"), 1, 10 * SECOND)
    ]
    hurried = [e for e in talk.tell(ev.CancelRequested(now=True)) if isinstance(e, StopReplica)]
    assert {(str(e.replica), e.grace_ns) for e in hurried} == {("ps/0", 0), ("trainer/0", 0)}


def test_r19_a_checkpoint_of_a_former_generation_is_refused():
    talk = Talk(graph(trainers(1, 1)))
    talk.join("node0")
    first = talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 1, "a", 10))
    assert first == [AnswerCheckpoint("node0", r("trainer/0"), 1, "a", 10, True)]
    talk.fail("trainer/0")
    late = talk.tell(ev.CheckpointOffered(r("trainer/0"), 2, 1, "b", 20))
    assert isinstance(late[0], AnswerCheckpoint) and not late[0].accepted and "generation 1" in late[0].reason
    assert talk.world("trainer").checkpoint.path == "a"


def test_r19_a_silent_node_is_given_up_only_after_lease_and_margin():
    liveness = Liveness(lease_ns=4 * SECOND, margin_ns=SECOND)
    liveness.watch("node0", 0)
    liveness.heard("node0", SECOND)
    assert liveness.deadline() == 6 * SECOND
    assert liveness.expire(6 * SECOND - 1) == []
    assert liveness.expire(6 * SECOND) == [ev.NodeSilent("node0")]
    assert liveness.heard("node0", 7 * SECOND) == [ev.NodeHeard("node0")] and not liveness.is_watched("node0")


def test_r19_a_replica_is_not_replaced_while_its_stop_is_unconfirmed():
    talk = Talk(graph(trainers(1, 2), nodes=2, cpu=1))
    talk.join("node0", "node1")
    talk.auto = False
    talk.fail("trainer/0")
    talk.wait(1000)
    assert talk.world("trainer").generation == 1
    talk.tell(ev.NodeSilent("node1"))
    assert talk.world("trainer").generation == 2


def test_r20_news_of_an_earlier_attempt_is_ignored():
    talk = Talk(graph(trainers()))
    talk.join("node0")
    talk.fail("trainer/0")
    before = talk.attempts()
    for event in (
        ev.ReplicaExited(r("trainer/1"), 1, "exit", 1),
        ev.ReplicaStarted(r("trainer/0"), 1),
        ev.ReplicaStopped(r("trainer/1"), 1),
        ev.StoreOpened("trainer", 1, 5),
        ev.StoreLost("trainer", 1),
        ev.NodeJoined("node0", talk.graph.cluster.nodes[0], incarnation=0),
    ):
        assert talk.tell(event) == []
    assert talk.attempts() == before


def test_r20_a_node_that_joins_twice_has_lost_what_it_ran():
    talk = Talk(graph(trainers(1, 1, restart=None)))
    talk.join("node0")
    talk.join("node0")
    assert talk.attempts() == {"trainer/0": 2} and talk.outcome()[0] is None


def test_a_lost_connection_is_reconciled_by_the_inventory():
    talk = Talk(graph(trainers()), auto=False)
    talk.join("node0")
    talk.tell(ev.StoreOpened("trainer", 1, 1))
    spec = talk.graph.cluster.nodes[0]
    running = ev.InventoryItem(r("trainer/0"), 1, "running")
    stray = ev.InventoryItem(r("trainer/1"), 9, "running")
    effects = talk.tell(ev.NodeJoined("node0", spec, inventory=(running, stray)))
    assert talk.replica("trainer/0").phase == "running"
    assert StopReplica("node0", r("trainer/1"), 9, 0) in effects
    assert [str(e.replica) for e in effects if isinstance(e, StartReplica)] == ["trainer/1"]


def test_the_death_of_a_store_host_re_forms_its_world_without_counting():
    talk = Talk(graph(trainers(restart=None)))
    talk.join("node0")
    talk.tell(ev.StoreLost("trainer", 1, "killed"))
    assert talk.world("trainer").generation == 2 and talk.outcome()[0] is None
    assert talk.job.incidents[0].kind == "store_lost"
