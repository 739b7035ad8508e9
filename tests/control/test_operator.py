"""What the operator asks for, what is refused in words, and what the job says that it waits for."""

from __future__ import annotations

import pytest

from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StopReplica
from flowdist.graph import SECOND, Gate
from tests.control.harness import TCP, Talk, graph, joined, r, restart, role, trainers

SLOW = restart("replica", 9, backoff_ns=60 * SECOND)


def start(talk: Talk, world: str, *names: str) -> None:
    generation = talk.world(world).generation
    talk.tell(ev.StoreOpened(world, generation, 29400))
    for name in names:
        talk.report(ev.ReplicaStarted, name, (("rpc", 4000),))


def test_to_scale_a_role_that_is_not_there_or_is_over_is_refused():
    talk = joined(trainers(1, 2), role("quick"))
    talk.finish("quick/0")
    for name in ("quick", "reader"):
        talk.tell(ev.ScaleRequested(name, 1))
        assert talk.texts()[-1] == f"scale {name}=1 is refused: no such role runs"
    talk.auto = False
    talk.tell(ev.CancelRequested())
    talk.tell(ev.ScaleRequested("trainer", 1))
    assert talk.texts()[-1] == "scale trainer=1 is refused: no such role runs"


def test_the_new_size_is_said_in_the_right_number():
    talk = joined(trainers(1, 2))
    for size, words in ((1, "1 replica"), (2, "2 replicas")):
        talk.tell(ev.ScaleRequested("trainer", size))
        assert f"trainer: scaled to {words} by the operator" in talk.texts()


def test_a_replica_that_waits_for_its_back_off_is_scaled_away_with_its_seat():
    talk = joined(role("actor", max_replicas=2, restart=SLOW))
    talk.fail("actor/1")
    talk.fail("actor/1")
    assert talk.replica("actor/1").phase == "waiting" and talk.replica("actor/1").node == "node0"
    talk.tell(ev.ScaleRequested("actor", 1))
    assert talk.replica("actor/1").node is None and not talk.job.open
    talk.wait(600)
    assert talk.up() == ["actor/0"]
    talk.tell(ev.ScaleRequested("actor", 2))
    assert talk.up() == ["actor/0", "actor/1"]


def test_a_gang_that_does_not_run_is_of_the_new_size_when_it_forms():
    reader = role("reader")
    talk = joined(reader, trainers(1, 3, gates=(Gate("reader", "succeeded"),)))
    talk.tell(ev.ScaleRequested("trainer", 2))
    assert talk.up() == ["reader/0"]
    talk.finish("reader/0")
    assert talk.up() == ["trainer/0", "trainer/1"] and talk.world("trainer").generation == 1


def test_a_gang_that_restarts_comes_back_in_the_new_size():
    talk = joined(trainers(1, 3, restart=restart()))
    talk.auto = False
    talk.fail("trainer/0")
    talk.tell(ev.ScaleRequested("trainer", 1))
    talk.auto = True
    for name in ("trainer/1", "trainer/2"):
        talk.tell(ev.ReplicaStopped(r(name), 1))
    assert talk.up() == ["trainer/0"] and talk.starts[-1].world_size == 1


@pytest.mark.parametrize("count", [1, 3])
def test_a_gang_whose_store_is_opening_comes_up_in_the_new_size(count: int):
    talk = joined(trainers(1, 3, restart=restart()))
    talk.tell(ev.ScaleRequested("trainer", 2))
    talk.auto = False
    talk.fail("trainer/0")
    talk.report(ev.ReplicaStopped, "trainer/1")
    assert talk.world("trainer").phase == "opening"
    talk.tell(ev.ScaleRequested("trainer", count))
    talk.answer()
    assert len(talk.up()) == count and talk.starts[-1].world_size == count


def test_r17_a_closing_gang_is_not_scaled():
    talk = joined(trainers(1, 3))
    talk.finish("trainer/0")
    talk.tell(ev.ScaleRequested("trainer", 1))
    assert talk.attempts() == {"trainer/0": 1, "trainer/1": 1, "trainer/2": 1}


def test_r8_scaling_and_draining_in_a_row_do_not_fail_the_job():
    talk = joined(trainers(1, 2))
    for count in (1, 2) * 5:
        talk.tell(ev.ScaleRequested("trainer", count))
    assert talk.outcome()[0] is None and talk.world("trainer").generation == 11


def test_r8_growing_again_and_again_waits_for_a_healthy_time_and_fails_no_job():
    talk = joined(trainers(1, 2), nodes=2, cpu=1, cordon_after=9)
    for _ in range(2):  # each is two changes: a loss, and the growth after it
        talk.gone("node1")
        talk.join("node1")
        talk.wait(30)
    assert talk.world("trainer").generation == 5
    talk.wait(29)
    talk.gone("node1")
    talk.join("node1")
    talk.wait(30)
    assert len(talk.up()) == 1, "it would be the sixth"
    talk.wait(30)
    assert len(talk.up()) == 2 and talk.outcome()[0] is None


def test_to_cancel_in_a_hurry_kills_what_runs_or_stops_and_nothing_else():
    talk = joined(role("ps", kind="service"), trainers(2, 2, restart=restart()))
    talk.auto = False
    talk.fail("trainer/0")
    effects = talk.tell(ev.CancelRequested(now=True))
    stops = [effect for effect in effects if isinstance(effect, StopReplica)]
    assert stops == [StopReplica("node0", r("ps/0"), 1, 0), StopReplica("node0", r("trainer/1"), 1, 0)]


def test_the_job_says_which_nodes_it_waits_for():
    talk = Talk(graph(trainers(1, 1), nodes=2))
    talk.join("node1")
    assert waiting_for(talk.job) == ["nodes to join: node0"]
    talk.gone("node0")
    assert talk.up() == ["trainer/0"], "that it is gone before it came is known: nobody waits for it"
    assert waiting_for(talk.job) == ["trainer/0 to finish"]


def test_the_job_says_that_it_has_no_room_to_start():
    talk = joined(trainers(3, 3), cpu=2)
    assert waiting_for(talk.job) == [
        "room to start: trainer lacks 3 replicas to its minimum, each needs 1 cpu; node0 has 2 of 2 cpu free"
    ]


def test_nobody_is_waited_for_when_all_who_were_missing_are_gone():
    talk = Talk(graph(trainers(1, 1), nodes=2))
    talk.join("node0")
    talk.gone("node0")
    talk.gone("node1")
    talk.wait(10)
    assert not [text for text in talk.texts() if "not waiting" in text] and talk.job.missing == {}
    talk.join("node1")
    assert talk.up() == ["trainer/0"]


def test_the_job_says_what_of_it_is_on_its_way():
    ps = role("ps", kind="service", ready=TCP, ports=("rpc",), restart=restart("replica"))
    late = role("late", gates=(Gate("trainer", "succeeded"),))
    talk = joined(ps, trainers(1, 1, gates=(Gate("ps", "ready", "restart"),)), late, auto=False)
    waits = ["trainer waits for ps to be ready", "late waits for trainer to succeed"]
    assert waiting_for(talk.job) == ["the store of ps/0 (generation 1)", *waits]
    talk.tell(ev.StoreOpened("ps/0", 1, 29400))
    assert waiting_for(talk.job) == ["ps/0 to start", *waits]
    start(talk, "ps/0", "ps/0")
    assert waiting_for(talk.job) == ["ps/0 to get ready", *waits]
    talk.tell(ev.ReplicaReady(r("ps/0"), 1))
    start(talk, "trainer", "trainer/0")
    assert waiting_for(talk.job) == ["late waits for trainer to succeed", "trainer/0 to finish"]
    talk.fail("ps/0")
    assert waiting_for(talk.job) == ["trainer/0 to stop", "late waits for trainer to succeed"]


def test_the_job_says_what_waits_for_others_to_stop_and_for_its_back_off():
    ps = role("ps", kind="service", restart=SLOW)
    talk = joined(ps, role("actor", gates=(Gate("ps", "started", "restart"),), gang=False), role("main"))
    talk.fail("ps/0")
    talk.wait(60)
    talk.auto = False
    talk.fail("ps/0")
    assert talk.replica("actor/0").phase == "stopping"
    assert waiting_for(talk.job) == ["actor/0 to stop", "main/0 to finish"]
    talk.tell(ev.ReplicaStopped(r("actor/0"), 2))
    assert waiting_for(talk.job) == [
        "back-off of ps/0 until 2m",
        "back-off of actor/0 until 2m",
        "main/0 to finish",
    ]


def test_the_job_says_that_a_back_off_was_taken_in_by_an_incident():
    ps = role("ps", kind="service", restart=restart("replica"))
    actor = role("actor", max_replicas=2, gates=(Gate("ps", "started", "restart"),), restart=SLOW)
    talk = joined(ps, actor)
    for _ in range(2):
        talk.fail("actor/0")
    assert "back-off of actor/0 until 1m" in waiting_for(talk.job)
    talk.auto = False
    talk.wait(5)
    talk.fail("ps/0")
    assert waiting_for(talk.job) == ["actor/1 to stop", "all of incident 3 to stop before actor/0 starts again"]


def test_the_job_says_that_it_waits_for_a_failure_upstream_and_for_a_world_to_leave():
    ps = role("ps", kind="service", restart=restart("replica"))
    talk = joined(ps, trainers(1, 1, gates=(Gate("ps", "started"),), restart=restart("role", 0)), nodes=2)
    talk.auto = False
    talk.tell(ev.DrainRequested(talk.replica("ps/0").node))
    assert "ps/0 to leave its nodes" in waiting_for(talk.job)
    talk.fail("trainer/0")
    assert "node0 to be heard, or lost: incident 1 may follow from that" in waiting_for(talk.job)
    talk.wait(1.8)
    assert "a failure upstream that would excuse incident 1" in waiting_for(talk.job)


def test_a_job_that_ends_waits_for_what_stops_and_one_that_is_over_for_nothing():
    talk = joined(trainers(1, 1))
    talk.auto = False
    talk.tell(ev.CancelRequested())
    assert waiting_for(talk.job) == ["trainer/0 to stop"]
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    assert talk.outcome()[0] == "cancelled" and waiting_for(talk.job) == []


def test_a_job_that_gets_no_hosts_fails_and_is_not_cancelled():
    talk = joined(trainers(1, 1))
    talk.tell(ev.CancelRequested("sbatch: invalid partition", outcome="failed"))
    assert talk.outcome() == ("failed", "sbatch: invalid partition")


def test_time_does_not_run_backwards():
    talk = joined(trainers(1, 1))
    talk.wait(5)
    with pytest.raises(ValueError, match="time runs backwards: 1 after 5000000000"):
        talk.controller.handle(ev.TimePassed(), 1)
