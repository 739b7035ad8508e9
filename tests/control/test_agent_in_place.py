"""Conversations with the pure agent: workers that leave their generation without ending, wait, and go on."""

from __future__ import annotations

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import AskStep, StopReplica
from flowdist.graph import SECOND
from tests.control.agent_harness import T, Talk, kill, running, start
from tests.control.harness import graph, r, role

LEAVE = io.LeaveGeneration(T, 1)
IN_PLACE = StopReplica("node0", T, 1, 2 * SECOND, in_place=True)


def elastic(**fields: object) -> Talk:
    """Both workers of trainer/0 are in elastic code."""
    talk = running(**fields)
    assert talk.tell(io.WorkerElastic(T, 1, 0)) == []
    assert talk.tell(io.WorkerElastic(T, 1, 1)) == [ev.ReplicaElastic(T, 1)]
    return talk


def suspended() -> Talk:
    """Both have left generation 1, and wait."""
    talk = elastic()
    assert talk.order(IN_PLACE) == [LEAVE]
    assert talk.tell(io.WorkerSuspended(T, 1, 0)) == []
    assert talk.tell(io.WorkerSuspended(T, 1, 1)) == [ev.ReplicaStopped(T, 1, suspended=True)]
    return talk


def inventory(talk: Talk) -> list[tuple[str, bool]]:
    talk.tell(io.Disconnected())
    talk.tell(io.Connected())
    joins = [message for message in talk.sent if isinstance(message, msg.Join)]
    return [(item.phase, item.exited is not None) for item in joins[-1].inventory]


def test_r6_workers_leave_and_wait_and_the_next_start_goes_on_with_them():
    talk = suspended()
    assert talk.at(60, ack=True) == []  # nobody hurries them
    assert talk.order(start(2)) == [io.SpawnWorkers(start(2), kept=(0, 1))]
    assert talk.tell(io.WorkersSpawned(T, 2)) == [ev.ReplicaStarted(T, 2), ev.ReplicaElastic(T, 2)]


def test_r6_who_has_not_left_when_the_grace_is_over_is_killed():
    talk = elastic()
    talk.order(IN_PLACE)
    talk.tell(io.WorkerSuspended(T, 1, 0))
    assert talk.at(2, ack=True) == [kill("KILL")]
    assert talk.tell(io.WorkerExited(T, 1, 1, signal="KILL")) == []  # its mate had left, and is killed with it
    assert talk.tell(io.WorkerExited(T, 1, 0, signal="KILL")) == [ev.ReplicaStopped(T, 1)]


def test_who_is_told_twice_to_leave_leaves_once():
    talk = elastic()
    talk.order(IN_PLACE)
    assert talk.order(IN_PLACE) == []
    talk = suspended()
    assert talk.order(IN_PLACE) == [ev.ReplicaStopped(T, 1, suspended=True)]


def test_a_replica_of_which_a_worker_is_not_in_elastic_code_is_stopped_as_ever():
    talk = running()
    talk.tell(io.WorkerElastic(T, 1, 0))
    assert talk.order(IN_PLACE) == [kill("TERM")]


def test_a_worker_that_leaves_its_elastic_code_is_like_any_other():
    talk = elastic()
    assert talk.tell(io.WorkerElastic(T, 1, 1, inside=False)) == []
    assert talk.order(IN_PLACE) == [kill("TERM")]
    talk = elastic()
    talk.order(IN_PLACE)
    talk.tell(io.WorkerSuspended(T, 1, 0))
    assert talk.tell(io.WorkerElastic(T, 1, 1, inside=False)) == [kill("TERM")]


def test_elastic_code_that_is_entered_before_all_workers_run_counts_when_they_do():
    talk = Talk()
    talk.order(start())
    talk.tell(io.WorkerElastic(T, 1, 0))
    talk.tell(io.WorkerElastic(T, 1, 1))
    assert talk.tell(io.WorkersSpawned(T, 1)) == [ev.ReplicaStarted(T, 1), ev.ReplicaElastic(T, 1)]


def test_the_mates_of_a_failed_worker_leave_and_the_failed_one_is_started_afresh():
    talk = elastic()
    assert talk.tell(io.WorkerExited(T, 1, 1, signal="KILL")) == [LEAVE]
    exited = talk.tell(io.WorkerSuspended(T, 1, 0))
    assert exited == [ev.ReplicaExited(T, 1, "signal", 0, "KILL", 1, suspended=True)]
    assert talk.at(30, ack=True) == []
    assert talk.order(IN_PLACE) == []  # what it was is known
    assert inventory(talk) == [("suspended", True)]
    assert talk.order(start(2)) == [io.SpawnWorkers(start(2), kept=(0,))]
    assert talk.tell(io.WorkersSpawned(T, 2)) == [ev.ReplicaStarted(T, 2)]
    assert talk.tell(io.WorkerElastic(T, 2, 1)) == [ev.ReplicaElastic(T, 2)]


def test_mates_that_leave_already_are_told_nothing_more_unless_they_are_to_end():
    talk = elastic()
    talk.tell(io.WorkerExited(T, 1, 1, 3))
    assert talk.order(IN_PLACE) == []
    assert talk.order(StopReplica("node0", T, 1, SECOND)) == [kill("TERM")]
    assert talk.tell(io.WorkerExited(T, 1, 0, signal="TERM")) == [ev.ReplicaExited(T, 1, "exit", 3, None, 1)]


def test_r16_a_failure_while_it_leaves_as_it_was_told_is_none():
    talk = elastic()
    talk.order(IN_PLACE)
    talk.tell(io.WorkerExited(T, 1, 1, 1))
    assert talk.tell(io.WorkerSuspended(T, 1, 0)) == [ev.ReplicaStopped(T, 1, suspended=True)]


def test_r14_a_failure_at_the_agreed_step_is_a_stop_and_its_mates_wait():
    talk = elastic()
    talk.order(AskStep("node0", T, 1))
    talk.tell(io.WorkerExited(T, 1, 1, 1, was_stopping=True))
    assert talk.tell(io.WorkerSuspended(T, 1, 0)) == [ev.ReplicaStopped(T, 1, suspended=True)]


def test_whoever_waits_is_told_to_end_and_nothing_starts_before():
    talk = suspended()
    assert talk.order(StopReplica("node0", T, 1, 0)) == [kill("KILL")]
    other = start(1, "other/0")
    talk.agent.graph = graph(role("trainer", procs=2), role("other"))
    assert talk.order(other) == []  # its GPU may be the one
    assert talk.order(start(2)) == []
    talk.tell(io.WorkerExited(T, 1, 0, signal="KILL"))
    done = talk.tell(io.WorkerExited(T, 1, 1, signal="KILL"))
    assert done == [ev.ReplicaStopped(T, 1), io.SpawnWorkers(other), io.SpawnWorkers(start(2))]


def test_a_start_that_is_held_and_stopped_never_happens():
    talk = suspended()
    talk.order(StopReplica("node0", T, 1, 0))
    talk.order(start(2))
    assert talk.order(StopReplica("node0", T, 2, 0)) == [ev.ReplicaStopped(T, 2)]
    talk.tell(io.WorkerExited(T, 1, 0, signal="KILL"))
    assert talk.tell(io.WorkerExited(T, 1, 1, signal="KILL")) == [ev.ReplicaStopped(T, 1)]


def test_r6_where_those_who_waited_outlive_sigkill_nothing_can_start():
    talk = suspended()
    talk.order(StopReplica("node0", T, 1, 0))
    talk.order(start(2))
    detail = "attempt 1 of trainer/0 still runs"
    failed = ev.ReplicaExited(T, 2, "start_failed", detail=detail)
    assert talk.at(30, ack=True) == [ev.ReplicaUnkillable(T, 1), failed]
    other = talk.order(start(1, "other/0"))
    assert other == [ev.ReplicaExited(r("other/0"), 1, "start_failed", detail=detail)]


def test_when_all_who_waited_have_died_the_next_start_is_an_ordinary_one():
    talk = suspended()
    assert talk.tell(io.WorkerExited(T, 1, 0, signal="SEGV")) == []
    assert talk.tell(io.WorkerExited(T, 1, 1, signal="SEGV")) == [ev.ReplicaStopped(T, 1)]
    assert talk.order(start(2)) == [io.SpawnWorkers(start(2))]


def test_r19_the_fence_does_not_spare_those_who_wait():
    talk = suspended()
    talk.at(10, ack=True)
    assert talk.at(13) == [kill("KILL")]
    talk.tell(io.WorkerExited(T, 1, 0, signal="KILL"))
    joined = talk.tell(io.WorkerExited(T, 1, 1, signal="KILL"))
    assert isinstance(joined[-1], msg.Join) and joined[-1].inventory == ()


def test_r19_what_was_held_when_the_lease_ran_out_never_starts():
    talk = suspended()
    talk.at(10, ack=True)
    talk.order(StopReplica("node0", T, 1, 0))
    talk.order(start(2))
    talk.at(13)
    talk.tell(io.WorkerExited(T, 1, 0, signal="KILL"))
    assert not any(isinstance(output, io.SpawnWorkers) for output in talk.tell(io.WorkerExited(T, 1, 1)))


def test_an_agent_that_leaves_ends_those_who_wait_first():
    talk = suspended()
    assert talk.tell(io.LeaveRequested()) == [kill("TERM")]
    talk.tell(io.WorkerExited(T, 1, 0, signal="TERM"))
    assert isinstance(talk.tell(io.WorkerExited(T, 1, 1, signal="TERM"))[0], msg.Leave)


def test_an_agent_that_leaves_starts_nothing_that_was_held():
    talk = suspended()
    talk.order(StopReplica("node0", T, 1, SECOND))
    assert talk.order(start(2)) == []
    talk.tell(io.LeaveRequested())
    talk.tell(io.WorkerExited(T, 1, 0, signal="TERM"))
    assert talk.tell(io.WorkerExited(T, 1, 1, signal="TERM")) == [msg.Leave("node0", 1), io.EndAgent("it left")]


def test_what_is_said_of_them_while_they_wait_is_no_news():
    talk = suspended()
    assert talk.tell(io.WorkerProgressed(T, 1, 0, 9)) == []
    assert talk.tell(io.WorkerSuspended(T, 1, 0)) == []


def test_r21_a_controller_that_comes_back_hears_who_is_elastic_and_who_waits():
    talk = elastic()
    assert inventory(talk) == [("running", False)]
    assert talk.sent[-1] == ev.ReplicaElastic(T, 1)
    assert inventory(suspended()) == [("suspended", False)]
