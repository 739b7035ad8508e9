"""R7, R8, R12 where a node falls silent: its peers fail before it is called lost, and are judged when that is known."""

from __future__ import annotations

import pytest

from flowdist.control.connection.sessions import Received, Sessions
from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import StopReplica
from flowdist.graph import MS, SECOND, Gate, JobOptions, NodeSpec, RestartPolicy, Rule
from tests.control import agent_harness as agents
from tests.control.harness import Talk, joined, r, restart, role

BUDGET = restart()


def gang(policy: RestartPolicy | None = BUDGET, replicas: int = 2, least: int = 1, **options: int) -> Talk:
    """One trainer a node, all running. Node1 is cut off at 97 s and fences at 100 s, at which its peers fail."""
    trainers = role("trainer", min_replicas=least, max_replicas=replicas, restart=policy)
    talk = joined(trainers, nodes=replicas, cpu=1, **options, auto=False)
    form(talk, replicas, 1)
    talk.now = 99 * SECOND
    talk.tell(ev.NodeSuspected("node1"))
    talk.now = 100 * SECOND
    return talk


def form(talk: Talk, replicas: int, generation: int) -> None:
    talk.tell(ev.StoreOpened("trainer", generation, 1))
    for i in range(replicas):
        if talk.replica(f"trainer/{i}").phase == "starting":
            talk.report(ev.ReplicaStarted, f"trainer/{i}")


def lose(talk: Talk, name: str = "node1") -> None:
    talk.now = 102 * SECOND
    talk.tell(ev.NodeSilent(name))


def hear(talk: Talk, name: str = "node1") -> None:
    talk.now = 101 * SECOND
    talk.tell(ev.NodeHeard(name))


def served(policy: RestartPolicy | None = BUDGET) -> Talk:
    """Trainers of their own on node1 and node2, of a server on node0."""
    ps = role("ps", kind="service", restart=restart("replica"))
    trainers = role("trainer", min_replicas=2, max_replicas=2, restart=policy, gates=(Gate("ps", "started"),))
    talk = joined(ps, trainers, nodes=4, cpu=1)
    talk.now = 99 * SECOND
    return talk


def charges(talk: Talk, name: str = "trainer") -> list[tuple[int, int]]:
    return list(talk.job.roles[name].charges)


RULE = restart("role", 3, rules=(Rule("fail", exit=1),))


@pytest.mark.parametrize("policy", [None, BUDGET, RULE, restart("role", 0), restart("role", 0, then="ignore")])
def test_r8_a_node_that_falls_silent_is_charged_to_none_of_its_peers(policy: RestartPolicy | None):
    talk = gang(policy)
    talk.fail("trainer/0")
    lose(talk)
    form(talk, 1, 2)
    assert talk.outcome()[0] is None and charges(talk) == [] and talk.up() == ["trainer/0"]
    first, second = talk.job.incidents
    assert (first.result, first.counted) == ("became part of incident 2", False)
    assert (second.kind, second.root, second.result) == ("node_lost", "node1", "re-formed")
    assert "incident 1 was caused by the loss of node1: not counted" in talk.texts()
    assert talk.replica("trainer/0").failures == [], "nor does it tell against the node that it ran on"
    assert [past.kind for past in talk.job.nodes["node1"].failures] == ["node_lost"]


def test_r8_all_the_peers_fail_at_once_and_the_last_of_them_changes_nothing():
    talk = gang(None, replicas=4)
    for i in (0, 2, 3):
        talk.fail(f"trainer/{i}")
    lose(talk)
    form(talk, 4, 2)
    assert talk.outcome()[0] is None and talk.up() == ["trainer/0", "trainer/2", "trainer/3"]
    assert set(talk.job.incidents[1].worlds) == {"trainer"}


def test_r6_what_may_follow_from_a_silent_node_stops_at_once_and_starts_when_known():
    talk = gang(replicas=3)
    stops = [effect.replica for effect in talk.fail("trainer/0") if isinstance(effect, StopReplica)]
    assert stops == [r("trainer/1"), r("trainer/2")]
    talk.tell(ev.ReplicaStopped(r("trainer/2"), 1))
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))  # its node can speak, but is not heard
    assert talk.world("trainer").phase == "stopping"
    assert "node1 to be heard, or lost: incident 1 may follow from that" in waiting_for(talk.job)
    hear(talk)
    assert talk.world("trainer").phase == "opening"


def test_r7_when_the_node_is_heard_again_the_failure_is_charged_as_of_its_own_time():
    talk = gang()
    talk.fail("trainer/0")
    assert talk.job.incidents[0].counted is False and talk.replica("trainer/0").failures == []
    hear(talk)
    assert talk.charges_in_the_end("trainer") == [100]
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    form(talk, 2, 2)
    assert charges(talk) == [(100 * SECOND, 0)] and talk.up() == ["trainer/0", "trainer/1"]
    assert [past.at_ns for past in talk.replica("trainer/0").failures] == [100 * SECOND]
    assert "incident 1: node1 is heard again: restart 1 of 3" in talk.texts()


def test_r8_when_the_node_is_heard_again_a_role_without_a_policy_fails_the_job():
    talk = gang(None)
    talk.fail("trainer/0")
    assert talk.job.ending is None
    hear(talk)
    assert talk.job.ending == "failed" and "trainer/0 failed on node0: exit code 1" in talk.job.ending_reason


def test_r7_a_node_that_connects_again_is_heard():
    talk = gang(None)
    talk.fail("trainer/0")
    item = ev.InventoryItem(r("trainer/1"), 1, "running")
    talk.tell(ev.NodeJoined("node1", talk.graph.cluster.nodes[1], inventory=(item,)))
    assert talk.job.ending == "failed"


def test_r8_a_node_that_comes_back_without_what_it_ran_was_lost():
    talk = gang(None)
    talk.fail("trainer/0")
    talk.join("node1")
    assert talk.job.ending is None and talk.job.incidents[1].root == "node1" and not talk.job.suspected


def test_r9_when_the_node_is_heard_again_a_failure_is_ignored_as_its_rule_says():
    rules = (Rule("ignore", exit=1),)
    talk = served(restart("role", 3, rules=rules))
    talk.tell(ev.NodeSuspected("node0"))
    talk.auto = False
    talk.fail("trainer/0")
    assert talk.world("trainer").phase == "stopping" and talk.job.roles["trainer"].outcome is None
    hear(talk, "node0")
    assert talk.world("trainer").retiring == "ended" and talk.job.roles["trainer"].outcome == "ignored"
    assert any("node0 is heard again: ignored: rule" in text for text in talk.texts())


def test_r11_a_used_up_budget_fails_the_job_when_the_node_is_heard_again():
    talk = gang(restart("role", 0))
    talk.fail("trainer/0")
    hear(talk)
    assert talk.job.ending == "failed" and "used up its budget" in talk.job.ending_reason
    assert talk.job.roles["trainer"].outcome == "failed"


@pytest.mark.parametrize(("heard_s", "fails_s"), [(101, 102), (110, 110)])
def test_r7_a_used_up_budget_waits_for_the_upstream_after_the_node_as_usual(heard_s: int, fails_s: int):
    talk = served(restart("role", 0))
    talk.tell(ev.NodeSuspected("node2"))
    talk.now = 100 * SECOND
    talk.fail("trainer/0")
    talk.now = heard_s * SECOND
    talk.tell(ev.NodeHeard("node2"))
    while talk.now < fails_s * SECOND:
        assert talk.job.ending is None
        talk.wait(0.25)
    talk.wait(0)
    assert talk.job.ending == "failed"


def test_r7_a_failure_upstream_takes_the_blame_from_one_that_waits_for_a_node():
    talk = served()
    talk.auto = False
    talk.tell(ev.NodeSuspected("node2"))
    talk.fail("trainer/0")
    talk.fail("ps/0")
    assert "incident 1 was caused by ps/0: not counted" in talk.texts()
    assert talk.suspects() == []
    hear(talk, "node2")
    assert talk.job.incidents[0].counted is False


@pytest.mark.parametrize("policy", [None, BUDGET])
def test_r7_the_silent_node_of_an_upstream_is_charged_to_none_of_its_dependents(policy: RestartPolicy | None):
    talk = served(policy)
    talk.tell(ev.NodeSuspected("node0"))
    talk.fail("trainer/0")
    assert talk.attempts()["trainer/0"] == 1, "it would only fail again"
    lose(talk, "node0")
    talk.wait(1)
    assert talk.outcome()[0] is None and charges(talk) == [] and charges(talk, "ps") == []
    assert talk.attempts() == {"ps/0": 2, "trainer/0": 2, "trainer/1": 2} and not talk.job.open
    assert set(talk.job.incidents[-1].worlds) == {"ps/0", "trainer"}, "one cause, one incident"


def test_r7_a_silent_node_without_a_part_in_it_holds_nobody_up():
    talk = served()
    talk.tell(ev.NodeSuspected("node3"))  # a spare
    talk.fail("trainer/0")
    assert len(charges(talk)) == 1
    talk.tell(ev.NodeSuspected("node1"))  # of a trainer: the server does not depend on it
    talk.wait(60)
    talk.fail("ps/0")
    assert len(charges(talk, "ps")) == 1


def test_r7_a_replica_on_the_silent_node_that_is_heard_of_has_failed_by_itself():
    talk = gang(None)
    talk.fail("trainer/1")
    assert talk.suspects() == ["node0"]
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    assert talk.job.ending == "failed"


def test_r9_a_failure_that_is_not_counted_anyway_waits_for_nobody():
    talk = gang(restart("role", 3, rules=(Rule("restart", exit=1, counted=False),)))
    talk.fail("trainer/0")
    assert talk.suspects() == [] and charges(talk) == []


def test_r8_of_two_silent_nodes_one_that_is_lost_is_enough_to_excuse():
    for lost_first in (True, False):
        talk = gang(None, replicas=3)
        talk.tell(ev.NodeSuspected("node2"))
        talk.fail("trainer/0")
        assert talk.suspects() == ["node1", "node2"]
        if lost_first:
            lose(talk)
            hear_later = talk.tell(ev.NodeHeard("node2"))
            assert talk.job.ending is None and hear_later == []
        else:
            hear(talk)
            assert talk.job.ending is None and talk.suspects() == ["node2"]
            lose(talk, "node2")
        assert talk.job.ending is None


def test_r8_a_link_that_flaps_has_each_failure_judged_for_itself():
    talk = gang(restart("role", 2, backoff_ns=0))
    for generation in (1, 2, 3):
        attempt = talk.replica("trainer/0").attempt
        talk.tell(ev.NodeSuspected("node1"))
        talk.fail("trainer/0")
        assert talk.job.ending is None
        talk.now += SECOND
        talk.tell(ev.NodeHeard("node1"))
        talk.tell(ev.NodeSuspected("node1"))
        talk.tell(ev.ReplicaStopped(r("trainer/1"), attempt))
        talk.tell(ev.NodeHeard("node1"))
        form(talk, 2, generation + 1)
        assert len(charges(talk)) == min(generation, 2)
    assert talk.job.ending == "failed", "the third is one too many"


def test_r8_a_silent_node_whose_peers_fail_first_counts_in_the_row_of_losses():
    talk = gang(None, replicas=4, free_incidents_max=2, cordon_after=9)
    talk.fail("trainer/0")
    lose(talk)
    talk.answer()
    talk.gone("node2")
    assert talk.job.ending is None
    talk.gone("node3")
    assert talk.job.ending_reason.startswith("3 changes of membership of trainer in a row ")


@pytest.mark.parametrize("late_ns", [0, 1])
@pytest.mark.parametrize(("policy", "ends"), [(None, "failed"), (BUDGET, None), (RULE, "failed")])
def test_r7_what_an_incident_takes_in_is_charged_if_the_incident_came_too_late(
    policy: RestartPolicy | None, ends: str | None, late_ns: int
) -> None:
    ps = role("ps", kind="service", restart=restart("replica"))
    gates = (Gate("ps", "started", "restart"),)
    trainers = role("trainer", min_replicas=2, max_replicas=2, restart=policy, gates=gates)
    talk = joined(ps, trainers, nodes=3, cpu=1)
    talk.auto = False
    talk.now = 98 * SECOND
    talk.tell(ev.NodeSuspected("node2"))
    talk.fail("trainer/0")
    talk.now = 100 * SECOND + late_ns
    talk.fail("ps/0")
    assert talk.job.incidents[0].result == "became part of incident 2"
    assert talk.suspects() == (["node2"] if policy is not BUDGET or late_ns else [])
    hear(talk, "node2")
    assert talk.job.ending == ends
    assert charges(talk) == ([(98 * SECOND, 0)] if policy is BUDGET and late_ns else [])


def test_r8_a_failure_that_joins_an_open_incident_waits_too():
    talk = gang(RULE)
    talk.tell(ev.StoreLost("trainer", 1))  # the incident stops all; trainer/0 had failed before it could be told
    talk.fail("trainer/0")
    assert talk.job.ending is None and talk.suspects() == ["node1"]
    hear(talk)
    assert talk.job.ending == "failed"


def test_r6_an_incident_that_starts_again_waits_for_the_judgement_of_what_joins_it():
    ps, cache = (role(name, kind="service", restart=restart("replica")) for name in ("ps", "cache"))
    gates = (Gate("ps", "started"), Gate("cache", "started"))
    talk = joined(ps, cache, role("trainer", min_replicas=2, max_replicas=2, gates=gates), nodes=4, cpu=1)
    talk.now, talk.auto = 100 * SECOND, False
    talk.fail("ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    assert talk.job.incidents[0].phase == "starting"
    talk.tell(ev.NodeSuspected("node1"))  # that of the cache
    talk.fail("trainer/0")
    talk.auto = True
    talk.tell(ev.ReplicaStopped(r("ps/0"), 2))
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    assert talk.attempts() == {"ps/0": 2, "cache/0": 1, "trainer/0": 1, "trainer/1": 1}, "before it is judged"
    hear(talk)
    assert talk.job.ending == "failed"


def test_r18_a_job_that_ends_waits_for_no_judgement():
    talk = gang()
    talk.fail("trainer/0")
    talk.tell(ev.CancelRequested())
    assert talk.suspects() == [] and talk.job.ending == "cancelled"
    assert talk.tell(ev.NodeHeard("node1")) == []


def test_r8_a_world_that_is_ended_meanwhile_is_not_judged():
    ps = role("ps", kind="service", restart=restart("replica"))
    workers = role("worker", min_replicas=1, max_replicas=2, restart=restart("replica"), gates=(Gate("ps", "started"),))
    for gates in ((), (Gate("worker", "started", "restart"),)):
        talk = joined(ps, workers, role("helper", gates=gates), nodes=4, cpu=1)
        talk.tell(ev.NodeSuspected("node0"))
        talk.fail("worker/1")
        assert "helper" in talk.job.incidents[0].worlds or not gates
        talk.tell(ev.ScaleRequested("worker", 1))
        hear(talk, "node0")
        assert charges(talk, "worker") == [] and talk.up() == ["ps/0", "worker/0", "helper/0"]


def test_r6_a_silent_node_that_is_given_up_for_an_unkillable_worker_was_the_cause():
    talk = gang(None, replicas=2)
    talk.fail("trainer/0")
    talk.tell(ev.ReplicaUnkillable(r("trainer/1"), 1))
    assert talk.job.ending is None and not talk.job.suspected and len(talk.job.open) == 1


def test_r21_a_failure_without_a_controller_is_judged_when_its_peers_are_heard():
    talk = gang(None)
    talk.tell(ev.NodeHeard("node1"))
    talk.tell(ev.ControllerStarted(2))
    talk.fail("trainer/0")
    assert talk.job.ending is None
    talk.now += 600 * SECOND
    talk.tell(ev.NodeSilent("node1"))
    assert talk.job.ending is None and talk.job.incidents[-1].root == "node1"


def test_r19_a_node_is_suspected_before_its_agent_fences_and_until_its_heartbeat():
    sessions = Sessions(JobOptions())
    sessions.hear(msg.Join("node0", 1, NodeSpec("node0"), "", 0), 0)
    sessions.hear(msg.Join("node1", 1, NodeSpec("node1"), "", 0), 0)
    sessions.detector.heard("node1", SECOND, SECOND)
    assert sessions.detector.is_heard("node0") and not sessions.detector.is_heard("node2")
    assert sessions.detector.is_watched("node0") and not sessions.detector.is_watched("node2")
    assert sessions.detector.expire(1750 * MS - 1) == [] and sessions.detector.expire(1750 * MS) == [
        ev.NodeSuspected("node0")
    ]
    assert sessions.detector.deadline_of(["node0", "node2"]) == 5 * SECOND and sessions.detector.deadline() == 2750 * MS
    beat = msg.Heartbeat("node0", 1, 0, 2 * SECOND)
    assert not sessions.detector.is_heard("node0") and sessions.hear(beat, 2 * SECOND).events == (
        ev.NodeHeard("node0", 2 * SECOND),
    )
    assert sessions.detector.is_heard("node0") and sessions.hear(beat, 2 * SECOND).events == ()
    assert sessions.detector.expire(3750 * MS) == [ev.NodeSuspected("node1"), ev.NodeSuspected("node0")], (
        "a link may flap"
    )


class Cut:
    """A gang on two nodes, whose last contact was at 97 s: node1 is cut off then, with messages of both sides delayed.

    node1 has sent heartbeats every half second, each with the answer that its agent had, and fences at 100 s.
    """

    def __init__(self) -> None:
        self.talk, self.sessions = gang(), Sessions(JobOptions())
        for name in ("node0", "node1"):
            self.hear(msg.Join(name, 1, NodeSpec(name), "", 0), 97)
        assert self.sessions.detector.expire(99 * SECOND) == [ev.NodeSuspected("node0"), ev.NodeSuspected("node1")]
        self.beat("node0", 99, answered_s=99)
        self.talk.fail("trainer/0")  # at 100 s

    def hear(self, message: msg.ToController, at_s: float) -> Received:
        return self.sessions.hear(message, round(at_s * SECOND))

    def beat(self, name: str, at_s: float, answered_s: float) -> Received:
        """A heartbeat arrives, and what follows from it is told to the controller."""
        received = self.hear(msg.Heartbeat(name, 1, 0, round(answered_s * SECOND)), at_s)
        self.talk.now = max(self.talk.now, round(at_s * SECOND))
        for event in received.events:
            self.talk.tell(event)
        return received


def test_r8_a_heartbeat_from_before_a_fence_that_comes_late_clears_nobody():
    cut = Cut()
    for _ in range(5):  # those of 97.5 to 99.5 s, together with the connections that the fence has closed
        assert cut.beat("node1", 100.05, answered_s=97).events == ()
    assert cut.talk.job.incidents[0].counted is False and charges(cut.talk) == []
    assert not cut.sessions.detector.is_heard("node1") and cut.sessions.detector.is_watched("node1")
    cut.talk.join("node1")
    assert cut.talk.texts().count("incident 1 was caused by the loss of node1: not counted") == 1
    assert charges(cut.talk) == [] and cut.talk.replica("trainer/0").failures == []


def test_r7_the_next_heartbeat_of_a_node_that_still_runs_shows_that_it_does():
    cut = Cut()
    (answer,) = cut.beat("node1", 100.05, answered_s=97).answers
    assert answer == msg.Acked(1, 1, 0, round(100.05 * SECOND))
    assert cut.beat("node1", 100.5, answered_s=100.05).events == (ev.NodeHeard("node1", round(100.05 * SECOND)),)
    assert cut.talk.charges_in_the_end("trainer") == [100], "trainer/0 has failed by itself"


def test_r8_a_heartbeat_that_was_fresh_before_the_failure_leaves_it_to_the_deadline():
    talk = gang()
    talk.fail("trainer/0")  # at 100 s
    talk.tell(ev.NodeHeard("node1", up_ns=100 * SECOND - 1))  # it was on its way, and node1 may have fenced since
    talk.wait(1.74)
    assert list(talk.job.incidents[0].suspects) == ["node1"] and not talk.job.suspected and charges(talk) == []
    talk.wait(0.01)
    assert talk.charges_in_the_end("trainer") == [100], "it is heard all the time"


def test_r8_a_node_whose_answers_are_lost_is_suspected_although_it_is_heard():
    sessions = Sessions(JobOptions())
    sessions.hear(msg.Join("node0", 1, NodeSpec("node0"), "", 0), 0)
    for half in range(1, 5):  # it will fence, however well it is heard
        sessions.hear(msg.Heartbeat("node0", 1, 0, answered_ns=0), half * SECOND // 2)
    assert sessions.detector.expire(2250 * MS) == [ev.NodeSuspected("node0")]


def test_r19_an_agent_returns_the_time_of_the_last_answer_with_each_heartbeat():
    talk = agents.Talk()
    talk.tell(msg.Acked(1, 1, 0, at_ns=70))
    talk.tell(msg.Acked(1, 1, 0, at_ns=60))
    talk.now = 500 * MS
    talk.sent.clear()
    talk.tell(io.AgentTimePassed())
    assert talk.sent == [msg.Heartbeat("node0", 1, 500 * MS, answered_ns=70)]


def test_r20_a_node_that_is_lost_or_unknown_is_not_overdue():
    talk = gang()
    lose(talk)
    for name in ("node1", "node9"):
        assert talk.tell(ev.NodeSuspected(name)) == [] and talk.tell(ev.NodeHeard(name)) == []
    assert not talk.job.suspected


def test_r7_a_budget_is_never_overdrawn_by_what_is_judged_late():
    workers = role(
        "worker", min_replicas=1, max_replicas=2, restart=restart("replica", 1), gates=(Gate("ps", "started"),)
    )
    ps = role("ps", kind="service", restart=restart("replica"))
    talk = joined(ps, workers, nodes=3, cpu=1)
    talk.tell(ev.NodeSuspected("node0"))
    talk.fail("worker/0")
    talk.fail("worker/1")
    talk.now += 10 * MS
    talk.tell(ev.NodeHeard("node0"))
    talk.wait(10)
    assert talk.job.ending == "failed" and len(charges(talk, "worker")) <= 1
