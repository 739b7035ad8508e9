"""Conversations with the pure agent: what it starts and stops, its lease, and when it fences."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import AnswerCheckpoint, CloseStore, OpenStore, StopReplica, TellPeers
from flowdist.graph import MS, NODE_PROCS, SECOND, NodeSpec, Readiness
from tests.control.agent_harness import A, T, Talk, kill, running, start
from tests.control.harness import r


def test_it_joins_and_beats():
    talk = Talk()
    assert isinstance(talk.sent[0], msg.Join)
    talk.at(1.2, ack=True)
    assert [beat.sent_ns // MS for beat in talk.sent if isinstance(beat, msg.Heartbeat)] == [500, 1000]


def test_what_it_is_told_twice_it_does_once():
    talk = Talk()
    assert talk.order(start()) == [io.SpawnWorkers(start())]
    assert talk.order(start()) == []
    talk.tell(io.WorkersSpawned(T, 1, (("rpc", 4000),)))
    assert talk.order(start(0)) == []
    assert talk.sent[-1] == ev.ReplicaStarted(T, 1, (("rpc", 4000),))


def test_a_stop_is_sigterm_then_sigkill_when_the_grace_is_over():
    talk = running()
    assert talk.order(StopReplica("node0", T, 1, 2 * SECOND)) == [kill("TERM")]
    assert talk.at(1.9, ack=True) == []
    assert talk.at(2, ack=True) == [kill("KILL")]
    talk.tell(io.WorkerExited(T, 1, 0, signal="KILL"))
    assert talk.tell(io.WorkerExited(T, 1, 1, signal="KILL")) == [ev.ReplicaStopped(T, 1)]


def test_a_stop_without_grace_is_sigkill_at_once_and_shortens_a_longer_one():
    talk = running()
    talk.order(StopReplica("node0", T, 1, 60 * SECOND))
    assert talk.order(StopReplica("node0", T, 1, 0)) == [kill("KILL")]


def test_a_stop_that_comes_before_the_workers_run_is_not_lost():
    talk = Talk()
    talk.order(start())
    assert talk.order(StopReplica("node0", T, 1, SECOND)) == [io.HurrySpawn(T, 1)]
    assert talk.tell(io.WorkersSpawned(T, 1)) == [ev.ReplicaStarted(T, 1), kill("TERM")]
    talk = Talk()
    talk.order(start())
    talk.order(StopReplica("node0", T, 1, 0))
    assert talk.tell(io.WorkersSpawned(T, 1)) == [ev.ReplicaStarted(T, 1), kill("KILL")]


@pytest.mark.parametrize("grace", [0, SECOND])
def test_nothing_is_due_while_workers_that_are_to_end_do_not_run_yet(grace: int) -> None:
    """A kill that was due, and could not be sent, kept the driver busy until the imports were over."""
    talk = Talk()
    talk.order(start())
    talk.order(StopReplica("node0", T, 1, grace))
    talk.now = 2 * SECOND
    talk.tell(io.AgentTimePassed())
    due = talk.agent.deadline()
    assert due is not None and due > talk.now, "the next heartbeat"
    assert talk.tell(io.WorkersSpawned(T, 1)) == [ev.ReplicaStarted(T, 1), kill("KILL")], "the grace is over"


def test_what_is_due_of_another_replica_kills_no_workers_that_do_not_run_yet():
    talk = Talk(max_replicas=2)
    other = r("trainer/1")
    for each in (T, other):
        talk.order(start(name=str(each)))
    talk.tell(io.WorkersSpawned(other, 1))
    for each in (T, other):
        talk.order(StopReplica("node0", each, 1, SECOND))
    assert talk.at(1, ack=True) == [io.SignalWorkers(other, 1, "KILL")]
    assert talk.tell(io.WorkersSpawned(T, 1)) == [ev.ReplicaStarted(T, 1), kill("KILL")], "not once more with grace"


def test_it_says_why_workers_are_not_forked():
    talk = Talk()
    talk.order(start())
    assert talk.tell(io.SpawnedCold(T, 1, "too many threads")) == [ev.ReplicaStartsCold(T, 1, "too many threads")]


def test_it_joins_as_warming_until_it_is_warm():
    talk = Talk()
    talk.agent.is_warming = True
    joins = [output for output in talk.tell(io.Connected()) if isinstance(output, msg.Join)]
    assert [join.is_warming for join in joins] == [True]
    assert talk.tell(io.WarmedUp()) == [ev.NodeWarm("node0")]
    joins = [output for output in talk.tell(io.Connected()) if isinstance(output, msg.Join)]
    assert [join.is_warming for join in joins] == [False]


def test_the_first_failing_worker_takes_the_others_with_it_and_is_reported_once():
    talk = running()
    assert talk.tell(io.WorkerExited(T, 1, 1, 3, detail="ValueError: x")) == [kill("TERM")]
    assert talk.at(2, ack=True) == [kill("KILL")]
    done = talk.tell(io.WorkerExited(T, 1, 0, signal="KILL"))
    assert done == [ev.ReplicaExited(T, 1, "exit", 3, None, 1, "ValueError: x")]


def test_the_worker_that_raised_first_is_reported_though_its_peer_ended_before_it():
    talk = running()
    talk.tell(io.WorkerExited(T, 1, 1, 1, detail="RuntimeError: Connection closed by peer", raised_ns=20))
    done = talk.tell(io.WorkerExited(T, 1, 0, 2, detail="ValueError: x", raised_ns=10))
    assert done == [ev.ReplicaExited(T, 1, "exit", 2, None, 0, "ValueError: x")]


def test_it_may_have_been_stopped_as_it_ended_and_what_it_raised_counts():
    talk = running()
    talk.tell(io.WorkerExited(T, 1, 1, 1, detail="RuntimeError: Connection closed by peer", raised_ns=20))
    done = talk.tell(io.WorkerExited(T, 1, 0, 0, "TERM", detail="ValueError: x", raised_ns=10))
    assert done == [ev.ReplicaExited(T, 1, "exit", 1, None, 0, "ValueError: x")]


@pytest.mark.parametrize(("first", "then"), [(10, 10), (10, 20), (None, 10), (10, None), (None, None)])
def test_a_peer_that_raised_later_or_of_which_that_is_not_known_changes_nothing(first: int | None, then: int | None):
    """One that wrote nothing down may have been killed, by the kernel for one: the others lost it then."""
    talk = running()
    talk.tell(io.WorkerExited(T, 1, 1, 3, raised_ns=first))
    assert talk.tell(io.WorkerExited(T, 1, 0, 4, raised_ns=then)) == [ev.ReplicaExited(T, 1, "exit", 3, None, 1)]


def test_who_fails_after_it_was_told_to_stop_has_stopped_whenever_it_raised():
    talk = running()
    talk.order(StopReplica("node0", T, 1, SECOND))
    talk.tell(io.WorkerExited(T, 1, 1, 1, raised_ns=20))
    assert talk.tell(io.WorkerExited(T, 1, 0, 1, raised_ns=10)) == [ev.ReplicaStopped(T, 1)]


def test_r16_success_is_when_all_workers_exit_with_0():
    talk = running()
    assert talk.tell(io.WorkerExited(T, 1, 0)) == []
    assert talk.tell(io.WorkerExited(T, 1, 1)) == [ev.ReplicaExited(T, 1)]


def test_r16_exit_128_plus_n_counts_as_signal_n():
    talk = running(procs=1)
    assert talk.tell(io.WorkerExited(T, 1, 0, 139)) == [ev.ReplicaExited(T, 1, "signal", 139, "SEGV")]


def test_r16_a_failure_before_the_stop_is_a_failure():
    talk = running()
    talk.tell(io.WorkerExited(T, 1, 1, 3))
    talk.order(StopReplica("node0", T, 1, SECOND))
    assert talk.tell(io.WorkerExited(T, 1, 0))[-1] == ev.ReplicaExited(T, 1, "exit", 3, None, 1)


def test_a_command_that_does_not_exist_is_a_start_failure():
    talk = Talk()
    talk.order(start())
    failed = talk.tell(io.SpawnFailed(T, 1, "no such file: trian.py"))
    assert failed == [ev.ReplicaExited(T, 1, "start_failed", 1, None, 0, "no such file: trian.py")]


def test_r6_a_worker_that_outlives_sigkill_is_reported():
    talk = running()
    talk.order(StopReplica("node0", T, 1, 0))
    assert talk.at(29.9, ack=True) == []
    assert talk.at(30, ack=True) == [ev.ReplicaUnkillable(T, 1)]
    assert talk.at(90, ack=True) == []


def test_r19_it_fences_one_second_before_its_lease_ends_counted_from_the_sending():
    talk = running()
    talk.at(10, ack=True)
    assert talk.agent.lease.acked_ns == 10 * SECOND
    assert talk.at(12.9) == []
    assert talk.at(13) == [kill("KILL")]


def test_r19_after_the_fence_it_joins_anew_with_nothing_when_all_is_gone():
    talk = running()
    talk.order(OpenStore("node0", "trainer", 1))
    assert talk.at(3) == [kill("KILL"), io.KillStore("trainer", 1)]
    assert talk.tell(io.WorkerExited(T, 1, 0, signal="KILL")) == []
    joined = talk.tell(io.WorkerExited(T, 1, 1, signal="KILL"))
    assert joined == [msg.Join("node0", 2, A, "127.0.0.1", 3 * SECOND)]


def test_r19_a_rejoin_fences_at_once():
    talk = running()
    assert talk.tell(msg.Rejoin(1, 1)) == [kill("KILL")]
    assert talk.order(start(2)) == [] and talk.order(start(1, "trainer/1")) == []


def test_r19_workers_live_on_through_a_short_loss_of_the_connection():
    talk = running()
    talk.tell(io.Disconnected())
    talk.now = SECOND
    (join,) = talk.tell(io.Connected())
    assert isinstance(join, msg.Join) and join.incarnation == 1
    assert join.inventory == (ev.InventoryItem(T, 1, "running"),)


def test_r20_orders_of_an_earlier_epoch_are_refused():
    talk = Talk()
    talk.order(CloseStore("node0", "trainer", 1), epoch=3)
    assert talk.order(start(), epoch=2) == []


def test_ready_when_all_workers_said_so_even_before_the_spawn_was_confirmed():
    talk = Talk(ready=Readiness("call"))
    talk.order(start())
    talk.tell(io.WorkerReady(T, 1, 0))
    talk.tell(io.WorkerReady(T, 1, 1))
    assert talk.tell(io.WorkersSpawned(T, 1)) == [ev.ReplicaStarted(T, 1), ev.ReplicaReady(T, 1)]


def test_ready_when_the_probe_passed():
    talk = running(ready=Readiness("tcp", "rpc"))
    assert talk.tell(io.WorkerReady(T, 1, 0)) == []
    assert talk.tell(io.ProbePassed(T, 1)) == [ev.ReplicaReady(T, 1)]


def test_progress_is_that_of_the_least_advanced_worker_and_does_not_flood():
    talk = running()
    assert talk.tell(io.WorkerProgressed(T, 1, 0, 9)) == []
    assert talk.tell(io.WorkerProgressed(T, 1, 1, 7)) == [ev.ReplicaProgressed(T, 1, 7)]
    assert talk.tell(io.WorkerProgressed(T, 1, 1, 8)) == []
    assert talk.tell(io.WorkerProgressed(T, 1, 1, 9)) == []
    assert talk.at(0.4, ack=True) == []
    assert talk.at(0.5, ack=True) == [ev.ReplicaProgressed(T, 1, 9)]


def test_an_old_attempt_tells_of_its_steps_ever_more_rarely():
    talk = running(procs=1)
    told = []
    for second in range(3600):
        told += talk.at(second, ack=True) + talk.tell(io.WorkerProgressed(T, 1, 0, second))
    assert 400 < len(told) < 520
    assert talk.tell(io.WorkerExited(T, 1, 0))[0] == ev.ReplicaProgressed(T, 1, 3599)


def test_it_leaves_when_all_is_stopped_and_says_nothing_before():
    talk = running()
    assert talk.tell(io.LeaveRequested()) == [kill("TERM")]
    assert talk.tell(io.WorkerExited(T, 1, 0)) == []
    assert talk.tell(io.WorkerExited(T, 1, 1)) == [msg.Leave("node0", 1), io.EndAgent("it left")]


def test_a_store_that_dies_unasked_is_lost_one_that_was_closed_is_not():
    talk = Talk()
    assert talk.order(OpenStore("node0", "trainer", 1)) == [io.BindStore("trainer", 1)]
    assert talk.tell(io.StoreBound("trainer", 1, 29400)) == [ev.StoreOpened("trainer", 1, 29400)]
    assert talk.order(OpenStore("node0", "trainer", 1)) == [ev.StoreOpened("trainer", 1, 29400)]
    assert talk.tell(io.StoreExited("trainer", 1, "killed")) == [ev.StoreLost("trainer", 1, "killed")]
    talk.order(OpenStore("node0", "trainer", 2))
    assert talk.order(CloseStore("node0", "trainer", 2)) == [io.KillStore("trainer", 2)]
    assert talk.tell(io.StoreExited("trainer", 2)) == []


def test_dismissed_it_kills_what_is_left_and_ends():
    talk = running()
    assert talk.tell(msg.Dismissed(1, 1)) == [kill("KILL"), io.EndAgent("the job is over")]
    assert talk.agent.deadline() is None and talk.tell(io.Connected()) == []


def test_a_later_stop_never_gives_more_time_than_the_one_before():
    talk = running()
    talk.order(StopReplica("node0", T, 1, 2 * SECOND))
    assert talk.order(StopReplica("node0", T, 1, 60 * SECOND)) == []
    assert talk.at(2, ack=True) == [kill("KILL")]
    assert talk.order(StopReplica("node0", T, 1, SECOND)) == [], "it was killed already"
    assert talk.at(10, ack=True) == []
    assert talk.order(StopReplica("node0", T, 1, 0)) == [kill("KILL")]
    assert talk.at(31.9, ack=True) == []
    assert talk.at(32, ack=True) == [ev.ReplicaUnkillable(T, 1)], "counted from the first time that it was killed"


def test_a_stop_of_what_has_stopped_or_never_ran_is_confirmed_once_more():
    talk = Talk(procs=1)
    assert talk.order(StopReplica("node0", T, 1, 0)) == [ev.ReplicaStopped(T, 1)]
    talk.run()
    talk.order(StopReplica("node0", T, 1, 0))
    talk.tell(io.WorkerExited(T, 1, 0, signal="KILL"))
    assert talk.order(StopReplica("node0", T, 1, 0)) == [ev.ReplicaStopped(T, 1)]
    assert talk.tell(io.LeaveRequested())[0] == msg.Leave("node0", 1)


def test_a_stop_of_what_has_failed_is_not_confirmed_the_failure_says_it_all():
    talk = running(procs=1)
    talk.tell(io.WorkerExited(T, 1, 0, 3))
    assert talk.order(StopReplica("node0", T, 1, 0)) == []


def test_a_new_attempt_does_not_start_beside_one_that_still_runs():
    talk = running()
    detail = "attempt 1 of trainer/0 still runs"
    assert talk.order(start(2)) == [ev.ReplicaExited(T, 2, "start_failed", detail=detail)]
    assert talk.agent.attempts[T].order.attempt == 1


def test_r20_news_of_processes_of_an_attempt_that_is_over_change_nothing():
    talk = Talk(procs=1)
    assert talk.tell(io.WorkerExited(T, 1, 0, 1)) == []
    talk.run()
    assert talk.tell(io.WorkersSpawned(T, 1)) == [], "they run already"
    talk.tell(io.WorkerExited(T, 1, 0, 1))
    talk.run(attempt=2)
    for late in (io.WorkerExited(T, 1, 0, 1), io.WorkersSpawned(T, 1), io.WorkerReady(T, 1, 0)):
        assert talk.tell(late) == []
    assert talk.agent.attempts[T].phase == "running"


def test_addresses_are_told_to_workers_that_run_only():
    talk = Talk(procs=1)
    told = TellPeers("node0", T, 1, (("ps:rpc", "a:1"),))
    assert talk.order(told) == []
    talk.run()
    assert talk.order(told) == [io.WritePeers(T, 1, (("ps:rpc", "a:1"),))]
    talk.tell(io.WorkerExited(T, 1, 0))
    assert talk.order(told) == []


def test_the_answer_about_a_checkpoint_goes_to_the_worker_that_offered_it_once():
    talk = running(procs=1)
    assert talk.tell(io.WorkerOffered(T, 1, 1, "a", 5)) == [ev.CheckpointOffered(T, 1, 1, "a", 5)]
    answer = AnswerCheckpoint("node0", T, 1, "a", 5, False, "generation 1 of trainer is over")
    assert talk.order(answer) == [io.AnswerWorker(T, 1, "a", 5, False, "generation 1 of trainer is over")]
    talk.tell(io.Disconnected())
    assert len(talk.tell(io.Connected())) == 1
    unknown = AnswerCheckpoint("node0", T, 9, "a", 5, True)
    assert talk.order(unknown) == [io.AnswerWorker(T, 9, "a", 5, True)], "its driver knows whether anybody waits"


def test_a_store_is_bound_once_however_often_ordered_and_never_after_its_close():
    talk = Talk()
    talk.order(OpenStore("node0", "trainer", 1))
    assert talk.order(OpenStore("node0", "trainer", 1)) == []
    talk.order(CloseStore("node0", "trainer", 1))
    assert talk.tell(io.StoreBound("trainer", 1, 29400)) == []
    assert talk.order(CloseStore("node0", "trainer", 1)) == []


def test_a_replica_is_done_when_all_the_workers_that_its_host_says_are():
    talk = running(NodeSpec("node0", labels=((NODE_PROCS, "3"),)))
    ends = [talk.tell(io.WorkerExited(T, 1, local_rank)) for local_rank in range(3)]
    assert ends == [[], [], [ev.ReplicaExited(T, 1)]]


def test_r15_of_several_workers_the_one_that_is_furthest_behind_is_named_when_a_collective_times_out():
    for steps, rank in (((7, 8), 0), ((8, 8), 1)):
        talk = running()
        for local_rank, step in enumerate(steps):
            talk.tell(io.WorkerProgressed(T, 1, local_rank, step))
        talk.tell(io.WorkerExited(T, 1, 1, signal="ABRT", detail="too late", cause="collective_timeout"))
        done = talk.tell(io.WorkerExited(T, 1, 0, signal="TERM"))
        (report,) = [each for each in done if isinstance(each, ev.ReplicaExited)]
        assert (report.local_rank, report.signal, report.cause) == (rank, "ABRT", "collective_timeout")
        assert ("worker 0 is furthest behind, after step 7" in report.detail) == (rank == 0)
