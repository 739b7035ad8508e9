"""Time accounts: the end of work and its detection, services, joint worlds, and all kinds of ends."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import FinishJob
from flowdist.graph import SECOND, Cluster, JointWorld, RoleGraph
from flowdist.record.accounts import Accounts, Bucket, goodput_of
from flowdist.record.journal import Header, Record
from tests.control.harness import TCP, Gate, Talk, graph, joined, node, r, restart, role
from tests.proofs.conversation import Conversation as Drawn
from tests.proofs.conversation import Player, conversations
from tests.record.sheets import (
    fail,
    finish,
    half_up,
    read,
    revive,
    seconds,
    sheet_of,
    stall,
    step,
    trainers,
    until,
)


def test_a_member_that_has_finished_is_done_while_the_others_still_work():
    talk = trainers(2)
    finish(talk, 50, "trainer/0")
    finish(talk, 60, "trainer/1")
    assert seconds(read(talk)) == {"unknown": 110, "done": 10}


@pytest.mark.parametrize(
    ("fault", "at"),
    [
        pytest.param((), 20, id="its last heartbeat"),
        pytest.param(((25.5, "node1"),), 21, id="a fault that was injected just before"),
        pytest.param(((3, "node1"),), 20, id="no fault of long ago"),
    ],
)
def test_work_on_a_silent_node_ends_at_its_last_heartbeat(fault: tuple[tuple[float, str], ...], at: float):
    talk = trainers(2, nodes=2, cpu=1.0)
    until(talk, 30)
    talk.tell(ev.NodeSilent("node1"))
    until(talk, 40)
    assert seconds(read(talk, *fault)) == {"unknown": 30 + at, "detection": 30 - at, "waiting": 20}


def test_a_success_that_only_a_node_that_joins_again_reports_is_done_from_then_on():
    talk = trainers(2, nodes=2, cpu=1.0)
    until(talk, 50)
    finished = ev.ReplicaExited(r("trainer/1"), 1, None)
    item = ev.InventoryItem(r("trainer/1"), 1, "exited", exited=finished)
    talk.tell(ev.NodeJoined("node1", talk.graph.cluster.nodes[1], inventory=(item,)))
    finish(talk, 60, "trainer/0")
    assert talk.job.outcome == "succeeded"
    assert seconds(read(talk)) == {"unknown": 110, "done": 10}


def test_a_world_that_still_reports_still_works():
    talk = trainers(2, nodes=2, cpu=1.0)
    for number in range(30):
        step(talk, number, number)
    until(talk, 30)
    talk.tell(ev.NodeSilent("node1"))
    assert seconds(read(talk)) == {"productive": 58, "detection": 2}


def test_a_fault_that_was_injected_into_a_worker_just_before_says_when_it_was():
    talk = trainers(2)
    fail(talk, 30, "trainer/1")
    assert seconds(read(talk, (29, "trainer/1.0"))) == {"unknown": 58, "detection": 2}
    assert seconds(read(talk, (29, ""))) == {"unknown": 60}


def test_a_hang_began_with_the_last_sign():
    talk = trainers(2, hang_after_ns=10 * SECOND)
    stall(talk, 30)
    stall(talk, 30.5, "trainer/1")
    until(talk, 40)  # the verdict: it hangs
    assert talk.job.incidents[0].kind == "hang"
    finish(talk, 50, "trainer/0", "trainer/1")
    assert seconds(read(talk)) == {"unknown": 2 * 38, "detection": 2 * 12}


def test_a_hang_that_fails_the_job_was_to_be_noticed_until_then():
    talk = trainers(2, hang_after_ns=10 * SECOND, restart=None)
    talk.auto = False
    stall(talk, 30)
    until(talk, 32)
    assert talk.job.ending == "failed"
    until(talk, 35)
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    assert seconds(read(talk)) == {"unknown": 40, "detection": 24, "done": 6}


def test_a_replica_that_revives_was_stalled():
    talk = trainers(2, hang_after_ns=100 * SECOND)
    stall(talk, 30)
    stall(talk, 31, "trainer/1")
    revive(talk, 31.5, "trainer/1")
    revive(talk, 31.5, "trainer/1")
    revive(talk, 31.75)
    stall(talk, 80, by="output", seen=False)
    fail(talk, 90)
    talk.tell(ev.ReplicaStalled(r("trainer/1"), 1, "progress", SECOND))  # of an attempt that is over
    finish(talk, 100, "trainer/0", "trainer/1")
    assert seconds(read(talk)) == {"unknown": 2 * (100 - 11.75), "stalled": 2 * 11.75}


def test_a_world_that_finishes_while_a_member_seems_stalled_was_not_working_then():
    talk = trainers(1, hang_after_ns=100 * SECOND)
    stall(talk, 30, by="output")
    finish(talk, 31, "trainer/0")
    assert seconds(read(talk)) == {"unknown": 20, "stalled": 11}


def test_of_the_time_until_the_next_start_the_back_off_was_asked_for():
    talk = trainers(restart=restart(times=20))
    fail(talk, 10)
    fail(talk, 20)
    finish(talk, 30, "trainer/0")
    assert seconds(read(talk)) == {"unknown": 29, "back-off": 1}


def test_a_member_that_was_moved_on_before_its_world_began_has_read_no_checkpoint():
    talk = trainers()
    accounts = Accounts(talk.job)
    accounts.begin_work([r("trainer/0")], 3 * SECOND, restore_ns=SECOND)
    parts: dict[Bucket, int] = {"productive": 2 * SECOND, "stalled": 1 * SECOND}
    accounts.end_work(talk.job, [r("trainer/0")], parts, 6 * SECOND)
    accounts.close(6 * SECOND)
    spent = {bucket: ns / SECOND for bucket, ns in accounts.spent["trainer"].items() if ns}
    assert spent == {"waiting": 3, "productive": 2, "stalled": 1}
    assert goodput_of(talk.graph, accounts.spent) == 2 / 6


def test_a_service_that_does_not_serve_cannot_stop_serving():
    talk = trainers(1, role("ps", kind="service", restart=restart("replica")))
    accounts = Accounts(talk.job)
    accounts.stop_serving(r("ps/0"), SECOND)
    assert accounts.bucket_of(r("ps/0")) == "waiting"
    accounts.move(r("ps/0"), "productive", 2 * SECOND)
    accounts.stop_serving(r("ps/0"), 3 * SECOND)
    assert accounts.bucket_of(r("ps/0")) == "detection"


def test_work_that_does_not_add_up_is_refused():
    talk = trainers()
    accounts = Accounts(talk.job)
    accounts.begin_work([r("trainer/0")], 0)
    with pytest.raises(AssertionError, match="trainer/0 works"):
        accounts.move(r("trainer/0"), "done", 1)
    with pytest.raises(AssertionError, match="trainer/0 works"):
        accounts.close(1)
    with pytest.raises(AssertionError, match="since 0"):
        accounts.end_work(talk.job, [r("trainer/0")], {"productive": 2}, 3)


# Services, other worlds, other ends.


def test_a_service_is_productive_while_it_serves():
    ps = role("ps", kind="service", ready=TCP, ports=("rpc",), restart=restart("replica", 9))
    talk = trainers(1, ps)
    talk.auto = False
    fail(talk, 10, "ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 29500))
    until(talk, 11)
    talk.tell(ev.ReplicaStarted(r("ps/0"), 2))
    until(talk, 14)
    talk.tell(ev.ReplicaReady(r("ps/0"), 2))
    until(talk, 20)
    expected = {"productive": 15, "detection": 1, "start-up": 4}
    assert seconds(read(talk, (9, "ps/0")), "ps") == expected
    assert seconds(read(talk, (9, "ps/0"), (12, "ps/0:pause/1s")), "ps") == expected, "it does not serve yet"


def test_a_server_that_is_scaled_away_waits():
    talk = trainers(1, role("ps", kind="service", min_replicas=1, max_replicas=2, restart=restart("replica")))
    until(talk, 10)
    talk.tell(ev.ScaleRequested("ps", 1))
    until(talk, 20)
    assert seconds(read(talk), "ps") == {"productive": 20 + 10, "waiting": 10}


def test_a_service_that_reports_progress_serves_all_the_same():
    talk = trainers(1, role("ps", kind="service", restart=restart("replica", 9)))
    step(talk, 10, 1, "ps/0")
    until(talk, 20)
    assert seconds(read(talk), "ps") == {"productive": 20}


def test_a_world_with_readiness_checks_works_once_all_have_passed():
    ready = role("trainer", min_replicas=2, max_replicas=2, ready=TCP, ports=("rpc",), restart=restart())
    talk = joined(ready, auto=False)
    talk.tell(ev.StoreOpened("trainer", 1, 29500))
    for number in (0, 1):
        talk.tell(ev.ReplicaStarted(r(f"trainer/{number}"), 1))
    for number in (0, 1):
        until(talk, 5 + number)
        talk.tell(ev.ReplicaReady(r(f"trainer/{number}"), 1))
    until(talk, 10)
    assert seconds(read(talk)) == {"start-up": 12, "unknown": 8}


def test_a_joint_world_works_as_one():
    a, b = (role(name, ready=TCP if name == "b" else None, ports=("rpc",), restart=restart()) for name in ("a", "b"))
    one = Talk(RoleGraph("test", (a, b), cluster=graph(a).cluster, worlds=(JointWorld("core", ("a", "b")),)))
    one.join("node0")
    for number in range(1, 11):
        step(one, number, number, "b/0")
    fail(one, 11, "a/0")
    step(one, 15, 9, "b/0")
    step(one, 16, 10, "b/0")
    finish(one, 20, "a/0", "b/0")
    sheet = read(one)
    assert seconds(sheet, "a") == seconds(sheet, "b") == {"productive": 8 + 6, "lost work": 3, "start-up": 3}
    assert sheet.unreported() == {"a": ["checkpoints"], "b": ["checkpoints"]}


def test_a_role_that_is_given_up_is_done():
    aside = role("aside", primary=False, restart=restart("replica", 0, then="ignore"))
    talk = trainers(1, aside)
    fail(talk, 10, "aside/0")
    finish(talk, 30, "trainer/0")
    assert seconds(read(talk), "aside") == {"unknown": 10, "done": 20}


def test_after_the_decision_to_fail_time_is_done_and_late_events_change_nothing():
    talk = trainers(2, restart=None)
    talk.auto = False
    fail(talk, 10)
    until(talk, 12)
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    sheet = read(talk)
    assert seconds(sheet) == {"unknown": 20, "done": 4} and sheet.lasted() == 12 * SECOND
    until(talk, 20)
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    assert seconds(read(talk), now=30) == {"unknown": 20, "done": 4}


def test_members_that_are_stopped_in_order_work_until_they_end():
    talk = trainers(2)
    talk.auto = False
    until(talk, 10)
    talk.tell(ev.DrainRequested("node0"))
    talk.tell(ev.ScaleRequested("trainer", 2))
    talk.tell(ev.CancelRequested())
    until(talk, 12)
    for number in (0, 1):
        talk.tell(ev.ReplicaStopped(r(f"trainer/{number}"), 1))
    assert seconds(read(talk)) == {"unknown": 24}


def test_a_replica_in_start_up_is_done_when_the_job_is_cancelled():
    talk = trainers()
    talk.auto = False
    fail(talk, 5)
    talk.tell(ev.StoreOpened("trainer", 2, 29500))
    until(talk, 8)
    talk.tell(ev.CancelRequested())
    until(talk, 10)
    assert seconds(read(talk)) == {"unknown": 5, "start-up": 3, "done": 2}


def test_a_replica_without_a_seat_in_the_next_generation_waits():
    talk = trainers(2, nodes=2, cpu=1.0, min_replicas=1)
    until(talk, 10)
    talk.gone("node1")
    finish(talk, 30, "trainer/0")
    assert seconds(read(talk)) == {"unknown": 40, "waiting": 20}


def test_a_replica_that_has_not_begun_to_work_is_not_stalled():
    talk = half_up()
    stall(talk, 18, by="start")
    talk.tell(ev.ReplicaStarted(r("trainer/1"), 2))
    revive(talk, 19)
    until(talk, 20)
    assert seconds(read(talk)) == {"unknown": 10 + 4, "start-up": 26}


def test_a_worker_that_cannot_be_killed_takes_its_node_along():
    talk = trainers(2, nodes=2, cpu=2.0, gang=False, restart=restart("replica", 9))
    talk.auto = False
    until(talk, 10)
    talk.tell(ev.ReplicaUnkillable(r("trainer/0"), 1))
    talk.tell(ev.ReplicaUnkillable(r("trainer/1"), 9))
    until(talk, 12)
    spent = seconds(read(talk))
    assert spent["unknown"] < 24 and sum(spent.values()) == 24


def test_a_node_that_comes_back_without_what_it_ran_has_lost_it():
    talk = trainers(2, nodes=2, cpu=1.0)
    until(talk, 10)
    talk.join("node1")
    until(talk, 20)
    assert seconds(read(talk)) == {"unknown": 40}
    assert talk.replica("trainer/1").attempt == 2


def test_a_gang_that_grows_works_until_it_stops_and_the_newcomer_waits():
    talk = Talk(graph(role("trainer", min_replicas=1, max_replicas=2, restart=restart()), nodes=2, cpu=1.0))
    talk.join("node0")
    until(talk, 60)
    talk.join("node1")
    until(talk, 200)
    assert talk.world("trainer").generation == 2
    spent = seconds(read(talk))
    assert set(spent) == {"unknown", "waiting"} and sum(spent.values()) == 400


def test_reports_while_a_failure_waits_for_its_verdict_begin_no_work():
    talk = trainers(2, nodes=2, cpu=1.0)
    step(talk, 1, 1)
    until(talk, 10)
    talk.tell(ev.NodeSuspected("node1"))
    fail(talk, 11)
    assert talk.suspects() == ["node1"]
    step(talk, 12, 9, "trainer/1")
    stall(talk, 12, "trainer/1")
    until(talk, 13)
    assert seconds(read(talk)) == {"start-up": 2, "productive": 20, "re-formation": 4}


def test_a_node_that_connects_again_while_its_replicas_start_changes_nothing():
    talk = trainers()
    talk.auto = False
    fail(talk, 5)
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    talk.tell(ev.StoreOpened("trainer", 2, 29500))
    until(talk, 8)
    item = ev.InventoryItem(r("trainer/0"), 2, "starting")
    talk.tell(ev.NodeJoined("node0", node("node0"), inventory=(item,)))
    until(talk, 10)
    assert seconds(read(talk)) == {"unknown": 5, "start-up": 5}


def test_a_record_that_does_not_tell_how_work_ended_closes_all_the_same():
    talk = trainers(2)
    until(talk, 10)
    sheet, first = read(talk), talk.starts[0]
    again = msgspec.structs.replace(first, attempt=2, generation=2)
    sheet.hear(Record(99, 12 * SECOND, ev.TimePassed(), (again,)))
    talk.now = 12 * SECOND
    sheet = read(talk)
    sheet.hear(Record(99, 12 * SECOND, ev.TimePassed(), (FinishJob("succeeded"),)))
    sheet.hear(Record(99, 15 * SECOND, ev.TimePassed(), (again,)))
    assert seconds(sheet) == {"unknown": 24} and sheet.lasted() == 12 * SECOND


@given(conversations())
@settings(max_examples=60, deadline=None)
def test_whatever_happens_each_nanosecond_is_in_one_bucket(drawn: Drawn) -> None:
    player = Player(drawn.graph)
    player.play(drawn.moves, late=drawn.late)
    player.finish()
    header, *lines = player.lines
    assert isinstance(header, Header)
    sheet_of(drawn.graph, lines, header.known_nodes)


def test_gates_are_waited_for_and_nodes_are():
    helper = role("helper", restart=restart())
    gated = role("trainer", gates=(Gate("helper", "succeeded"),), restart=restart())
    talk = Talk(graph(helper, gated, nodes=1))
    until(talk, 5)
    talk.join("node0")
    finish(talk, 10, "helper/0")
    until(talk, 20)
    assert seconds(read(talk)) == {"waiting": 10, "unknown": 10}


def test_a_replica_that_stops_when_its_role_is_short_of_nodes_already_waits_for_one_too():
    talk = joined(role("solo", max_replicas=2, min_replicas=2, gang=False, restart=restart(scope="replica")))
    until(talk, 10)
    talk.tell(ev.NodePreempted("node0", 40 * SECOND))
    for at, name in ((20, "solo/1"), (25, "solo/0")):
        until(talk, at)
        talk.tell(ev.ReplicaStopped(r(name), 1))
    until(talk, 45)
    assert seconds(read(talk), "solo")["waiting"] == 25 + 20


def test_a_replica_lost_at_its_start_waits_once_its_world_has_started_without_it():
    """The whole world is lost with the node, and re-forms in the same event on the other node."""
    gang = role("trainer", min_replicas=1, max_replicas=2, restart=restart())
    talk = Talk(RoleGraph("test", (gang,), cluster=Cluster((node("node0", 2), node("node1", 1)))), auto=False)
    talk.join("node0")
    talk.wait(10)
    talk.tell(ev.StoreOpened("trainer", 1, 29500))
    until(talk, 15)
    talk.join("node1")
    talk.gone("node0")
    assert talk.world("trainer").phase == "opening" and talk.world("trainer").members == (r("trainer/0"),)
    until(talk, 18)
    talk.tell(ev.StoreOpened("trainer", 2, 29500))
    until(talk, 20)
    assert seconds(read(talk)) == {"waiting": 2 * 10 + 2, "start-up": 2 * 5 + 2, "re-formation": 2 * 3}


def test_a_replica_stopped_in_start_up_re_forms_once_it_has_ended():
    """A reader, whose scope is the job, fails because of the server and joins the incident: all is stopped again."""
    ps = role("ps", kind="service", restart=restart("replica"))
    reader = role("reader", gates=(Gate("ps", "started"),), restart=restart("job"))
    talk = trainers(1, ps, reader, gates=(Gate("ps", "started", "restart"),))
    talk.auto = False
    fail(talk, 10, "ps/0")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    talk.tell(ev.StoreOpened("ps/0", 2, 29500))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 2))
    until(talk, 11)
    talk.tell(ev.StoreOpened("trainer", 2, 29500))
    fail(talk, 11.5, "reader/0")
    assert talk.world("trainer").phase == "stopping" and len(talk.job.incidents) == 1
    until(talk, 12)
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 2))
    until(talk, 15)
    assert seconds(read(talk)) == {"unknown": 10, "re-formation": 1 + 3, "start-up": 1}


def test_a_replica_retired_in_start_up_waits():
    loose = role("trainer", min_replicas=1, max_replicas=2, gang=False, restart=restart("replica"))
    talk = joined(loose, auto=False)
    for number in (0, 1):
        talk.tell(ev.StoreOpened(f"trainer/{number}", 1, 29500))
    until(talk, 4)
    talk.tell(ev.ScaleRequested("trainer", 1))
    until(talk, 5)
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    until(talk, 10)
    assert seconds(read(talk)) == {"start-up": 10 + 5, "waiting": 5}
