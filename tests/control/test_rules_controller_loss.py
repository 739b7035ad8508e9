"""R20, R21: the controller is lost and another takes over; connections are lost; late news changes nothing."""

from __future__ import annotations

import pytest

from flowdist.control.agent.lease import Lease
from flowdist.control.connection.sessions import Received, Sessions
from flowdist.control.controller import Controller
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import AskStep, OpenStore, StartReplica, StopAtStep, StopReplica, TellPeers
from flowdist.graph import MINUTE, MS, SECOND, Gate, JobOptions
from tests.control import agent_harness as agents
from tests.control.agent_harness import T, kill
from tests.control.harness import TCP, Talk, graph, joined, node, r, restart, role


def two_trainers(**options: int) -> Talk:
    trainers = role("trainer", min_replicas=1, max_replicas=2, restart=restart())
    return joined(trainers, nodes=2, cpu=1, **options)


def take_over(talk: Talk) -> Sessions:
    """The controller is lost; another one reads the record and is where the last one was."""
    fresh = Controller(talk.graph, tuple(spec.name for spec in talk.graph.cluster.nodes))
    for event, at in talk.record:
        fresh.handle(event, at)
    assert fresh.state == talk.job
    talk.controller = fresh
    sessions = Sessions(talk.graph.options)
    talk.tell(sessions.take_over(fresh.state, talk.now))
    return sessions


def beat(sessions: Sessions, name: str, now: float, incarnation: int = 1) -> list[object]:
    heard = sessions.hear(msg.Heartbeat(name, incarnation, 7), round(now * SECOND))
    return [*heard.answers, *heard.events]


def join(sessions: Sessions, name: str, now: float, incarnation: int = 1) -> list[object]:
    heard = sessions.hear(msg.Join(name, incarnation, node(name), "10.0.0.1", 7), round(now * SECOND))
    return [*heard.answers, *heard.events]


def test_r21_another_controller_takes_over_and_what_runs_goes_on():
    talk = two_trainers()
    before = talk.attempts()
    talk.now = 5 * SECOND
    sessions = take_over(talk)
    assert sessions.epoch == talk.job.epoch == 2
    assert talk.texts()[-1] == "the controller is back, as epoch 2; what runs goes on"
    assert talk.attempts() == before and talk.up() == ["trainer/0", "trainer/1"]
    assert take_over(talk).epoch == 3


def test_r21_a_controller_that_was_replaced_and_speaks_up_late_changes_nothing():
    talk = two_trainers()
    take_over(talk)
    assert talk.tell(ev.ControllerStarted(2)) == [] and talk.tell(ev.ControllerStarted(1)) == []
    assert talk.job.epoch == 2


@pytest.mark.parametrize(("lease", "silent_at"), [(4, 601), (1200, 1201)])
def test_r21_an_unheard_nodes_replicas_wait_for_the_longer_of_lease_and_outage(lease: int, silent_at: int) -> None:
    talk = two_trainers(lease_ns=lease * SECOND)
    sessions = take_over(talk)
    assert sessions.detector.deadline() == silent_at * SECOND
    assert sessions.detector.expire(silent_at * SECOND - 1) == []
    talk.now = silent_at * SECOND
    assert sessions.detector.expire(talk.now) == [ev.NodeSilent("node0"), ev.NodeSilent("node1")]
    assert talk.attempts() == {"trainer/0": 1, "trainer/1": 1}
    talk.tell(ev.NodeSilent("node1"))
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 1}
    assert "node1 lost (not heard since the controller is back)" in " ".join(talk.texts())


def test_r21_a_node_that_has_joined_the_new_controller_has_its_lease_and_no_more():
    sessions = take_over(two_trainers())
    join(sessions, "node0", 100)
    assert (
        sessions.detector.expire(105 * SECOND - 1) == [ev.NodeSuspected("node0")]
        and sessions.detector.deadline() == 105 * SECOND
    )


def test_r21_a_heartbeat_to_the_new_controller_is_answered_with_its_epoch():
    sessions = take_over(two_trainers())
    assert beat(sessions, "node0", 1) == [msg.Acked(2, 1, 7, SECOND)]
    silent = [ev.NodeSilent("node0"), ev.NodeSilent("node1")]
    assert sessions.detector.expire(601 * SECOND - 1) == [] and sessions.detector.expire(601 * SECOND) == silent, (
        "its patience is no less"
    )


def test_r21_the_new_controller_knows_the_incarnations_of_the_agents():
    talk = two_trainers()
    talk.join("node1")  # it has lost what it ran
    sessions = take_over(talk)
    order = StopReplica("node1", r("trainer/1"), 2, 0)
    assert sessions.order(order) == msg.Ordered(2, 2, order)
    assert beat(sessions, "node1", 1, incarnation=1) == [] and beat(sessions, "node1", 1, incarnation=2) == [
        msg.Acked(2, 2, 7, SECOND)
    ]


def test_r21_a_node_that_was_lost_before_has_to_join_anew():
    talk = two_trainers()
    talk.gone("node1")
    sessions = take_over(talk)
    assert beat(sessions, "node1", 1) == [msg.Rejoin(2, 1)]
    report = msg.Report("node1", 1, ev.ReplicaReady(r("trainer/1"), 1))
    assert sessions.hear(report, SECOND).events == ()


def test_r21_what_was_due_meanwhile_is_put_off_until_agents_could_be_heard():
    ps = role("ps", kind="service", ready=TCP, ready_timeout_ns=10 * SECOND, restart=restart("replica"))
    talk = joined(ps, role("trainer"), auto=False)
    talk.tell(ev.StoreOpened("ps/0", 1, 1))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 1))
    talk.now = 60 * SECOND
    take_over(talk)
    assert talk.job.incidents == [] and talk.controller.deadline() == 65 * SECOND
    talk.tell(ev.ReplicaReady(r("ps/0"), 1))
    talk.wait(3600)
    assert talk.job.incidents == []


def test_r21_what_is_due_later_than_that_is_due_when_it_was():
    ps = role("ps", kind="service", ready=TCP, ready_timeout_ns=MINUTE, restart=restart("replica"))
    talk = joined(ps, role("trainer"), auto=False)
    talk.tell(ev.StoreOpened("ps/0", 1, 1))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 1))
    take_over(talk)
    assert talk.controller.deadline() == 60 * SECOND


def test_r21_an_agent_keeps_its_workers_as_long_as_its_controller_may_restart():
    talk = refused_until(500)
    (hello,) = talk.tell(io.Connected())
    assert isinstance(hello, msg.Join) and hello.inventory == (ev.InventoryItem(T, 1, "running"),)
    talk.tell(msg.Acked(2, 1, talk.now))
    assert talk.at(502.9) == [] and talk.at(503) == [kill("KILL")], "the new lease counts as every lease does"
    talk = refused_until(599)
    assert talk.at(599.9) == [] and talk.at(600) == [kill("KILL")]


def refused_until(seconds: int) -> agents.Talk:
    """An agent that finds nobody listening, from the first second on."""
    talk = agents.running()
    talk.tell(io.Disconnected())
    for second in range(1, seconds + 1):
        assert talk.at(second) == [] and talk.tell(io.Refused(is_local=True)) == []
    return talk


def test_r21_an_agent_that_hears_nothing_fences_at_the_end_of_its_lease():
    talk = agents.running()
    talk.tell(io.Disconnected())
    assert talk.at(2.9) == [] and talk.at(3) == [kill("KILL")]


def test_r21_a_refused_connection_is_silence_since_a_firewall_may_have_refused_it():
    talk = agents.running()
    talk.tell(io.Disconnected())
    for second in (1, 2):
        assert talk.at(second) == [] and talk.tell(io.Refused(is_local=False)) == []
    assert talk.at(2.9) == [] and talk.at(3) == [kill("KILL")], "the controller may live, and replaces it at 5 s"


def test_r21_an_agent_whose_host_goes_quiet_after_a_refusal_fences_a_lease_later():
    talk = agents.running()
    talk.tell(io.Disconnected())
    talk.at(2)
    talk.tell(io.Refused(is_local=True))
    assert talk.at(4.9) == [] and talk.at(5) == [kill("KILL")]


def test_r21_after_an_outage_the_next_one_has_all_its_time_again():
    options = JobOptions()
    lease = Lease(options)
    lease.acked(0)
    lease.refused(SECOND)
    lease.acked(2 * SECOND)
    assert lease.fence_at() == 5 * SECOND
    for second in range(3, 603):
        lease.refused(second * SECOND)
    assert lease.fence_at() == 602 * SECOND == 3 * SECOND + options.controller_outage_ns - SECOND


def test_r21_an_agent_that_was_never_acknowledged_has_nothing_to_fence_for():
    lease = Lease(JobOptions())
    lease.refused(SECOND)
    assert lease.fence_at() is None


def test_r19_a_lease_that_is_renewed_at_one_go_is_where_played_heartbeats_leave_it():
    talk = agents.Talk()
    for now in (499 * MS, 500 * MS, 502 * MS, 10_300 * MS, 10_301 * MS):
        played, renewed = Lease(JobOptions()), talk.agent
        played.acked(0)
        played.beat(0)
        while played.beat_at_ns is not None and played.beat_at_ns + 2 * MS <= now:
            sent = played.beat_at_ns
            played.beat(sent)
            played.acked(sent)
        last = renewed.lease.renew(now, 2 * MS)
        assert (renewed.lease.acked_ns, renewed.lease.beat_at_ns) == (played.acked_ns, played.beat_at_ns)
        assert last in (None, played.acked_ns)
    talk.tell(io.Disconnected())
    assert talk.agent.lease.renew(60 * SECOND, 2 * MS) is None


def test_r20_an_agent_that_joined_anew_ignores_orders_for_its_earlier_incarnation():
    talk = agents.running()
    talk.tell(msg.Rejoin(1, 1))
    talk.tell(io.WorkerExited(T, 1, 0, signal="KILL"))
    talk.tell(io.WorkerExited(T, 1, 1, signal="KILL"))
    assert talk.agent.incarnation == 2
    assert talk.order(agents.start(2), incarnation=1) == [], "its replica is about to start elsewhere"
    assert talk.order(OpenStore("node0", "trainer", 2), incarnation=1) == []
    assert talk.tell(msg.Rejoin(1, 1)) == [] and not talk.agent.is_fencing
    assert talk.tell(msg.Dismissed(1, 1)) == [] and not talk.agent.is_over
    assert talk.order(agents.start(2), incarnation=2) == [io.SpawnWorkers(agents.start(2))]


def test_r20_an_order_from_before_a_fence_starts_nothing_when_it_comes_late():
    talk = agents.Talk()
    sessions = Sessions(JobOptions())

    def hear() -> None:
        """The controller hears what was sent last, and the agent its answers."""
        for answer in sessions.hear(talk.sent[-1], talk.now).answers:  # type: ignore[arg-type]
            talk.tell(answer)

    talk.sent = [sent for sent in talk.sent if isinstance(sent, msg.Join)]
    hear()
    late = sessions.order(agents.start(1))  # it is on its way for long
    assert sessions.detector.expire(5 * SECOND) == [ev.NodeSuspected("node0"), ev.NodeSilent("node0")]
    talk.now = 500 * MS
    talk.tell(io.AgentTimePassed())
    hear()  # a heartbeat: the agent is told to join anew, which it does at once
    assert talk.sent[-1] == msg.Join("node0", 2, agents.A, "127.0.0.1", 500 * MS)
    hear()
    assert talk.tell(late) == []
    assert talk.tell(sessions.order(agents.start(2))) == [io.SpawnWorkers(agents.start(2))]


def test_r20_an_acknowledgement_of_an_earlier_incarnation_renews_no_lease():
    talk = agents.Talk()
    talk.tell(msg.Rejoin(1, 1))
    talk.tell(msg.Acked(1, 1, 0))
    assert talk.agent.lease.acked_ns is None
    talk.tell(msg.Acked(1, 2, 0))
    assert talk.agent.lease.acked_ns == 0


def test_r20_an_agent_that_is_told_twice_to_join_anew_fences_once():
    talk = agents.running()
    assert talk.tell(msg.Rejoin(1, 1)) == [kill("KILL")]
    assert talk.tell(msg.Rejoin(1, 1)) == []
    talk.tell(io.Disconnected())
    assert talk.tell(io.Connected()) == [], "what is fencing does not join"


def test_r20_messages_of_the_controller_name_the_incarnation_that_they_are_for():
    sessions = Sessions(JobOptions(), epoch=4)
    join(sessions, "node0", 0, incarnation=3)
    order = StopReplica("node0", T, 1, 0)
    assert sessions.order(order) == msg.Ordered(4, 3, order)
    assert sessions.dismiss("node0") == msg.Dismissed(4, 3)
    assert sessions.dismiss("node9") == msg.Dismissed(4, 0)


def test_r20_a_message_of_an_incarnation_that_is_over_says_nothing():
    sessions = Sessions(JobOptions())
    join(sessions, "node0", 0, incarnation=2)
    assert beat(sessions, "node0", 1, incarnation=1) == [] and join(sessions, "node0", 1, incarnation=1) == []
    for late in (msg.Report("node0", 1, ev.ReplicaReady(T, 1)), msg.Leave("node0", 1), msg.Preempted("node0", 1, 5)):
        assert sessions.hear(late, SECOND) == Received()
    assert sessions.detector.deadline() == 1750 * MS, "it has kept no lease alive either"


def test_r20_what_a_node_reports_after_it_was_given_up_is_not_heard():
    sessions = Sessions(JobOptions())
    join(sessions, "node0", 0)
    report = msg.Report("node0", 1, ev.ReplicaReady(T, 1))
    assert sessions.hear(report, SECOND).events == (ev.ReplicaReady(T, 1),)
    assert sessions.detector.expire(5 * SECOND) == [ev.NodeSuspected("node0"), ev.NodeSilent("node0")]
    assert sessions.hear(report, 6 * SECOND).events == ()
    assert beat(sessions, "node0", 6) == [msg.Rejoin(1, 1), ev.NodeHeard("node0")]


def test_r20_silence_of_a_node_that_left_or_is_gone_means_nothing():
    for leaves in (True, False):
        sessions = Sessions(JobOptions())
        assert join(sessions, "node0", 0) == [msg.Acked(1, 1, 7), ev.NodeJoined("node0", node("node0"), "10.0.0.1")]
        if leaves:
            assert sessions.hear(msg.Leave("node0", 1), SECOND).events == (ev.NodeLeft("node0"),)
        else:
            sessions.note(ev.NodeHeard("node0"))
            assert sessions.detector.deadline() == 1750 * MS
            sessions.note(ev.NodeGone("node0"))
        assert sessions.detector.deadline() is None and sessions.detector.expire(60 * SECOND) == []


def test_r19_a_heartbeat_that_was_not_played_keeps_the_lease_like_one_that_was():
    sessions = Sessions(JobOptions())
    join(sessions, "node0", 0)
    sessions.detector.heard("node0", 3 * SECOND, 3 * SECOND)
    assert (
        sessions.detector.expire(8 * SECOND - 1) == [ev.NodeSuspected("node0")]
        and sessions.detector.deadline() == 8 * SECOND
    )
    assert sessions.hear(msg.Preempted("node0", 1, 9), 4 * SECOND).events == (ev.NodePreempted("node0", 9),)


def test_a_node_that_left_leads_to_a_decision_and_a_heartbeat_of_a_lost_one_to_none():
    talk = two_trainers()
    talk.tell(ev.NodeLeft("node1"))
    assert talk.up() == ["trainer/0"] and "node1 left; lost replicas: trainer/1" in talk.texts()
    assert talk.tell(ev.NodeHeard("node1")) == []


def reconnect(talk: Talk, name: str, *items: ev.InventoryItem) -> list[object]:
    """The connection was lost, not the node. Orders that follow."""
    spec = next(spec for spec in talk.graph.cluster.nodes if spec.name == name)
    effects = talk.tell(ev.NodeJoined(name, spec, inventory=items))
    return [effect for effect in effects if hasattr(effect, "node")]


def item(name: str, phase: str, **fields: object) -> ev.InventoryItem:
    return ev.InventoryItem(r(name), 1, phase, **fields)  # type: ignore[arg-type]


def test_a_stop_that_was_lost_with_the_connection_is_said_again_with_its_grace():
    talk = two_trainers()
    talk.auto = False
    talk.fail("trainer/0")
    assert reconnect(talk, "node1", item("trainer/1", "running")) == [
        StopReplica("node1", r("trainer/1"), 1, 2 * SECOND)
    ]


def test_a_stop_that_was_carried_out_meanwhile_is_not_said_again():
    talk = two_trainers()
    talk.auto = False
    talk.fail("trainer/0")
    effects = reconnect(talk, "node1", item("trainer/1", "stopped"))
    assert not [effect for effect in effects if isinstance(effect, StopReplica)]
    assert talk.world("trainer").generation == 2


def test_r14_a_question_for_the_step_or_its_answer_is_said_again():
    talk = two_trainers()
    talk.auto = False
    talk.tell(ev.NodePreempted("node0", 60 * SECOND))
    assert reconnect(talk, "node1", item("trainer/1", "running")) == [AskStep("node1", r("trainer/1"), 1)]
    talk.tell(ev.StepTold(r("trainer/1"), 1, 3))
    assert reconnect(talk, "node1", item("trainer/1", "running")) == [], "no step is agreed before all have answered"
    talk.tell(ev.StepTold(r("trainer/0"), 1, 4))
    assert reconnect(talk, "node1", item("trainer/1", "running")) == [StopAtStep("node1", r("trainer/1"), 1, 5)]


def test_the_addresses_that_a_replica_has_are_told_again():
    ps = role("ps", kind="service", ports=("rpc",), ready=TCP, restart=restart("replica"))
    talk = joined(ps, role("trainer", gates=(Gate("ps", "ready"),)), nodes=2, cpu=1)
    told = (("ps:rpc", "127.0.0.1:4000"),)
    assert reconnect(talk, "node1", item("trainer/0", "running")) == [TellPeers("node1", r("trainer/0"), 1, told)]


def test_an_ipv6_address_of_another_role_has_brackets():
    ps = role("ps", kind="service", ports=("rpc",), ready=TCP, restart=restart("replica"))
    talk = Talk(graph(ps, role("trainer", gates=(Gate("ps", "ready"),)), nodes=1))
    talk.tell(ev.NodeJoined("node0", talk.graph.cluster.nodes[0], incarnation=1, address="2001:db8::7"))
    assert talk.starts[-1].addresses == (("ps:rpc", "[2001:db8::7]:4000"),)
    assert talk.starts[-1].master_addr == "2001:db8::7"


def test_a_start_or_a_store_that_was_lost_with_the_connection_is_ordered_again():
    trainers = role("trainer", min_replicas=2, max_replicas=2)
    talk = joined(trainers, nodes=2, cpu=1, auto=False)
    assert reconnect(talk, "node0") == [OpenStore("node0", "trainer", 1)]
    talk.tell(ev.StoreOpened("trainer", 1, 29400))
    (again,) = reconnect(talk, "node1")
    assert isinstance(again, StartReplica) and again in talk.starts


def test_what_was_heard_to_run_and_is_unknown_to_its_agent_has_failed():
    talk = two_trainers()
    reconnect(talk, "node1")
    assert talk.job.incidents[0].reason.endswith(
        "its command could not be started: its agent does not know the attempt"
    )
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2}


def test_an_inventory_tells_what_was_not_heard_for_want_of_a_connection():
    ps = role("ps", kind="service", ports=("rpc",), ready=TCP, restart=restart("replica"))
    talk = joined(ps, role("trainer", gates=(Gate("ps", "ready"),)), auto=False)
    talk.tell(ev.StoreOpened("ps/0", 1, 1))
    reconnect(talk, "node0", item("ps/0", "ready", ports=(("rpc", 4000),)))
    assert talk.replica("ps/0").phase == "ready" and talk.world("trainer").phase == "opening"
    failed = ev.ReplicaExited(r("ps/0"), 1, "exit", 3)
    reconnect(talk, "node0", item("ps/0", "exited", exited=failed))
    assert talk.replica("ps/0").attempt == 1 and talk.job.incidents[0].reason == "ps/0 failed on node0: exit code 3"


def test_what_a_node_that_starts_anew_runs_all_the_same_is_stopped():
    talk = two_trainers()
    talk.incarnations["node1"] += 1
    stray, over = item("trainer/1", "running"), item("trainer/0", "exited")
    spec = talk.graph.cluster.nodes[1]
    effects = talk.tell(ev.NodeJoined("node1", spec, incarnation=2, inventory=(stray, over)))
    stops = [effect for effect in effects if isinstance(effect, StopReplica) and effect.node == "node1"]
    assert stops == [StopReplica("node1", r("trainer/1"), 1, 0)]


def test_r19_the_last_words_of_a_guardian_prove_the_death_of_its_node():
    sessions = Sessions(JobOptions())
    join(sessions, "node0", 0, incarnation=2)
    assert sessions.gone("node0", 1000, "its agent died") == (ev.NodeGone("node0", "its agent died"),)
    assert sessions.detector.deadline() is None, "its silence means nothing any more"


def test_r21_a_node_that_left_while_no_controller_was_connected_has_left():
    sessions = Sessions(JobOptions())
    join(sessions, "node0", 0, incarnation=2)
    assert sessions.gone("node0", 1000, "") == (ev.NodeLeft("node0"),) and sessions.detector.deadline() is None


def test_r20_the_last_words_of_a_guardian_say_nothing_of_a_later_one():
    sessions = Sessions(JobOptions())
    join(sessions, "node0", 0, incarnation=1001)
    assert sessions.gone("node0", 1000, "its agent died") == () and sessions.detector.deadline() == 1750 * MS


def test_r21_a_node_that_calls_from_afar_is_lost_with_its_lease():
    talk = two_trainers()
    talk.now = 5 * SECOND
    sessions = Sessions(talk.graph.options)
    talk.tell(sessions.take_over(talk.job, talk.now, far=("node1",)))
    assert sessions.detector.expire(round(9.9 * SECOND)) == []
    assert sessions.detector.expire(10 * SECOND) == [ev.NodeSilent("node1")], (
        "the other keeps its workers for controller_outage"
    )
    assert sessions.detector.expire(605 * SECOND) == []
    assert sessions.detector.expire(606 * SECOND) == [ev.NodeSilent("node0")]
