"""R5, R6, R16, R18-R20: what restarts with what, in which order, and how it ends."""

from __future__ import annotations

import pytest

from flowdist.control.connection.failure_detector import FailureDetector
from flowdist.control.connection.sessions import Sessions
from flowdist.control.controller import Controller, settle
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import (
    AnswerCheckpoint,
    CloseStore,
    FinishJob,
    StartReplica,
    StopReplica,
    TellPeers,
)
from flowdist.graph import MINUTE, MS, SECOND, Domain, Gate, JobOptions, RestartPolicy, RoleSpec, Rule
from tests.control import harness
from tests.control.harness import TCP, Talk, graph, joined, r, restart, role


def trainers(low: int = 2, high: int = 2, **fields: object) -> RoleSpec:
    return harness.trainers(low, high, **{"restart": restart(), **fields})


def ps_and_trainers(on_restart: str, **fields: object) -> Talk:
    ps = role(
        "ps", kind="service", min_replicas=2, max_replicas=2, ports=("rpc",), ready=TCP, restart=restart("replica")
    )
    return joined(ps, trainers(gates=(Gate("ps", "ready", on_restart),), **fields))  # type: ignore[arg-type]


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
    talk = joined(a, b, other, domains=(Domain("core", ("a", "b")),))
    talk.fail("a/0")
    assert talk.attempts() == {"a/0": 2, "b/0": 2, "other/0": 1}


def test_r5_job_scope_restarts_every_role():
    talk = joined(role("a"), role("b", restart=restart("job")), role("c"))
    talk.fail("b/0")
    assert talk.attempts() == {"a/0": 2, "b/0": 2, "c/0": 2}


def test_r5_what_has_not_restarted_passes_nothing_on():
    a = role("a", kind="service", restart=restart("replica"))
    b = role("b", gates=(Gate("a", "started", "restart"),))
    c = role("c", gates=(Gate("b", "succeeded", "restart"),))
    talk = joined(a, b, c)
    talk.finish("b/0")
    talk.fail("a/0")
    assert talk.attempts() == {"a/0": 2, "b/0": 1, "c/0": 1}


def test_r5_a_dependent_with_the_address_in_its_command_restarts_when_it_changes():
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
    talk = joined(trainers())
    talk.auto = False
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


def test_r6_a_node_with_an_unkillable_worker_is_lost_and_its_gpus_stay_taken():
    talk = joined(trainers(1, 2, restart=restart()), nodes=2, cpu=1)
    talk.auto = False
    talk.fail("trainer/0")
    talk.tell(ev.ReplicaUnkillable(r("trainer/1"), 1))
    assert not talk.job.nodes["node1"].usable and talk.job.nodes["node1"].stuck == {(r("trainer/1"), 1): ()}
    assert [str(m) for m in talk.world("trainer").members] == ["trainer/0"]
    talk.join("node1")
    assert talk.job.nodes["node1"].stuck == {(r("trainer/1"), 1): ()}


def test_r6_neighbours_of_an_unkillable_worker_are_dead_before_they_are_replaced():
    talk = joined(trainers(), role("b"))
    talk.join("node1")
    talk.auto = False
    talk.fail("trainer/0")
    effects = talk.tell(ev.ReplicaUnkillable(r("trainer/1"), 1))
    assert StopReplica("node0", r("b/0"), 1, 0) in effects
    assert talk.replica("b/0").phase == "stopping" and talk.world("b").generation == 1
    talk.tell(ev.ReplicaStopped(r("b/0"), 1))
    assert talk.world("b").generation == 2 and talk.replica("b/0").node == "node1"


def test_r16_any_exit_after_a_stop_is_neither_success_nor_failure():
    talk = joined(trainers())
    talk.auto = False
    talk.fail("trainer/0")
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    assert list(talk.job.incidents[0].lost) == [r("trainer/0")]


def test_r16_a_service_that_ends_has_failed_whatever_its_code():
    talk = joined(role("ps", kind="service", restart=restart("replica")), role("trainer"))
    talk.finish("ps/0")
    assert talk.attempts()["ps/0"] == 2 and len(talk.job.roles["ps"].charges) == 1


def test_r18_the_job_succeeds_with_its_primaries_and_stops_the_rest_in_order():
    ps = role("ps", kind="service")
    aux = role("evaluator", primary=False, gates=(Gate("trainer", "started"),))
    talk = joined(ps, trainers(1, 1, gates=(Gate("ps", "started"),)), aux, auto=False)
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
    talk = joined(trainers(restart=None))
    talk.auto = False
    talk.fail("trainer/0")
    assert talk.outcome()[0] is None
    effects = talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    assert isinstance(effects[-1], FinishJob)
    assert talk.tell(ev.NodeGone("node0")) == []


def test_cancel_gives_grace_layer_by_layer_and_a_second_one_none():
    talk = joined(role("ps", kind="service"), trainers(1, 1, gates=(Gate("ps", "started"),)))
    talk.auto = False
    assert [e for e in talk.tell(ev.CancelRequested()) if isinstance(e, StopReplica)] == [
        StopReplica("node0", r("trainer/0"), 1, 10 * SECOND)
    ]
    hurried = [e for e in talk.tell(ev.CancelRequested(now=True)) if isinstance(e, StopReplica)]
    assert {(str(e.replica), e.grace_ns) for e in hurried} == {("ps/0", 0), ("trainer/0", 0)}


def test_r19_a_checkpoint_of_a_former_generation_is_refused():
    talk = joined(trainers(1, 1))
    first = talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 1, "a", 10))
    assert first == [AnswerCheckpoint("node0", r("trainer/0"), 1, "a", 10, True)]
    talk.fail("trainer/0")
    late = talk.tell(ev.CheckpointOffered(r("trainer/0"), 2, 1, "b", 20))
    assert isinstance(late[0], AnswerCheckpoint) and not late[0].accepted and "generation 1" in late[0].reason
    assert talk.world("trainer").checkpoint.path == "a"


def test_r19_a_silent_node_is_given_up_only_after_lease_and_margin():
    liveness = FailureDetector(5 * SECOND, suspect_after_ns=1750 * MS, heartbeat_ns=500 * MS)
    liveness.watch("node0", 0)
    liveness.heard("node0", SECOND, SECOND)
    assert liveness.expire(6 * SECOND - 1) == [ev.NodeSuspected("node0")]
    assert liveness.deadline() == 6 * SECOND
    assert liveness.expire(6 * SECOND) == [ev.NodeSilent("node0")]
    assert liveness.heard("node0", 7 * SECOND, 7 * SECOND) == [ev.NodeHeard("node0")] and not liveness.is_watched(
        "node0"
    )


def test_r19_a_node_that_joins_again_and_again_has_one_deadline():
    liveness = FailureDetector(5 * SECOND, suspect_after_ns=1750 * MS, heartbeat_ns=500 * MS)
    for now in range(0, 1000 * MS, MS):
        liveness.watch("node0", now)
        liveness.watch("node1", now)
        assert liveness.deadline() == now + 1750 * MS
    assert len(liveness._heap) == 2


def test_r19_how_long_some_nodes_may_still_be_silent_is_a_matter_of_these_alone():
    liveness = FailureDetector(5 * SECOND, suspect_after_ns=1750 * MS, heartbeat_ns=500 * MS)
    for i in range(3):
        liveness.watch(f"node{i}", i * SECOND)
    both, all = liveness.deadline_of(["node2", "node1"]), liveness.deadline()
    assert both is not None and all is not None and both == all + SECOND  # node1 was heard a second later than node0
    assert liveness.deadline_of(["node9"]) is None
    sessions = Sessions(JobOptions())
    assert sessions.detector.deadline_of(["node0"]) is None and sessions.detector.deadline() is None


def test_r19_a_replica_is_not_replaced_while_its_stop_is_unconfirmed():
    talk = joined(trainers(1, 2), nodes=2, cpu=1)
    talk.auto = False
    talk.fail("trainer/0")
    talk.wait(1000)
    assert talk.world("trainer").generation == 1
    talk.tell(ev.NodeSilent("node1"))
    assert talk.world("trainer").generation == 2


def test_r20_news_of_an_earlier_attempt_is_ignored():
    talk = joined(trainers())
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
    talk = joined(trainers(1, 1, restart=None))
    talk.join("node0")
    assert talk.attempts() == {"trainer/0": 2} and talk.outcome()[0] is None


def test_a_lost_connection_is_reconciled_by_the_inventory():
    talk = joined(trainers(), auto=False)
    talk.tell(ev.StoreOpened("trainer", 1, 1))
    spec = talk.graph.cluster.nodes[0]
    running = ev.InventoryItem(r("trainer/0"), 1, "running")
    stray = ev.InventoryItem(r("trainer/1"), 9, "running")
    effects = talk.tell(ev.NodeJoined("node0", spec, inventory=(running, stray)))
    assert talk.replica("trainer/0").phase == "running"
    assert StopReplica("node0", r("trainer/1"), 9, 0) in effects
    assert [str(e.replica) for e in effects if isinstance(e, StartReplica)] == ["trainer/1"]


def test_the_death_of_a_store_host_re_forms_its_world_without_counting():
    talk = joined(trainers(restart=None))
    talk.tell(ev.StoreLost("trainer", 1, "killed"))
    assert talk.world("trainer").generation == 2 and talk.outcome()[0] is None
    assert talk.job.incidents[0].kind == "store_lost"


def opened(*roles: object, **fields: object) -> Talk:
    """All run; from here on nobody answers."""
    talk = joined(*roles, **fields)  # type: ignore[arg-type]
    talk.auto = False
    return talk


def test_r5_an_address_that_is_the_same_again_is_told_to_nobody():
    slow = RestartPolicy("replica", max_restarts=9, backoff_ns=MINUTE)
    ps = role("ps", kind="service", ports=("rpc",), ready=TCP, restart=slow)
    talk = joined(ps, trainers(1, 1, gates=(Gate("ps", "ready"),)), nodes=2, cpu=1)
    for _ in range(2):
        talk.fail("ps/0")
    talk.tell(ev.NodePreempted("node0", MINUTE))
    assert talk.replica("ps/0").node is None
    talk.tell(ev.UncordonRequested("node0"))
    talk.wait(60)
    assert talk.replica("ps/0").node == "node0" and "ps/0" in talk.up()
    assert not [effect for effect in talk.effects if isinstance(effect, TellPeers)]


def test_r12_a_forming_world_chooses_anew_when_it_loses_a_seat_or_its_store():
    talk = joined(trainers(1, 2), nodes=3, cpu=1, auto=False)
    assert talk.world("trainer").store_node == "node0" and talk.world("trainer").phase == "opening"
    talk.gone("node1")
    assert {replica.node for replica in talk.job.members_of(talk.world("trainer"))} == {"node0", "node2"}
    assert CloseStore("node0", "trainer", 1) in talk.effects
    talk.gone("node0")
    assert talk.world("trainer").store_node == "node2" and talk.world("trainer").generation == 3
    assert talk.job.incidents == [] and talk.starts == []


def test_r16_success_that_was_on_its_way_when_the_stop_was_told_is_success():
    ps = role("ps", kind="service", restart=restart("replica"))
    talk = opened(ps, trainers(gates=(Gate("ps", "started", "restart"),)))
    talk.fail("ps/0")
    talk.finish("trainer/0")
    assert talk.world("trainer").phase == "stopping" and talk.controller.deadline() is None
    talk.finish("trainer/1")
    assert talk.world("trainer").phase == "succeeded" and talk.job.ending == "succeeded"


def test_r16_a_failure_of_what_is_scaled_down_is_a_stop_unless_a_rule_ends_the_job():
    """The budget is used up, and nobody is left who would have to pay or restart."""
    for rule, outcome in ((None, None), (Rule("fail", "exit"), "failed")):
        policy = RestartPolicy("replica", max_restarts=0, rules=(rule,) if rule else ())
        talk = joined(role("actor", min_replicas=1, max_replicas=3, restart=policy), nodes=1, cpu=9)
        talk.auto = False
        talk.tell(ev.ScaleRequested("actor", 2))
        assert talk.replica("actor/2").phase == "stopping"
        talk.fail("actor/2")
        assert talk.job.ending == outcome and talk.job.incidents == []


def test_r16_a_replica_that_its_node_has_stopped_unasked_is_lost_not_failed():
    talk = opened(trainers(restart=None))
    talk.auto = True
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    (incident,) = talk.job.incidents
    assert (incident.kind, incident.reason) == ("node_lost", "trainer/0 was stopped by its node")
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2} and talk.outcome()[0] is None


def test_r17_the_time_to_finish_does_not_fail_what_is_being_stopped_anyway():
    talk = opened(trainers(2, 2))
    talk.finish("trainer/0")
    talk.wait(299)
    talk.tell(ev.StoreLost("trainer", 1))
    talk.wait(60)
    assert [incident.kind for incident in talk.job.incidents] == ["store_lost"]


def test_r18_of_two_reasons_to_fail_at_one_moment_the_first_is_told():
    a, b = (role(name, restart=restart("replica"), gang=False) for name in ("a", "b"))
    talk = joined(a, b, nodes=2, cpu=1)
    talk.gone("node0")
    talk.gone("node1")
    talk.wait(600)
    assert talk.outcome() == ("failed", "a was below its minimum for 10m: a/0 needs 1 cpu; no node is up")
    assert talk.job.roles["a"].outcome == "failed"
    assert len([text for text in talk.texts() if text.startswith("the job fails")]) == 1


def test_r18_what_ends_by_itself_while_the_job_ends_is_waited_for_no_longer():
    talk = opened(role("ps", kind="service"), trainers(), role("aux", primary=False))
    talk.tell(ev.CancelRequested())
    for name in ("trainer/0", "ps/0"):
        talk.fail(name)
    talk.finish("trainer/1", "aux/0")
    assert talk.outcome()[0] == "cancelled"
    assert talk.replica("aux/0").phase == "ended", "it was told to stop"


def test_r18_what_starts_or_stalls_while_the_job_ends_is_not_judged_any_more():
    ps = role("ps", kind="service", ready=TCP, restart=restart("replica"))
    talk = opened(ps, trainers(gates=(Gate("ps", "started"),)))
    talk.fail("ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    talk.tell(ev.CancelRequested())
    assert talk.replica("ps/0").phase == "starting", "the trainers stop first"
    talk.tell(ev.ReplicaStarted(r("ps/0"), 2))
    talk.tell(ev.ReplicaStalled(r("ps/0"), 2, "output", MINUTE))
    talk.wait(3600)
    assert len(talk.job.incidents) == 1 and talk.replica("ps/0").phase == "running"


def test_r18_a_worker_that_outlives_sigkill_does_not_keep_a_job_from_ending():
    talk = opened(trainers(2, 2, restart=None))
    talk.fail("trainer/0")
    assert talk.outcome()[0] is None
    talk.tell(ev.ReplicaUnkillable(r("trainer/1"), 1))
    assert talk.outcome()[0] == "failed" and talk.job.incidents == []


def test_r20_what_is_said_twice_or_of_what_nobody_knows_changes_nothing():
    talk = opened(role("ps", kind="service", ready=TCP), trainers(1, 1))
    talk.tell(ev.ReplicaProgressed(r("trainer/0"), 1, 7))
    for event in (
        ev.ReplicaReady(r("ps/0"), 1),
        ev.ReplicaReady(r("trainer/0"), 1),  # it has no check
        ev.ReplicaProgressed(r("trainer/0"), 1, 5),
        ev.CheckpointOffered(r("trainer/9"), 1, 1, "a"),
        ev.CheckpointOffered(r("trainer/0"), 2, 1, "a"),
    ):
        assert talk.tell(event) == []
    assert talk.world("trainer").step == 7 and talk.replica("ps/0").phase == "ready"


def test_r20_a_store_that_ends_with_its_generation_is_no_loss():
    talk = opened(trainers())
    talk.fail("trainer/0")
    assert talk.tell(ev.StoreLost("trainer", 1)) == []
    assert len(talk.job.incidents) == 1


def test_a_node_whose_strays_have_ended_is_told_nothing_about_them():
    talk = opened(trainers(1, 1))
    over = ev.InventoryItem(r("trainer/0"), 0, "stopped")
    runs = ev.InventoryItem(r("trainer/0"), 1, "running")
    spec = talk.graph.cluster.nodes[0]
    assert talk.tell(ev.NodeJoined("node0", spec, inventory=(over, runs))) == []


def test_a_job_that_does_not_settle_is_a_bug_that_is_told():
    job = Controller(graph(trainers())).state  # every world of a new job is touched
    with pytest.raises(AssertionError, match="the job does not settle"):
        settle(job, rounds_max=1)
    settle(job)
    assert not job.touched and not job.touched_roles


def test_r6_two_attempts_of_one_replica_may_outlive_sigkill_on_one_node():
    gang = role("trainer", restart=restart(times=9))
    talk = Talk(graph(gang, nodes=1, cpu=4), auto=False)
    for attempt in (1, 2):
        talk.join("node0")
        talk.tell(ev.StoreOpened("trainer", attempt, 1))
        talk.tell(ev.ReplicaStarted(r("trainer/0"), attempt))
        talk.tell(ev.StoreLost("trainer", attempt))
        talk.tell(ev.ReplicaUnkillable(r("trainer/0"), attempt))
    talk.join("node0")
    assert len(talk.job.nodes["node0"].stuck) == 2 and talk.job.nodes["node0"].free.mcpu == 2000 - 1000


def test_an_incident_with_a_replica_that_waits_for_room_is_over_but_has_not_recovered():
    actor = role("actor", min_replicas=1, max_replicas=2, restart=restart("replica"))
    talk = joined(actor, nodes=2, cpu=1)
    talk.gone("node1")
    (incident,) = talk.job.incidents
    assert not incident.is_open and incident.result == "waits for room: actor/1"
    assert not any("recovered" in text or "re-formed" in text for text in talk.texts())
    assert any(text.startswith("incident 1: over after ") and text.endswith(incident.result) for text in talk.texts())
    talk.join("node1")
    assert talk.up() == ["actor/0", "actor/1"]
