"""Conversations with the pure agent about what workers show: silence (R15), and that they have left in order (R14)."""

from __future__ import annotations

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import AskStep, CloseStore, OpenStore, StopAtStep, StopReplica
from flowdist.graph import MINUTE, SECOND, Readiness
from tests.control.agent_harness import A, T, Talk, kill, running, start

LOOK = io.LookForSigns(T, 1)
ASK, STOP_AT_8 = AskStep("node0", T, 1), StopAtStep("node0", T, 1, 8)


def watched(**fields: object) -> Talk:
    return running(hang_after_ns=MINUTE, **fields)


def saw(talk: Talk, output: float | None) -> list[object]:
    """The node answers when there was output last, in seconds."""
    return talk.tell(io.SignsSeen(T, 1, None if output is None else round(output * SECOND)))


def step(talk: Talk, rank: int, number: int) -> list[object]:
    return talk.tell(io.WorkerProgressed(T, 1, rank, number))


def stalled(by: str, step: int = -1, seen: bool = True) -> ev.ReplicaStalled:
    return ev.ReplicaStalled(T, 1, by, MINUTE, step, seen)  # type: ignore[arg-type]


def test_r15_nobody_is_watched_where_the_topology_does_not_ask_for_it():
    talk = running()
    assert talk.at(3600, ack=True) == []


def test_r15_a_worker_without_output_for_too_long_is_reported_once():
    talk = watched()
    assert talk.at(59, ack=True) == []
    assert talk.at(60, ack=True) == [LOOK]
    assert saw(talk, None) == [stalled("output", seen=False)]
    assert talk.at(120, ack=True) == [LOOK]
    assert saw(talk, None) == []


def test_r15_as_long_as_nothing_is_seen_of_it_the_start_timeout_alone_counts():
    talk = watched(start_timeout_ns=10 * MINUTE)
    for at in range(60, 600, 60):
        assert talk.at(at, ack=True) == [LOOK]
        assert saw(talk, None) == []
    talk.at(600, ack=True)
    assert saw(talk, None) == [ev.ReplicaStalled(T, 1, "start", 10 * MINUTE, -1)]


def test_r15_what_has_printed_before_its_first_step_hangs_when_it_is_silent():
    talk = watched(start_timeout_ns=10 * MINUTE)
    talk.at(60, ack=True)
    assert saw(talk, 20) == []
    assert talk.at(80, ack=True) == [LOOK]
    assert saw(talk, 20) == [stalled("output")]


def test_r15_output_puts_the_clock_back():
    talk = watched()
    talk.at(60, ack=True)
    assert saw(talk, 50) == []
    assert talk.at(109, ack=True) == []
    assert talk.at(110, ack=True) == [LOOK]
    assert saw(talk, 50) == [stalled("output")]


def test_r15_output_of_an_earlier_attempt_does_not_count_against_this_one():
    talk = watched()
    talk.at(60, ack=True)
    talk.tell(io.WorkerExited(T, 1, 0, 1))
    talk.tell(io.WorkerExited(T, 1, 1, 1))
    talk.run(attempt=2)
    assert talk.tell(io.SignsSeen(T, 1, None)) == [], "the answer for the one before comes too late"
    assert talk.at(119, ack=True) == []
    assert talk.at(120, ack=True) == [io.LookForSigns(T, 2)]


def test_r15_output_after_the_report_takes_it_back():
    talk = watched()
    talk.at(60, ack=True)
    saw(talk, None)
    talk.at(120, ack=True)
    assert saw(talk, 100) == [ev.ReplicaRevived(T, 1)]
    assert talk.at(160, ack=True) == [LOOK]


def test_r15_with_progress_the_rank_that_is_quiet_for_longest_counts():
    talk = watched()
    talk.at(10, ack=True)
    step(talk, 0, 1)
    talk.at(30, ack=True)
    step(talk, 1, 1)
    assert talk.at(69, ack=True) == []
    assert talk.at(70, ack=True) == [LOOK]
    assert saw(talk, 69.9) == [stalled("progress", step=1)]
    assert talk.at(3600, ack=True) == [], "it is not looked for anything but a step"


def test_r15_while_it_is_looked_news_of_one_rank_are_no_reason_to_look_again():
    talk = watched()
    step(talk, 0, 1)
    step(talk, 1, 1)
    assert talk.at(60, ack=True) == [LOOK]
    assert LOOK not in step(talk, 0, 2), "the other rank is as quiet as before"
    assert LOOK not in step(talk, 1, 2)
    assert saw(talk, None) == []
    assert talk.at(119, ack=True) == [] and talk.at(120, ack=True) == [LOOK]


def test_r15_a_step_after_the_report_takes_it_back_and_the_clock_starts_anew():
    talk = watched(procs=1)
    talk.at(10, ack=True)
    step(talk, 0, 1)
    talk.at(70, ack=True)
    saw(talk, None)
    talk.at(80, ack=True)
    assert ev.ReplicaRevived(T, 1) in step(talk, 0, 2)
    assert talk.at(139, ack=True) == []
    assert talk.at(140, ack=True) == [LOOK]


def test_r15_a_rank_that_goes_on_does_not_clear_the_other():
    talk = watched()
    step(talk, 0, 1)
    step(talk, 1, 1)
    talk.at(60, ack=True)
    assert saw(talk, None) == [stalled("progress", step=1)]
    assert step(talk, 0, 2) == []
    assert talk.agent.attempts[T].stalled is not None


def test_r15_to_report_the_same_step_again_is_no_progress():
    talk = watched(procs=1)
    step(talk, 0, 5)
    talk.at(59, ack=True)
    assert step(talk, 0, 5) == []
    assert talk.at(60, ack=True) == [LOOK]


def test_r15_before_the_first_progress_the_start_has_its_own_time():
    talk = running(start_timeout_ns=20 * MINUTE)
    assert talk.at(1199, ack=True) == []
    assert talk.at(1200, ack=True) == [LOOK]
    late = ev.ReplicaStalled(T, 1, "start", 20 * MINUTE)
    assert saw(talk, 1199) == [late], "output is no start"
    assert ev.ReplicaRevived(T, 1) in step(talk, 0, 0)
    assert talk.at(3600, ack=True) == []


def test_r15_a_step_that_comes_while_it_is_looked_is_soon_enough():
    talk = running(start_timeout_ns=20 * MINUTE)
    talk.at(1200, ack=True)
    step(talk, 0, 0)
    assert saw(talk, None) == []


def test_r15_a_step_that_comes_before_the_start_is_confirmed_is_not_lost():
    talk = Talk(procs=1, hang_after_ns=MINUTE)
    talk.order(start())
    assert step(talk, 0, 1) == [ev.ReplicaProgressed(T, 1, 1)]
    assert talk.agent.attempts[T].look_at_ns is None
    talk.tell(io.WorkersSpawned(T, 1))
    assert talk.at(60, ack=True) == [LOOK]


def test_r15_what_was_told_to_stop_does_not_hang():
    talk = watched()
    talk.at(60, ack=True)
    talk.order(StopReplica("node0", T, 1, 10 * MINUTE))
    assert saw(talk, None) == []
    assert step(talk, 0, 1) == []
    assert talk.at(300, ack=True) == []
    talk = watched()
    talk.order(StopReplica("node0", T, 1, 10 * MINUTE))
    assert talk.at(300, ack=True) == [], "nobody looks any more"


def test_r15_a_stop_for_a_hang_has_the_stacks_written_first():
    talk = watched()
    assert talk.order(StopReplica("node0", T, 1, 2 * SECOND, dump=True)) == [kill("ABRT")]
    assert talk.at(2, ack=True) == [kill("KILL")]
    talk = Talk()
    talk.order(start())
    talk.order(StopReplica("node0", T, 1, 2 * SECOND, dump=True))
    assert talk.tell(io.WorkersSpawned(T, 1)) == [ev.ReplicaStarted(T, 1), kill("ABRT")]


def test_r14_the_question_for_the_step_goes_to_the_workers_and_their_answer_back():
    talk = running()
    assert talk.order(ASK) == [io.AskWorkers(T, 1)]
    assert talk.tell(io.WorkersAsked(T, 1, 7)) == [ev.StepTold(T, 1, 7)]
    assert talk.order(STOP_AT_8) == [io.TellWorkers(T, 1, 8)]


def test_r14_who_has_not_started_yet_never_asked():
    talk = Talk()
    talk.order(start())
    assert talk.order(ASK) == [ev.StepTold(T, 1, None)]


def test_r14_the_replica_has_left_its_step_when_its_last_worker_has():
    talk = running()
    talk.order(ASK)
    talk.order(STOP_AT_8)
    assert talk.tell(io.WorkerLeftStep(T, 1, 0)) == []
    assert talk.tell(io.WorkerLeftStep(T, 1, 1)) == [ev.ReplicaLeftStep(T, 1)]


def test_r14_a_worker_that_ends_has_left_the_step_too():
    talk = running()
    talk.order(STOP_AT_8)
    talk.tell(io.WorkerLeftStep(T, 1, 0))
    assert talk.tell(io.WorkerExited(T, 1, 1, was_stopping=True)) == [ev.ReplicaLeftStep(T, 1)]
    assert talk.tell(io.WorkerExited(T, 1, 0, was_stopping=True)) == [ev.ReplicaStopped(T, 1)]


def test_r14_who_ends_before_the_step_has_not_left_it():
    talk = running()
    talk.order(STOP_AT_8)
    assert talk.tell(io.WorkerExited(T, 1, 0)) == []
    assert talk.tell(io.WorkerLeftStep(T, 1, 1)) == [ev.ReplicaLeftStep(T, 1)]


def test_r16_what_ends_after_should_stop_has_returned_true_has_stopped_whatever_its_code():
    for code in (0, 3):
        talk = running(procs=1)
        talk.order(ASK)
        assert talk.tell(io.WorkerExited(T, 1, 0, code, was_stopping=True)) == [ev.ReplicaStopped(T, 1)]


def test_r16_what_ends_under_a_notice_before_the_agreed_step_has_succeeded_or_failed():
    for code, kind in ((0, None), (3, "exit")):
        talk = running(procs=2)
        talk.order(ASK)
        talk.order(STOP_AT_8)
        talk.tell(io.WorkerExited(T, 1, 0, code))
        assert talk.tell(io.WorkerExited(T, 1, 1, was_stopping=bool(code)))[-1] == ev.ReplicaExited(T, 1, kind, code)


def test_r16_a_replica_is_not_done_if_one_of_its_workers_was_told_to_stop():
    talk = running(procs=2)
    talk.order(ASK)
    talk.order(STOP_AT_8)
    talk.tell(io.WorkerExited(T, 1, 0, was_stopping=True))
    assert talk.tell(io.WorkerExited(T, 1, 1)) == [ev.ReplicaStopped(T, 1)]


def test_r20_a_notice_for_an_attempt_that_is_over_or_unknown_is_not_obeyed():
    talk = Talk(procs=1)
    assert talk.order(ASK) == []
    talk.run()
    talk.tell(io.WorkerExited(T, 1, 0))
    assert talk.order(ASK) == [] and talk.order(STOP_AT_8) == []
    assert talk.tell(io.WorkerLeftStep(T, 1, 0)) == []


def test_r14_that_the_node_will_be_taken_away_is_told():
    talk = Talk()
    assert talk.tell(io.PreemptionNoticed(30 * SECOND)) == [msg.Preempted("node0", 1, 30 * SECOND)]


def test_r14_it_is_told_again_after_each_connection_until_then():
    talk = Talk()
    talk.tell(io.Disconnected())
    assert talk.tell(io.PreemptionNoticed(3 * SECOND)) == []
    talk.now = 1 * SECOND
    assert talk.tell(io.Connected())[1:] == [msg.Preempted("node0", 1, 2 * SECOND)]
    talk.tell(io.Disconnected())
    talk.now = 3 * SECOND
    assert talk.tell(io.Connected())[1:] == []


def test_a_lost_connection_loses_nothing_of_what_workers_showed():
    talk = running(hang_after_ns=SECOND)
    talk.order(ASK)
    talk.tell(io.WorkerOffered(T, 1, 1, "a", 3))
    talk.tell(io.Disconnected())
    assert step(talk, 0, 4) == [] and step(talk, 1, 5) == [], "nobody is there to hear it"
    talk.tell(io.WorkerLeftStep(T, 1, 0))
    talk.tell(io.WorkerLeftStep(T, 1, 1))
    talk.now = 2 * SECOND
    assert saw(talk, None) == [LOOK]
    joined, *again = talk.tell(io.Connected())
    assert joined == msg.Join("node0", 1, A, "127.0.0.1", 2 * SECOND, (ev.InventoryItem(T, 1, "running"),))
    assert again == [
        ev.ReplicaProgressed(T, 1, 4),
        ev.CheckpointOffered(T, 1, 1, "a", 3),
        ev.ReplicaStalled(T, 1, "progress", SECOND, 4),
        ev.ReplicaLeftStep(T, 1),
    ]


def test_an_unkillable_worker_and_a_dead_store_outlast_a_lost_connection():
    talk = running()
    talk.order(OpenStore("node0", "trainer", 1))
    talk.order(StopReplica("node0", T, 1, 0))
    talk.at(29, ack=True)
    talk.tell(io.Disconnected())
    talk.at(30)
    talk.tell(io.StoreExited("trainer", 1, "killed"))
    _, *again = talk.tell(io.Connected())
    assert again == [ev.StoreLost("trainer", 1, "killed"), ev.ReplicaUnkillable(T, 1)]
    talk.order(CloseStore("node0", "trainer", 1))
    talk.tell(io.Disconnected())
    assert talk.tell(io.Connected())[1:] == [ev.ReplicaUnkillable(T, 1)]


def test_after_a_lost_connection_only_the_end_of_an_attempt_is_reported_again():
    talk = running(procs=1)
    step(talk, 0, 4)
    talk.tell(io.Disconnected())
    assert talk.tell(io.WorkerExited(T, 1, 0, 3)) == []
    (joined,) = talk.tell(io.Connected())
    assert isinstance(joined, msg.Join)
    exited = ev.ReplicaExited(T, 1, "exit", 3)
    assert joined.inventory == (ev.InventoryItem(T, 1, "exited", exited=exited),)


def count(talk: Talk, rank: int, steps: int) -> list[object]:
    return talk.tell(io.WorkerStepped(T, 1, rank, steps))


def test_the_first_counted_step_is_reported_at_once_and_later_ones_with_a_heartbeat():
    talk = watched()
    talk.at(10, ack=True)
    assert count(talk, 1, 1) == [ev.ReplicaStepped(T, 1, 1)]
    assert count(talk, 0, 1) == [] and count(talk, 1, 40) == []
    assert talk.at(10.6, ack=True) == [ev.ReplicaStepped(T, 1, 40)]


def test_steps_that_a_script_reports_replace_counted_ones_for_good():
    talk = watched(procs=1)
    talk.at(10, ack=True)
    count(talk, 0, 1)
    assert step(talk, 0, 701) == [ev.ReplicaProgressed(T, 1, 701)], "the script knows better, and at once"
    assert count(talk, 0, 2) == [] and talk.at(60, ack=True) == []
    talk.tell(io.Disconnected())
    talk.tell(io.Connected())
    assert ev.ReplicaProgressed(T, 1, 701) in talk.sent[-3:] + talk.tell(msg.Acked(1, talk.agent.incarnation, 0))


def test_counted_steps_are_said_again_to_a_controller_that_may_not_know_them():
    talk = watched()
    count(talk, 0, 3)
    del talk.sent[:]
    talk.tell(io.Disconnected())
    talk.tell(io.Connected())
    talk.tell(msg.Acked(1, talk.agent.incarnation, 0))
    assert ev.ReplicaStepped(T, 1, 3) in talk.sent


def test_r15_counted_steps_and_output_are_both_signs_of_life():
    talk = watched()
    talk.at(30, ack=True)
    count(talk, 0, 1)
    count(talk, 1, 1)
    assert talk.at(89, ack=True) == [] and talk.at(90, ack=True) == [LOOK]
    assert saw(talk, 20) == [stalled("output")], "no output, and no step"


def test_r15_a_script_that_prints_while_it_takes_no_steps_lives():
    talk = watched()
    count(talk, 0, 1)
    talk.at(60, ack=True)
    assert saw(talk, 50) == [], "it evaluates"
    assert talk.at(110, ack=True) == [LOOK]
    count(talk, 0, 2)
    assert saw(talk, 50) == [], "it steps, and prints nothing"
    assert talk.at(169, ack=True) == [] and talk.at(170, ack=True) == [LOOK]


def test_r15_a_counted_step_is_a_first_sign_and_revives():
    talk = running(start_timeout_ns=MINUTE, hang_after_ns=MINUTE)
    talk.at(30, ack=True)
    count(talk, 0, 1)
    count(talk, 1, 1)
    assert talk.at(60, ack=True) == [] and talk.at(90, ack=True) == [LOOK]
    assert saw(talk, None) == [stalled("output")], "it has stepped before"
    count(talk, 0, 2)
    assert ev.ReplicaRevived(T, 1) in count(talk, 1, 2)


def test_r15_an_equal_count_is_a_sign_of_life_and_no_news():
    talk = watched(procs=1)
    talk.at(30, ack=True)
    assert count(talk, 0, 5) == [ev.ReplicaStepped(T, 1, 5)]
    talk.at(60, ack=True)
    assert count(talk, 0, 5) == [] and talk.at(119, ack=True) == []
    assert talk.at(120, ack=True) == [LOOK] and saw(talk, None) == [stalled("output")]


def test_counts_that_no_worker_can_have_are_ignored():
    talk = watched()
    for rank, steps in ((0, 0), (0, -5), (2, 7), (-1, 7), (1 << 40, 7)):
        assert count(talk, rank, steps) == []
    attempt = talk.agent.attempts[T]
    assert attempt.counts == attempt.counted_ns == {}, "they are no signs of life, and take no memory"
    count(talk, 0, 3)
    assert count(talk, 0, 2) == [] and talk.at(50, ack=True) == [] and attempt.counts == {0: 3}


def test_ranks_that_a_replica_does_not_have_report_no_steps_and_are_not_ready():
    talk = watched(ready=Readiness("call"))
    assert [step(talk, rank, 7) for rank in (-1, 2, 9)] == [[], [], []]
    assert step(talk, 0, 7) == [] and step(talk, 1, 8) == [ev.ReplicaProgressed(T, 1, 7)]
    talk.tell(io.WorkerReady(T, 1, 0))
    assert talk.tell(io.WorkerReady(T, 1, 2)) == []
    assert talk.tell(io.WorkerReady(T, 1, 1)) == [ev.ReplicaReady(T, 1)]


def test_a_flood_of_counts_and_of_steps_that_are_none_is_few_reports():
    talk = watched(procs=1)
    talk.at(10, ack=True)
    said = [report for steps in range(1, 1000) for report in (*count(talk, 0, steps), *step(talk, 0, -5))]
    assert said == [ev.ReplicaStepped(T, 1, 1)]
    assert talk.at(10.6, ack=True) == [ev.ReplicaStepped(T, 1, 999)]
