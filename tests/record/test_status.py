"""The status of a job as a value: roles, worlds, replicas, nodes, recent decisions and the rate of steps."""

from __future__ import annotations

import msgspec

from flowdist.control.fleet.values import FleetState, Member
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Decided, OpenStore, StartReplica
from flowdist.graph import SECOND, Gate, VersionEdge
from flowdist.record.journal import record
from flowdist.record.status import (
    RATE_WINDOW_NS,
    SAID_MAX,
    Decision,
    MemberStatus,
    RecentDecisions,
    RestartCount,
    Status,
    members_of,
    role_status,
    status_of,
)
from flowdist.testing import simulate
from tests.control.harness import TCP, Talk, graph, joined, r, restart, role


def talk_of(*roles, nodes: int = 2, **options) -> Talk:  # type: ignore[no-untyped-def]
    return joined(*roles, nodes=nodes, **options)


def trainers(low: int, high: int, **fields):  # type: ignore[no-untyped-def]
    return role("trainer", min_replicas=low, max_replicas=high, **fields)


def status(talk: Talk, now: int | None = None) -> Status:
    return status_of(talk.job, RecentDecisions(), "run-1", now)


def lately_of(*points: tuple[float, int]) -> RecentDecisions:
    lately = RecentDecisions()
    for number, (at_s, step) in enumerate(points):
        event = ev.ReplicaProgressed(r("trainer/0"), 1, step)
        lately.hear(record(number, round(at_s * SECOND), event, []))
    return lately


def test_a_running_job_in_numbers():
    ps = role("ps", kind="service", ready=TCP, ports=("rpc",), restart=restart("replica", 3))
    talk = talk_of(ps, trainers(1, 3, procs=2, gates=(Gate("ps", "ready"),), restart=restart("role", 5)))
    told = status(talk, now=7 * SECOND)
    assert (told.name, told.run_id, told.state, told.now_ns, told.epoch) == ("test", "run-1", "running", 7 * SECOND, 1)
    server, trainer = told.roles
    assert (server.name, server.kind, server.phases, server.has_readiness) == ("ps", "service", {"ready": 1}, True)
    assert (trainer.phases, trainer.workers, trainer.target, trainer.generation) == ({"running": 3}, 6, 3, 1)
    assert (trainer.min_replicas, trainer.max_replicas, trainer.charged, trainer.budget) == (1, 3, 0, 5)
    assert [(world.name, world.size, world.generation) for world in told.worlds] == [("trainer", 6, 1)]
    assert [(replica.name, replica.node) for replica in told.replicas][1:] == [
        ("trainer/0", "node1"),
        ("trainer/1", "node0"),
        ("trainer/2", "node1"),
    ]
    assert [(node.name, node.phase, node.replicas, node.cpu, node.cpu_free) for node in told.nodes] == [
        ("node0", "up", 2, 8.0, 6.0),
        ("node1", "up", 2, 8.0, 6.0),
    ]
    assert told.incidents == {} and told.open_incidents == () and told.held_up_by == ()


def test_time_never_stands_behind_the_last_event():
    talk = talk_of(trainers(1, 1))
    talk.wait(5)
    assert status(talk).now_ns == status(talk, now=SECOND).now_ns == 5 * SECOND


def test_the_job_in_a_word_from_start_to_end():
    talk = Talk(graph(trainers(1, 1)))
    assert status(talk).state == "starting" and status(talk).nodes[0].phase == "expected"
    assert status(talk).held_up_by == ("nodes to join: node0",)
    talk.join("node0")
    assert status(talk).state == "running"
    talk.auto = False
    talk.tell(ev.CancelRequested("enough"))
    assert (status(talk).state, status(talk).reason) == ("ending", "enough")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    told = status(talk)
    assert told.state == "cancelled" and told.roles[0].outcome == "stopped" and told.worlds[0].size == 0


def test_restarts_are_counted_by_role_and_cause():
    ps = role("ps", kind="service", restart=restart("replica", 3))
    talk = talk_of(ps, trainers(1, 3, gates=(Gate("ps", "started", "restart"),), restart=restart("role", 5)))
    talk.fail("ps/0")
    talk.fail("trainer/1")
    talk.tell(ev.ScaleRequested("trainer", 2))
    told = status(talk)
    assert told.incidents == {"exit": 2, "scaled": 1}
    assert told.restarts == (
        RestartCount("ps", "exit", 1),
        RestartCount("trainer", "exit", 6),
        RestartCount("trainer", "scaled", 2),
    )
    assert [(role.name, role.restarts, role.charged) for role in told.roles] == [("ps", 1, 1), ("trainer", 8, 1)]


def test_an_incident_that_is_open_says_what_it_awaits():
    talk = talk_of(trainers(2, 2, restart=restart()))
    talk.auto = False
    talk.fail("trainer/0")
    (incident,) = status(talk).open_incidents
    assert (incident.number, incident.phase, incident.kind, incident.root) == (1, "stopping", "exit", "trainer/0")
    assert incident.awaits == 1 and status(talk).held_up_by == ("trainer/1 to stop",)
    assert [replica.phase for replica in status(talk).replicas] == ["gone", "stopping"]


def test_a_seat_is_to_come_for_a_replica_without_room_and_not_for_one_scaled_away():
    talk = talk_of(trainers(1, 3), nodes=1, cpu=2)
    assert [replica.has_seat_to_come for replica in status(talk).replicas] == [False, False, True]
    talk.tell(ev.ScaleRequested("trainer", 2))
    assert not any(replica.has_seat_to_come for replica in status(talk).replicas)


def test_a_stalled_replica_is_shown_with_the_missing_sign():
    talk = talk_of(trainers(2, 2, hang_after_ns=60 * SECOND, restart=restart()))
    talk.auto = False
    talk.tell(ev.ReplicaStalled(r("trainer/1"), 1, "output", 60 * SECOND, was_seen=False))
    assert [replica.stalled for replica in status(talk).replicas] == ["", "output"]


def test_every_state_of_a_node():
    talk = talk_of(trainers(1, 2), nodes=5)
    talk.tell(ev.CordonRequested("node2"))
    talk.tell(ev.DrainRequested("node3"))
    talk.gone("node4")
    told = {node.name: node for node in status(talk).nodes}
    assert [node.phase for node in told.values()] == ["up", "up", "cordoned", "leaving", "lost"]
    assert told["node2"].because == "by the operator"
    assert told["node3"].because == "node3 is drained by the operator"
    talk.tell(ev.ControllerStarted(2))
    told = {node.name: node.phase for node in status(talk).nodes}
    assert list(told.values()) == ["unheard", "unheard", "cordoned", "leaving", "lost"] and status(talk).epoch == 2


def test_a_gang_is_a_world_and_replicas_that_restart_alone_are_none():
    actors = role("actor", max_replicas=3, restart=restart("replica"))
    talk = talk_of(trainers(1, 1), actors)
    assert [world.name for world in status(talk).worlds] == ["trainer"]


def test_only_the_last_messages_are_kept():
    lately = RecentDecisions()
    for number in range(SAID_MAX + 1):
        lately.hear(record(number, number, ev.TimePassed(), [Decided("node_joined", "", f"no {number}", "warning")]))
    assert len(lately.said) == SAID_MAX and lately.said[0] == Decision(1, "no 1", "warning", "node_joined")


def test_steps_per_second_are_those_of_the_furthest_over_half_a_minute():
    assert lately_of().steps_per_s("trainer", 0) is None
    assert lately_of((1, 10)).steps_per_s("trainer", SECOND) is None
    lately = lately_of((1, 10), (2, 20), (2.5, 15), (3, 30))  # a slower rank at 2.5
    assert lately.steps_per_s("trainer", 3 * SECOND) == 10.0
    at = 3 * SECOND + RATE_WINDOW_NS
    assert lately.steps_per_s("trainer", at) == 20 / 32, "without progress the rate falls"
    many = lately_of(*((second, second * 2) for second in range(100)))
    assert many.steps_per_s("trainer", 99 * SECOND) == 2.0
    slow = lately_of((0, 1), (100, 2))
    assert slow.steps_per_s("trainer", 100 * SECOND) == 0.01, "the last two, however far apart"
    assert lately_of((1, 10), (1, 11)).steps_per_s("trainer", SECOND) is None, "no time between them"


def test_counted_steps_have_a_speed_until_the_script_reports_its_own():
    lately = RecentDecisions()
    for second, event in enumerate(
        [
            ev.ReplicaStepped(r("trainer/0"), 1, 1),
            ev.ReplicaStepped(r("trainer/0"), 1, 5),
            ev.ReplicaProgressed(r("trainer/0"), 1, 7001),
            ev.ReplicaStepped(r("trainer/1"), 1, 9),
            ev.ReplicaProgressed(r("trainer/0"), 1, 7003),
        ]
    ):
        lately.hear(record(second, second * SECOND, event, []))
        now = lately.steps_per_s("trainer", second * SECOND)
        assert now == (None, 4.0, None, None, 1.0)[second], "numbers of two kinds are no speed"


def test_a_role_that_starts_again_has_no_speed_until_it_steps():
    talk = talk_of(trainers(1, 1, restart=restart()))
    lately = lately_of((1, 10), (2, 20))
    start = next(effect for effect in talk.effects if isinstance(effect, StartReplica))
    assert status_of(talk.job, lately).roles[0].steps_per_s == 10.0
    lately.hear(record(9, 3 * SECOND, ev.TimePassed(), [OpenStore("node0", "trainer", 2), start]))
    assert status_of(talk.job, lately).roles[0].steps_per_s is None


def test_a_role_that_is_over_has_no_speed():
    talk = talk_of(trainers(1, 1), role("main"))
    lately = lately_of((1, 10), (2, 20))
    talk.finish("trainer/0")
    assert status_of(talk.job, lately).roles[0].steps_per_s is None


def test_it_travels():
    talk = talk_of(trainers(1, 3, restart=restart()))
    talk.fail("trainer/0")
    told = status(talk)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Status) == told


def test_what_the_operator_cannot_have_is_marked_as_refused():
    talk = talk_of(trainers(2, 2), nodes=1, cpu=2)
    for order in (
        ev.ScaleRequested("trainer", 9),
        ev.ScaleRequested("nobody", 1),
        ev.DrainRequested("node0"),
        ev.DrainRequested("node7"),
        ev.CordonRequested("node7"),
        ev.UncordonRequested("node7"),
    ):
        (said,) = talk.tell(order)
        assert isinstance(said, Decided) and said.level == "refused", order
    effects = talk.tell(ev.ScaleRequested("trainer", 2))
    assert [effect.level for effect in effects if isinstance(effect, Decided)] == ["info"]


def test_the_last_reason_of_a_loss_is_shown_until_the_node_is_back():
    talk = joined(trainers(1, 3), nodes=3, cpu=1)
    talk.tell(ev.NodeSilent("node1"))
    talk.tell(ev.NodeLeft("node2"))
    assert [node.because for node in status(talk).nodes] == ["", "not heard for 5s", "it left"]
    talk.tell(ev.NodeGone("node1", "its agent died 6 times and is not started again"))
    assert status(talk).nodes[1].because == "its agent died 6 times and is not started again"
    talk.join("node1")
    assert (status(talk).nodes[1].phase, status(talk).nodes[1].because) == ("up", "")


def test_which_replica_has_which_version_and_what_is_wrong_with_it():
    actor = role("actor", max_replicas=2, primary=False, restart=restart("replica"), versions=VersionEdge("learner", 1))
    talk = talk_of(role("learner", restart=restart()), actor)
    (told,) = status(talk).versions
    why = "learner has published no version"
    assert (told.published, told.replicas, told.waiting["actor/0"]) == (-1, {"actor/0": -1, "actor/1": -1}, why)
    talk.tell(ev.ReplicaPublished(r("learner/0"), 1, 7))
    talk.tell(ev.ReplicaAcknowledged(r("actor/0"), 1, 6))
    talk.tell(ev.ReplicaAcknowledged(r("actor/1"), 1, 5))
    (told,) = status(talk).versions
    assert (told.role, told.of, told.max_staleness, told.published) == ("actor", "learner", 1, 7)
    assert told.replicas == {"actor/0": 6, "actor/1": 5}
    assert told.waiting == {"actor/1": "it has version 5 of learner; the latest is 7, and max_staleness=1"}
    assert status(talk_of(trainers(1, 1))).versions == ()


def test_a_node_with_a_stopped_process_of_flowdist_says_which():
    talk = joined(role("trainer", max_replicas=1), nodes=1, cpu=1)
    talk.tell(ev.NodeStandsStill("node0", "its spawner (pid 7)"))
    (node,) = status(talk).nodes
    assert (node.phase, node.because) == ("still", "its spawner (pid 7)")
    talk.tell(ev.NodeStandsStill("node0"))
    assert status(talk).nodes[0].phase == "up"


def test_every_phase_of_a_member_and_why_it_waits_or_is_replaced():
    fleet = FleetState([
        Member("m1", "big"),
        Member("m2", "big", reference="71", waits="PENDING (Resources)"),
        Member("m3", "", reference="72", host="h3", is_pending=False),
        Member("m4", "", reference="73", host="h4", is_pending=False, has_joined=True),
        Member("m5", "", reference="74", host="h5", is_pending=False, has_joined=True, leaving="h5 is taken away"),
        Member("m6", "", reference="75", is_pending=False, has_joined=True, ended="the job needs fewer members"),
    ])  # fmt: skip
    assert members_of(fleet) == (
        MemberStatus("m1", "submitting", "big"),
        MemberStatus("m2", "waiting", "big", "71", because="PENDING (Resources)"),
        MemberStatus("m3", "starting", "", "72", "h3"),
        MemberStatus("m4", "joined", "", "73", "h4"),
        MemberStatus("m5", "leaving", "", "74", "h5", "h5 is taken away"),
    )


def test_a_budget_counts_the_charges_of_its_window_and_not_those_of_a_wider_one():
    policy = restart("role", 1, within_ns=60 * SECOND, then="widen", wider=restart("job", 9))
    result = simulate(graph(role("trainer", restart=policy)), "trainer/0@20s", "trainer/0@30s", "trainer/0@50s")
    trainer = result.job.roles["trainer"]
    assert [charge.level for charge in trainer.charges] == [0, 1, 1]
    told = {at: role_status(result.job, trainer, at * SECOND) for at in (60, 79, 81)}
    assert [(one.charged, one.used, one.budget) for one in told.values()] == [(3, 1, 1), (3, 1, 1), (3, 0, 1)]
