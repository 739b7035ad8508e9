"""R15: who shows no sign of life is held to hang; in a gang, whoever is least advanced."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Effect, StopReplica
from flowdist.control.protocol.ids import ProcessState
from flowdist.graph import MINUTE, SECOND, JointWorld, RestartPolicy, Rule
from tests.control.harness import Talk, graph, joined, r, restart, role


def trainers(count: int = 3, **fields: object) -> Talk:
    fields.setdefault("restart", restart())
    fields.setdefault("hang_after_ns", 5 * MINUTE)
    return joined(role("trainer", min_replicas=count, max_replicas=count, **fields))


def stall(
    talk: Talk,
    name: str,
    by: Literal["progress", "output", "start"] = "progress",
    step: int = -1,
    seen: bool = True,
    state: ProcessState = "",
) -> list[Effect]:
    return talk.report(ev.ReplicaStalled, name, by, 5 * MINUTE, step, seen, state)


def stops(effects: list[Effect]) -> list[StopReplica]:
    return [effect for effect in effects if isinstance(effect, StopReplica)]


def test_r15_the_least_advanced_is_the_suspect_whoever_was_reported_first():
    talk = trainers()
    stall(talk, "trainer/0", step=9)
    stall(talk, "trainer/2", step=7)
    stall(talk, "trainer/1", step=9)
    talk.wait(2)
    (incident,) = talk.job.incidents
    assert (incident.kind, incident.root) == ("hang", "trainer/2")
    assert incident.reason == "trainer/2 failed on node0: it hangs: no progress for 5m after step 7"
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2, "trainer/2": 2}
    assert len(talk.job.roles["trainer"].charges) == 1


def test_r15_of_equals_none_is_blamed_whoever_was_reported_first():
    talk = trainers()
    stall(talk, "trainer/2", step=7)
    talk.wait(1)
    for name in ("trainer/0", "trainer/1"):
        stall(talk, name, step=7)
    talk.wait(1)
    (incident,) = talk.job.incidents
    assert (incident.kind, incident.root) == ("hang", "trainer")
    assert incident.reason == (
        "trainer: it hangs: no progress for 5m after step 7; nothing tells trainer/0, trainer/1, trainer/2 apart, "
        "so that none is blamed"
    )
    assert len(talk.job.roles["trainer"].charges) == 1 and talk.attempts()["trainer/1"] == 2
    assert talk.job.nodes["node0"].failures == []
    assert all(talk.replica(f"trainer/{i}").failures == [] for i in range(3))


@pytest.mark.parametrize("step", [7, 9])
@pytest.mark.parametrize("state", ["stopped", "zombie"])
def test_r15_one_that_cannot_go_on_hangs_wherever_the_others_are(state: ProcessState, step: int):
    talk = trainers()
    for name in ("trainer/0", "trainer/2"):
        stall(talk, name, step=7)
    stall(talk, "trainer/1", step=step, state=state)
    talk.wait(2)
    assert [incident.root for incident in talk.job.incidents] == ["trainer/1"]
    assert [past.replica for past in talk.job.nodes["node0"].failures] == [r("trainer/1")]


def test_r15_the_reason_names_the_state_of_the_process():
    talk = trainers(2)
    stall(talk, "trainer/0", step=7)
    stall(talk, "trainer/1", step=7, state="stopped")
    talk.wait(2)
    assert talk.job.incidents[0].reason.endswith("after step 7; a process of it is stopped (SIGSTOP, or a debugger)")


def test_r15_of_equals_one_in_uninterruptible_sleep_hangs_and_one_that_is_further_does_not():
    for step, root in ((7, "trainer/1"), (8, "trainer")):
        talk = trainers()
        for name in ("trainer/0", "trainer/2"):
            stall(talk, name, step=7)
        stall(talk, "trainer/1", step=step, state="uninterruptible")
        talk.wait(2)
        assert [incident.root for incident in talk.job.incidents] == [root]


def test_r15_the_verdict_waits_for_the_reports_of_the_others():
    talk = trainers()
    stall(talk, "trainer/0", step=9)
    assert talk.wait(1.9) == []
    talk.wait(0.1)
    assert talk.attempts()["trainer/0"] == 2


def test_r15_the_stacks_of_all_are_written_to_their_logs_when_they_are_stopped():
    talk = trainers(2)
    talk.auto = False
    stall(talk, "trainer/0")
    assert stops(talk.wait(2)) == [
        StopReplica("node0", r("trainer/0"), 1, 2 * SECOND, dump=True),
        StopReplica("node0", r("trainer/1"), 1, 2 * SECOND, dump=True),
    ]


def test_r15_the_next_restart_that_is_no_hang_writes_no_stacks():
    talk = trainers(2)
    stall(talk, "trainer/0")
    talk.wait(60)
    assert [order.dump for order in stops(talk.fail("trainer/0"))] == [False]


def test_r15_who_is_slow_and_goes_on_does_not_hang():
    talk = trainers(2)
    stall(talk, "trainer/0")
    talk.wait(1)
    talk.report(ev.ReplicaRevived, "trainer/0")
    talk.wait(60)
    assert talk.job.incidents == []


def test_r15_one_that_goes_on_does_not_excuse_another_that_does_not():
    talk = trainers(2)
    stall(talk, "trainer/0", step=3)
    stall(talk, "trainer/1", step=5)
    talk.report(ev.ReplicaRevived, "trainer/0")
    talk.wait(2)
    assert [incident.root for incident in talk.job.incidents] == ["trainer/1"]


def test_r15_silence_of_some_ranks_is_no_hang_while_another_prints():
    talk = trainers()
    for name in ("trainer/1", "trainer/2"):
        stall(talk, name, "output", seen=False)
    talk.wait(3600)
    assert talk.job.incidents == []
    stall(talk, "trainer/0", "output")
    talk.wait(2)
    assert talk.job.incidents[0].reason.startswith("trainer: it hangs: no output for 5m; nothing tells trainer/0, ")


def test_r15_a_world_that_is_silent_from_the_start_hangs():
    talk = trainers(2)
    stall(talk, "trainer/0", "output", seen=False)
    talk.wait(3600)
    assert talk.job.incidents == [], "the other one may still print"
    stall(talk, "trainer/1", "output", seen=False, state="stopped")
    talk.wait(2)
    (incident,) = talk.job.incidents
    assert (incident.kind, incident.root) == ("hang", "trainer/1") and talk.charges("trainer") == [3602]


def test_r15_who_has_stopped_stepping_is_suspected_before_who_has_stopped_printing():
    talk = trainers(2)
    stall(talk, "trainer/0", "output")
    stall(talk, "trainer/1", "progress", step=40)
    talk.wait(2)
    assert [incident.root for incident in talk.job.incidents] == ["trainer/1"]


def test_r15_the_step_that_was_reported_last_counts_if_the_stall_says_less():
    talk = trainers(2)
    talk.tell(ev.ReplicaProgressed(r("trainer/0"), 1, 8))
    stall(talk, "trainer/0")
    stall(talk, "trainer/1", step=7)
    talk.wait(2)
    assert [incident.root for incident in talk.job.incidents] == ["trainer/1"]


def test_r15_before_the_first_progress_the_start_has_its_own_time():
    talk = trainers(1, start_timeout_ns=20 * MINUTE)
    stall(talk, "trainer/0", "start")
    talk.wait(2)
    assert talk.job.incidents[0].reason.endswith("it hangs: it reported no progress within 20m")


def test_r15_a_rule_may_say_what_a_hang_means():
    talk = trainers(2, restart=restart("role", 3, rules=(Rule("fail", kind="hang"),)))
    stall(talk, "trainer/1", step=5)
    talk.wait(2)
    outcome, reason = talk.outcome()
    assert outcome == "failed" and reason.endswith('no progress for 5m after step 5; rule On("hang") says fail')


def test_r15_what_is_being_stopped_does_not_hang():
    talk = trainers(2)
    talk.auto = False
    talk.fail("trainer/0")
    assert stall(talk, "trainer/1") == []
    assert talk.controller.deadline() is None and talk.replica("trainer/1").stalled == ""


def test_r15_a_failure_before_the_verdict_is_the_cause_and_no_hang_comes_after_it():
    talk = trainers(2)
    stall(talk, "trainer/0")
    talk.fail("trainer/1")
    talk.wait(60)
    assert [incident.kind for incident in talk.job.incidents] == ["exit"]


def test_r15_who_finishes_before_the_verdict_has_not_hung():
    for others_run in (True, False):
        talk = trainers(2)
        if not others_run:
            talk.finish("trainer/1")
        stall(talk, "trainer/0")
        talk.finish("trainer/0")
        talk.wait(60)
        assert talk.job.incidents == []


def test_r15_replicas_without_a_gang_hang_one_by_one():
    actor = role("actor", min_replicas=3, max_replicas=3, restart=restart("replica"), hang_after_ns=MINUTE)
    talk = joined(actor)
    stall(talk, "actor/1", "output")
    talk.wait(2)
    assert talk.attempts() == {"actor/0": 1, "actor/1": 2, "actor/2": 1}


def test_r15_nobody_is_blamed_before_all_nodes_are_heard_by_the_new_controller():
    """Who is waited for may have fenced: the others stand still because of that, and the lease will tell."""
    gang = role("trainer", min_replicas=1, max_replicas=2, hang_after_ns=30 * SECOND)
    talk = joined(gang, nodes=2, cpu=1)
    talk.tell(ev.ControllerStarted(2))
    talk.tell(ev.NodeJoined("node1", talk.job.nodes["node1"].spec, inventory=inventory_of(talk, "trainer/1")))
    stall(talk, "trainer/1", step=9)
    talk.wait(60)
    assert not talk.job.incidents and talk.outcome()[0] is None
    talk.tell(ev.NodeSilent("node0"))
    assert [incident.kind for incident in talk.job.incidents] == ["node_lost"] and talk.up() == ["trainer/1"]


def inventory_of(talk: Talk, name: str) -> tuple[ev.InventoryItem, ...]:
    return (ev.InventoryItem(r(name), talk.replica(name).attempt, "running"),)


def spread(*steps: int, nodes: int = 3, **fields: object) -> Talk:
    """Trainers, one a node, that have reported these steps (-1: none). It is 100 s, and the agents do not answer."""
    fields.setdefault("restart", restart())
    count = len(steps)
    talk = joined(role("trainer", min_replicas=count, max_replicas=count, **fields), nodes=nodes, cpu=1)
    progress(talk, *((f"trainer/{i}", step) for i, step in enumerate(steps)))
    talk.now, talk.auto = 100 * SECOND, False
    return talk


def progress(talk: Talk, *steps: tuple[str, int]) -> None:
    for name, step in steps:
        if step >= 0:
            talk.report(ev.ReplicaProgressed, name, step)


def root(talk: Talk) -> tuple[str, str]:
    """The kind and the root of the only incident."""
    (incident,) = talk.job.incidents
    return incident.kind, incident.root


def root_after(talk: Talk, *timed_out: str) -> tuple[str, str]:
    """The kind and the root of the only incident, after the collectives of these replicas have timed out."""
    for name in timed_out:
        talk.time_out(name)
    talk.answer()
    return root(talk)


def test_r15_the_rank_that_is_furthest_behind_has_failed_if_the_collective_of_a_peer_times_out_first():
    talk = spread(8, 7, 8)
    effects = talk.time_out("trainer/0")
    assert {stop.replica: stop.dump for stop in stops(effects)} == {r("trainer/1"): True, r("trainer/2"): True}
    talk.answer()
    assert root(talk) == ("hang", "trainer/1") and talk.attempts()["trainer/1"] == 2
    assert talk.job.incidents[0].reason == (
        "trainer/1 failed on node1: it hangs: a collective of trainer/0 timed out after step 8, "
        "and trainer/1 is furthest behind, after step 7"
    )
    assert talk.charges("trainer") == [100]
    assert [each.node for each in talk.replica("trainer/1").failures] == ["node1"]
    assert talk.replica("trainer/0").failures == []


def test_r15_the_last_steps_come_with_the_end_of_the_attempts():
    talk = spread(8, 6, 3)  # trainer/2 has done more since its last report
    talk.time_out("trainer/0")
    progress(talk, ("trainer/2", 8), ("trainer/1", 7))
    talk.answer()
    assert root(talk) == ("hang", "trainer/1")


def test_r15_the_peers_whose_collectives_time_out_too_are_part_of_the_incident():
    talk = spread(8, 7, 8)
    assert root_after(talk, "trainer/0", "trainer/2") == ("hang", "trainer/1") and talk.charges("trainer") == [100]


@pytest.mark.parametrize("steps", [(7, 7, 7), (7, 8, 8), (-1, 7, 7), (7, -1, -1)])
def test_r15_the_one_that_timed_out_has_failed_if_none_is_known_to_be_behind_it(steps: tuple[int, ...]):
    talk = spread(*steps)
    assert root_after(talk, "trainer/0") == ("signal", "trainer/0") and talk.charges("trainer") == [100]


def test_r15_of_equals_it_is_one_whose_own_collective_has_not_timed_out():
    assert root_after(spread(8, 7, 7), "trainer/0", "trainer/1") == ("hang", "trainer/2")


def test_r15_of_several_that_are_behind_none_is_blamed():
    talk = spread(8, 7, 7)
    assert root_after(talk, "trainer/0") == ("hang", "trainer") and talk.charges("trainer") == [100]
    assert "nothing tells trainer/1, trainer/2 apart, so that none is blamed" in talk.job.incidents[0].reason
    assert all(node.failures == [] for node in talk.job.nodes.values())


def test_r15_one_that_has_finished_does_not_hang():
    talk = spread(8, 7, 8)
    talk.finish("trainer/1")
    assert root_after(talk, "trainer/0") == ("signal", "trainer/0")


@pytest.mark.parametrize("policy", [None, restart("role", 3, rules=(Rule("fail", kind="hang"),))])
def test_r15_the_job_fails_for_the_rank_that_hangs(policy: RestartPolicy | None):
    talk = spread(8, 7, restart=policy, nodes=2)
    talk.time_out("trainer/0")
    talk.answer()
    outcome, reason = talk.outcome()
    assert outcome == "failed" and reason.startswith("trainer/1 failed on node1: it hangs: a collective of trainer/0")


def test_r15_a_rule_about_the_signal_of_the_peer_does_not_decide_for_the_rank_that_hangs():
    talk = spread(8, 7, nodes=2, restart=restart("role", 3, rules=(Rule("fail", signal="ABRT"),)))
    assert root_after(talk, "trainer/0") == ("hang", "trainer/1") and talk.outcome()[0] is None


def test_r15_in_a_world_of_several_roles_the_role_of_the_rank_that_hangs_pays():
    fields = {"min_replicas": 1, "max_replicas": 1, "restart": restart()}
    drawn = graph(role("actor", **fields), role("learner", **fields), nodes=2, cpu=1)
    talk = Talk(msgspec.structs.replace(drawn, worlds=(JointWorld("core", ("actor", "learner")),)))
    talk.join("node0", "node1")
    progress(talk, ("actor/0", 4), ("learner/0", 5))
    talk.time_out("learner/0")
    assert root(talk) == ("hang", "actor/0")
    assert len(talk.charges("actor")) == 1 and talk.charges("learner") == []


def test_r15_a_used_up_budget_is_that_of_the_rank_that_hangs():
    talk = spread(8, 7, nodes=2, restart=restart("role", 0))
    talk.time_out("trainer/0")
    talk.answer()
    outcome, reason = talk.outcome()
    assert outcome == "failed" and "furthest behind, after step 7; role trainer has used up its budget" in reason


def test_r15_a_rank_on_a_node_that_is_lost_does_not_hang():
    talk = spread(8, 7, 8, restart=restart("role", 0))
    talk.tell(ev.NodeSuspected("node1"))
    talk.time_out("trainer/0")
    talk.tell(ev.ReplicaStopped(r("trainer/2"), 1))
    assert talk.suspects() == ["node1"]
    talk.tell(ev.NodeSilent("node1"))
    assert talk.outcome()[0] is None and talk.charges("trainer") == []
    assert talk.job.incidents[-1].kind == "node_lost"


def test_r15_the_judgement_waits_for_a_rank_that_has_to_be_killed():
    talk = spread(8, 7, 8)
    talk.time_out("trainer/0")
    talk.tell(ev.ReplicaStopped(r("trainer/2"), 1))
    talk.wait(10)
    assert root(talk) == ("signal", "trainer/0")
    talk.answer()
    assert root(talk) == ("hang", "trainer/1") and talk.charges("trainer") == [100]


def test_r15_a_replica_that_is_a_world_of_its_own_has_failed_itself():
    talk = spread(8, nodes=1)
    talk.time_out("trainer/0")
    assert root(talk) == ("signal", "trainer/0")


def test_r15_a_rule_about_the_signal_does_not_decide_for_the_second_collective_that_times_out():
    talk = spread(8, 7, 8, restart=restart("role", 3, rules=(Rule("fail", signal="ABRT"),)))
    assert root_after(talk, "trainer/0", "trainer/2") == ("hang", "trainer/1") and talk.outcome()[0] is None
