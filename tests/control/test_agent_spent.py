"""Conversations with the pure agent about the time that workers spend on saving and restoring."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.ids import Activity
from flowdist.graph import SECOND
from tests.control.agent_harness import T, Talk, running


@pytest.fixture
def talk() -> Talk:
    """Return a conversation in which two workers have run for ten seconds."""
    talk = running()
    talk.at(10, ack=True)
    return talk


def spend(talk: Talk, seconds: float, rank: int = 0, on: Activity = "saving") -> list[object]:
    return talk.tell(io.WorkerSpent(T, 1, rank, on, round(seconds * SECOND)))


def spent(seconds: float, on: Activity = "saving") -> ev.ReplicaSpent:
    return ev.ReplicaSpent(T, 1, on, round(seconds * SECOND))


def step(talk: Talk, number: int) -> list[object]:
    return [out for rank in (0, 1) for out in talk.tell(io.WorkerProgressed(T, 1, rank, number))]


def test_restoring_is_reported_with_the_first_step_and_before_it(talk: Talk):
    assert spend(talk, 3, on="restoring") == []
    assert step(talk, 1) == [spent(3, "restoring"), ev.ReplicaProgressed(T, 1, 1)]
    assert talk.at(60, ack=True) == []


def test_time_spent_does_not_delay_the_first_step(talk: Talk):
    spend(talk, 3, on="restoring")
    assert talk.at(10.6, ack=True) == [spent(3, "restoring")]
    assert step(talk, 1) == [ev.ReplicaProgressed(T, 1, 1)]


def test_of_a_replica_one_worker_is_reported_the_one_that_spent_most(talk: Talk):
    for rank, seconds in ((0, 2), (1, 3), (0, 2.5)):
        assert spend(talk, seconds, rank) == []
    assert talk.at(60, ack=True) == [spent(3)]


def test_a_flood_of_reports_is_one_line_for_each_heartbeat(talk: Talk):
    step(talk, 1)
    said = [out for ms in range(1, 1000) for out in spend(talk, ms / 1000)]
    assert said == [] and talk.at(10.6, ack=True) == [spent(0.999)]
    said = [out for ms in range(1000, 2000) for out in (*spend(talk, ms / 1000), *step(talk, ms))]
    assert said == [] and talk.at(11.2, ack=True) == [spent(1.999), ev.ReplicaProgressed(T, 1, 1999)]


def test_the_last_save_of_an_attempt_is_reported_before_its_end(talk: Talk):
    step(talk, 1)
    spend(talk, 2)
    talk.tell(io.WorkerExited(T, 1, 0))
    assert talk.tell(io.WorkerExited(T, 1, 1)) == [spent(2), ev.ReplicaExited(T, 1)]


def test_times_that_no_worker_can_have_are_cut_or_ignored(talk: Talk):
    for rank, seconds in ((0, 0), (0, -1), (2, 5), (-1, 5)):
        assert spend(talk, seconds, rank) == []
    assert talk.agent.attempts[T].spent == {}
    spend(talk, 1e9)
    assert talk.at(60, ack=True) == [spent(10)], "the attempt has lived for ten seconds"


def test_saving_is_no_sign_of_life():
    talk = running(hang_after_ns=60 * SECOND)
    talk.at(10, ack=True)
    step(talk, 1)
    talk.at(40, ack=True)
    spend(talk, 2)
    assert io.LookForSigns(T, 1) in talk.at(70, ack=True)


def test_after_a_lost_connection_the_time_is_reported_again(talk: Talk):
    spend(talk, 2)
    talk.at(20, ack=True)
    talk.tell(io.Disconnected())
    assert spent(2) in talk.tell(io.Connected())
    talk.tell(msg.Acked(1, talk.agent.incarnation, talk.now))
    assert talk.at(60, ack=True) == [], "and once"
