"""What a simulator leaves out: the agent is afterwards where it would be if everything had been played."""

from __future__ import annotations

from functools import partial

import pytest

from flowdist.control.agent.fast_forward import catch_up, reports_at_once, take_heartbeat
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import AskStep, StopReplica
from flowdist.graph import MINUTE, MS, SECOND
from tests.control.agent_harness import T, Talk, running

BEAT = Talk().agent.graph.options.heartbeat_ns


def lease(talk: Talk) -> tuple[int | None, int | None]:
    return talk.agent.lease.acked_ns, talk.agent.lease.beat_at_ns


def at_step(step: int = 3) -> Talk:
    talk = running(hang_after_ns=MINUTE)
    for rank in (0, 1):
        talk.tell(io.WorkerProgressed(T, 1, rank, step))
    return talk


@pytest.mark.parametrize("seconds", [0.1, 7, 100, 3600.5])
def test_heartbeats_that_are_renewed_leave_the_lease_of_those_that_are_played(seconds: float) -> None:
    played, renewed = Talk(), Talk()
    played.at(seconds, ack=True)
    assert renewed.agent.lease.renew(round(seconds * SECOND), 0) == (lease(played)[0] or None)
    assert lease(renewed) == lease(played)


def test_a_heartbeat_that_cannot_be_answered_yet_is_not_renewed_but_taken() -> None:
    talk = Talk()
    now = 10 * BEAT + MS
    assert talk.agent.lease.renew(now, 2 * MS) == 9 * BEAT
    assert take_heartbeat(talk.agent, now) == msg.Heartbeat("node0", 1, 10 * BEAT, 9 * BEAT + MS)
    assert lease(talk) == (9 * BEAT, 11 * BEAT), "it is on its way, and the next one is due a period later"
    assert take_heartbeat(talk.agent, now) is None


@pytest.mark.parametrize("now", [BEAT - 1, BEAT])
def test_a_heartbeat_that_is_not_overdue_is_left_to_the_agent(now: int) -> None:
    talk = Talk()
    assert take_heartbeat(talk.agent, now) is None
    assert lease(talk) == (0, BEAT)


def test_without_a_connection_no_heartbeat_is_renewed_or_taken() -> None:
    talk = Talk()
    talk.tell(io.Disconnected())
    assert talk.agent.lease.renew(MINUTE, 0) is None
    assert take_heartbeat(talk.agent, MINUTE) is None
    assert talk.agent.lease.acked_ns == 0


def test_progress_that_was_left_out_is_reported_to_the_next_controller_alone() -> None:
    talk = at_step()
    talk.sent.clear()
    talk.now = 2 * SECOND
    catch_up(talk.agent, T, 1, 17, talk.now)
    assert talk.sent == []
    talk.tell(io.Disconnected())
    assert ev.ReplicaProgressed(T, 1, 17) in talk.tell(io.Connected())


def test_progress_that_was_left_out_is_a_sign_of_life() -> None:
    talk = at_step()
    catch_up(talk.agent, T, 1, 17, 50 * SECOND)
    assert talk.agent.attempts[T].next_look() == 50 * SECOND + MINUTE


@pytest.mark.parametrize("attempt", [0, 2])
def test_progress_of_another_attempt_is_dropped(attempt: int) -> None:
    talk = at_step()
    catch_up(talk.agent, T, attempt, 17, 20 * SECOND)
    assert talk.agent.attempts[T].step == 3


def test_an_attempt_that_runs_reports_each_step_that_comes_late_enough() -> None:
    talk = at_step()
    at_once = partial(reports_at_once, talk.agent)
    assert at_once(T, BEAT) and at_once(T, 50 * SECOND, BEAT)
    assert not at_once(T, BEAT - 1) and not at_once(T, 50 * SECOND, BEAT - 1)
    old = 1000 * BEAT  # after so long it reports every ten heartbeats at most: a hundredth of its age
    assert at_once(T, old, 10 * BEAT) and not at_once(T, old, 10 * BEAT - 1)


@pytest.mark.parametrize(
    "event",
    [
        io.Disconnected(),
        io.WorkerOffered(T, 1, 1, "checkpoint", 3),
        io.WorkerExited(T, 1, 0, 1),
        msg.Ordered(1, 1, StopReplica("node0", T, 1, SECOND)),
        msg.Ordered(1, 1, AskStep("node0", T, 1)),
    ],
)
def test_an_attempt_of_which_something_else_is_awaited_may_not_report_at_once(event: io.AgentInput) -> None:
    talk = at_step()
    assert reports_at_once(talk.agent, T, MINUTE)
    talk.tell(event)
    if isinstance(event, io.WorkerExited):
        talk.tell(io.WorkerExited(T, 1, 1, 1))
    assert not reports_at_once(talk.agent, T, MINUTE)


def test_an_attempt_whose_report_is_due_later_may_not_report_at_once() -> None:
    talk = at_step()
    for rank in (0, 1):
        talk.tell(io.WorkerProgressed(T, 1, rank, 4))  # too soon after the last: it is told a heartbeat after that
    assert not reports_at_once(talk.agent, T, MINUTE)


def test_an_attempt_that_stalls_or_starts_or_is_not_there_may_not_report_at_once() -> None:
    stalled, starting = at_step(), Talk()
    stalled.at(60, ack=True)
    stalled.tell(io.SignsSeen(T, 1, None))
    assert not reports_at_once(stalled.agent, T, 2 * MINUTE)
    assert not reports_at_once(starting.agent, T, MINUTE)
