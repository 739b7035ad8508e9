"""Timesheets from records alone: what workers report, what they do not report, and what turns out to be lost."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND, VersionEdge
from flowdist.record.accounts import BUCKETS
from flowdist.record.journal import AccountLine, UnkeptWork, UnsavedLine
from flowdist.record.work_segments import MARKS_MAX, ClosedSegment, WorkSegment
from tests.control.harness import joined, r, restart, role
from tests.record.sheets import count, fail, finish, half_up, read, save, seconds, step, trainers, until

UNSAVED = UnsavedLine(12 * SECOND, "trainer", 12, "the disk of trainer is full")

# Reports, and missing reports.


def test_a_role_without_reports_works_while_all_of_it_runs():
    talk = trainers(2)
    fail(talk, 30)
    finish(talk, 100, "trainer/0", "trainer/1")
    sheet = read(talk)
    assert seconds(sheet) == {"unknown": 200}
    assert sheet.unreported() == {"trainer": ["progress", "checkpoints"]}


@pytest.mark.parametrize(
    ("reports", "end", "start_up"),
    [
        pytest.param([(10, 1), (12, 2)], 100, 8, id="each step: until the first began"),
        pytest.param([(210, 100), (410, 200)], 500, 10, id="each hundredth: at the first hundred it had worked"),
        pytest.param([(30, 10_000), (40, 10_010)], 50, 20, id="a first one far beyond nothing: it was resumed"),
        pytest.param([(30, 1)], 50, 30, id="a single one: work had begun by then"),
    ],
)
def test_a_role_with_reports_starts_up_until_its_first_step(
    reports: list[tuple[float, int]], end: float, start_up: float
):
    talk = trainers()
    for at, number in reports:
        step(talk, at, number)
    finish(talk, end, "trainer/0")
    sheet = read(talk)
    assert seconds(sheet) == {"start-up": start_up, "productive": end - start_up}
    assert sheet.unreported() == {"trainer": ["checkpoints"]}


def test_counted_steps_end_the_start_up_and_say_nothing_about_lost_work():
    talk = trainers()
    count(talk, 10, 1)
    count(talk, 12, 2)
    fail(talk, 50)
    count(talk, 60, 1)
    count(talk, 62, 2)
    finish(talk, 100, "trainer/0")
    sheet = read(talk)
    assert seconds(sheet) == {"start-up": 8 + 8, "productive": 42 + 42}
    assert sheet.unreported() == {"trainer": ["step numbers", "checkpoints"]}


def test_a_fast_loop_whose_count_is_reported_late_has_worked_before_the_second_report():
    talk = trainers()
    count(talk, 10, 1)
    count(talk, 11, 101)
    finish(talk, 100, "trainer/0")
    assert seconds(read(talk)) == pytest.approx({"start-up": 9.99, "productive": 90.01})


def test_counted_steps_are_no_numbers_of_a_checkpoint():
    talk = trainers()
    count(talk, 10, 1)
    count(talk, 20, 2)
    count(talk, 30, 3)
    save(talk, 40, 2)
    fail(talk, 50)
    finish(talk, 100, "trainer/0")
    sheet = read(talk)
    assert seconds(sheet) == {"productive": 40, "lost work": 10, "start-up": 50}
    assert sheet.unreported() == {"trainer": ["step numbers"]}


def test_reports_of_the_script_replace_counted_steps():
    talk = trainers()
    count(talk, 10, 1)
    step(talk, 10, 1)
    step(talk, 20, 2)
    fail(talk, 30)
    count(talk, 40, 1)
    step(talk, 40, 2)
    step(talk, 50, 3)
    finish(talk, 60, "trainer/0")
    sheet = read(talk)
    assert seconds(sheet) == {"productive": 10 + 30, "lost work": 20}
    assert sheet.unreported() == {"trainer": ["checkpoints"]}


def test_lost_work_of_a_role_is_the_time_of_its_worlds_and_not_of_its_replicas():
    """A summary once had the sum over the replicas, and all else the time of the world."""
    talk = trainers(2)
    for number in range(1, 5):
        step(talk, 10 * number, number)
    save(talk, 45, 4)
    fail(talk, 60)
    step(talk, 80, 5)
    step(talk, 90, 6)
    finish(talk, 100, "trainer/0", "trainer/1")
    sheet = read(talk)
    assert seconds(sheet)["lost work"] == 2 * 15 and sheet.lost() == {"trainer": 15 * SECOND}


def test_lost_work_of_replicas_with_worlds_of_their_own_is_added_up():
    talk = trainers(2, restart=restart("replica", times=20, backoff_ns=0))
    for name in ("trainer/0", "trainer/1"):
        save(talk, 10, 1, name)
    fail(talk, 30, "trainer/0")
    save(talk, 40, 2, "trainer/1")
    fail(talk, 45, "trainer/1")
    finish(talk, 60, "trainer/0", "trainer/1")
    sheet = read(talk)
    assert seconds(sheet)["lost work"] == 20 + 5 and sheet.lost() == {"trainer": 25 * SECOND}


def test_lost_work_is_corrected_when_the_next_generation_shows_where_it_resumed():
    talk = trainers(2)
    for number in range(1, 5):
        step(talk, 10 * number, number)
    fail(talk, 45)
    step(talk, 60, 2)
    step(talk, 70, 4)
    finish(talk, 100, "trainer/0", "trainer/1")
    sheet = read(talk)
    assert 2 * sheet.lost()["trainer"] == sheet.spent()["trainer"]["lost work"] > 0


def test_steps_that_go_back_and_reports_of_dead_attempts_change_nothing():
    talk = trainers()
    step(talk, 10, 1)
    step(talk, 12, 2)
    step(talk, 13, 1)
    talk.tell(ev.ReplicaProgressed(r("trainer/0"), 7, 99))
    talk.tell(ev.ReplicaProgressed(r("nobody/0"), 1, 99))
    finish(talk, 100, "trainer/0")
    assert seconds(read(talk)) == {"start-up": 8, "productive": 92}


def test_the_first_report_turns_supposed_work_of_earlier_generations_into_start_up():
    talk = trainers(2, gang=False, restart=restart("replica", 9))
    fail(talk, 30)
    step(talk, 40, 1, "trainer/1")
    step(talk, 50, 2, "trainer/1")
    step(talk, 60, 1)
    step(talk, 62, 2)
    finish(talk, 100, "trainer/0", "trainer/1")
    assert seconds(read(talk)) == {"start-up": 30 + 28 + 30, "productive": 42 + 70}


def test_a_report_may_come_before_the_last_member_is_known_to_run():
    talk = half_up()
    step(talk, 10, 1)
    talk.tell(ev.ReplicaStarted(r("trainer/1"), 2))
    finish(talk, 20, "trainer/0", "trainer/1")
    assert seconds(read(talk)) == {"start-up": 20, "productive": 20}


def test_a_checkpoint_may_come_before_the_last_member_is_known_to_run():
    talk = half_up()
    save(talk, 7, 3)
    talk.tell(ev.ReplicaStarted(r("trainer/1"), 2))
    fail(talk, 10)
    assert seconds(read(talk)) == {"lost work": 10 + 6, "start-up": 4}


def test_what_is_under_way_is_in_its_bucket_at_any_time():
    talk = trainers()
    step(talk, 10, 1)
    step(talk, 12, 2)
    until(talk, 20)
    sheet = read(talk)
    assert seconds(sheet) == {"start-up": 8, "productive": 12}
    assert seconds(sheet, now=25) == {"start-up": 8, "productive": 17}
    assert seconds(sheet, now=1) == {"start-up": 8, "productive": 12}
    assert seconds(sheet) == {"start-up": 8, "productive": 12}


# What is lost.


def test_what_comes_after_the_last_checkpoint_is_lost():
    talk = trainers(2)
    save(talk, 20)
    fail(talk, 30)
    save(talk, 60)
    fail(talk, 70)
    fail(talk, 75)  # nothing saved since
    finish(talk, 100, "trainer/0", "trainer/1")
    sheet = read(talk)
    assert seconds(sheet) == {"productive": 2 * (20 + 30 + 25), "lost work": 2 * (10 + 10 + 5)}
    assert sheet.unreported() == {"trainer": ["progress"]}


def test_what_comes_after_the_last_checkpoint_is_unsaved_if_the_operator_ends_the_job():
    talk = trainers(2)
    save(talk, 20)
    fail(talk, 30)
    save(talk, 60)
    until(talk, 70)
    talk.tell(ev.CancelRequested())
    sheet = read(talk)
    assert talk.outcome()[0] == "cancelled"
    assert seconds(sheet) == {"productive": 2 * (20 + 30), "lost work": 2 * 10, "unsaved at the end": 2 * 10}
    assert sheet.unkept("lost work") == sheet.unkept("unsaved at the end") == 10 * SECOND, "once for the world"


@pytest.mark.parametrize(
    ("saves", "unsaved", "spent"),
    [
        pytest.param(True, (), {"productive": 12 + 7, "detection": 1}, id="the checkpoint is saved"),
        pytest.param(True, (UNSAVED,), {"productive": 5 + 7, "lost work": 8}, id="the disk is full"),
        pytest.param(False, (), {"productive": 12 + 7, "detection": 1}, id="nothing is ever saved"),
    ],
)
def test_a_world_that_leaves_at_an_agreed_step_has_worked_until_then_and_saved_that(
    saves: bool, unsaved: tuple[UnsavedLine, ...], spent: dict[str, float]
):
    """All leave step 12; trainer/0 has left it at 12 s, and trainer/1 at 13 s. Then the world resumes elsewhere."""
    talk = trainers(2, nodes=3, cpu=1.0)
    for number in range(1, 11):
        step(talk, number, number)
        if saves and number == 5:
            save(talk, 5, 5)
    talk.tell(ev.DrainRequested("node0"))
    for name in ("trainer/0", "trainer/1"):
        talk.tell(ev.StepTold(r(name), 1, 11))
    step(talk, 11, 11)
    step(talk, 12, 12)
    talk.tell(ev.ReplicaLeftStep(r("trainer/0"), 1))
    until(talk, 13)
    talk.tell(ev.ReplicaLeftStep(r("trainer/1"), 1))
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2}
    first = 6 if unsaved else 13
    for number in range(7):
        step(talk, 14 + number, first + number)
    finish(talk, 20, "trainer/0", "trainer/1")
    sheet = read(talk, unsaved=unsaved)
    assert seconds(sheet) == {bucket: 2 * time for bucket, time in spent.items()}
    assert sheet.unreported() == {"trainer": [] if saves else ["checkpoints"]}


def test_segments_that_have_ended_tell_when_work_was_done_that_was_not_kept():
    talk = trainers(2)
    save(talk, 20)
    fail(talk, 30)
    save(talk, 60)
    fail(talk, 60)
    until(talk, 70)
    talk.tell(ev.CancelRequested())
    ended: list[ClosedSegment] = []
    read(talk, ended=ended)
    assert [(each.unkept, each.unkept_ns) for each in ended] == [
        ("lost work", (20 * SECOND, 30 * SECOND)),
        ("lost work", None),
        ("unsaved at the end", (60 * SECOND, 70 * SECOND)),
    ]


def test_what_a_simulation_tells_at_its_end_counts_instead_of_what_its_lines_show():
    talk = trainers(1, role("aside", primary=False, restart=restart()))
    until(talk, 30)
    sheet = read(talk)
    unkept = UnkeptWork("trainer", 1, 20 * SECOND, 5 * SECOND), UnkeptWork("trainer", 2, 40 * SECOND, SECOND, True)
    spent = {"trainer": {"productive": 34 * SECOND, "lost work": 6 * SECOND}}
    sheet.hear(AccountLine(40 * SECOND, spent, {"trainer": 5 * SECOND}, unkept))
    assert seconds(sheet) == {"productive": 34, "lost work": 6} and seconds(sheet, "aside") == {}
    assert sheet.spent()["aside"] == dict.fromkeys(BUCKETS, 0), "each bucket is there"
    assert sheet.lost() == {"trainer": 5 * SECOND, "aside": 0} and sheet.lasted() == 40 * SECOND
    assert (sheet.unkept("lost work"), sheet.unkept("unsaved at the end")) == (5 * SECOND, SECOND)
    assert sheet.unreported() == {"trainer": [], "aside": []}, "the simulator knows all"


def test_what_the_failure_that_ends_the_job_has_destroyed_is_lost():
    talk = trainers(restart=None)
    save(talk, 20)
    fail(talk, 30)
    assert talk.outcome()[0] == "failed"
    assert seconds(read(talk)) == {"productive": 20, "lost work": 10}


def test_a_checkpoint_holds_the_work_up_to_its_step_however_late_it_is_complete():
    talk = trainers()
    step(talk, 0, 0)
    for number in range(1, 31):
        step(talk, number, number)
    save(talk, 30, 20)
    fail(talk, 35)
    finish(talk, 40, "trainer/0")
    assert seconds(read(talk)) == {"productive": 20, "lost work": 15, "start-up": 5}  # it reported nothing any more


def test_without_checkpoints_it_is_what_is_done_again():
    talk = trainers()
    for number in range(51):
        step(talk, number, number)
    fail(talk, 51)
    for number in range(41, 60):
        step(talk, number + 15, number)
    finish(talk, 80, "trainer/0")
    assert seconds(read(talk)) == {"productive": 40 + 25, "lost work": 11, "start-up": 4}


def test_steps_after_the_last_report_were_done_at_its_pace():
    talk = trainers()
    for number in range(1, 11):
        step(talk, number, number)
    fail(talk, 14)
    step(talk, 20, 14)  # 13 were kept, though 10 is the last that was told
    finish(talk, 30, "trainer/0")
    assert seconds(read(talk)) == {"productive": 13 + 11, "lost work": 1, "start-up": 5}


def test_a_role_that_begins_anew_has_lost_the_work_of_all_generations():
    talk = trainers()
    for first, last, end in ((0, 10, 11), (8, 12, 21), (1, 5, 31)):
        for number in range(first, last + 1):
            step(talk, end - last + number - 1, number)
        fail(talk, end)
    finish(talk, 40, "trainer/0")
    assert seconds(read(talk))["lost work"] == 11 + 6


def test_a_checkpoint_that_could_not_be_read_makes_more_of_it_lost():
    talk = trainers()
    for number in range(1, 31):
        step(talk, number, number)
    save(talk, 30, 30)
    fail(talk, 35)
    step(talk, 45, 21)  # from an older one, of step 20
    step(talk, 46, 22)
    fail(talk, 47)
    finish(talk, 50, "trainer/0")
    assert seconds(read(talk)) == {"productive": 20, "lost work": 15 + 3, "start-up": 9 + 3}


def test_a_world_that_resumes_from_memory_has_not_lost_what_the_checkpoint_lacks():
    talk = trainers(2)
    talk.elastic("trainer/0", "trainer/1")
    for number in range(1, 31):
        step(talk, number, number)
    save(talk, 30, 30)
    for number in range(31, 40):
        step(talk, number, number)
    fail(talk, 40)
    assert talk.replica("trainer/1").attempt == 2
    step(talk, 42, 38)
    step(talk, 43, 39)
    finish(talk, 50, "trainer/0", "trainer/1")
    assert seconds(read(talk)) == {"productive": 2 * (37 + 9), "lost work": 2 * 3, "start-up": 2 * 1}


def test_a_suspended_replica_that_is_stopped_keeps_no_memory():
    talk = trainers(3, nodes=2, cpu=2.0, min_replicas=1)
    talk.elastic("trainer/0", "trainer/1", "trainer/2")
    step(talk, 10, 10)
    step(talk, 11, 11)
    save(talk, 11, 11)
    step(talk, 15, 15)
    until(talk, 20)
    talk.gone("node1")
    talk.gone("node0")
    talk.join("node0", "node1")
    until(talk, 30)
    step(talk, 31, 14)
    step(talk, 32, 15)
    until(talk, 40)
    assert seconds(read(talk))["lost work"] == pytest.approx(3 * 9)


def test_work_before_the_first_checkpoint_is_lost_where_no_progress_is_reported():
    talk = trainers()
    fail(talk, 10)
    save(talk, 30)
    finish(talk, 40, "trainer/0")
    assert seconds(read(talk)) == {"lost work": 10, "productive": 30}


def test_a_checkpoint_that_is_refused_keeps_nothing():
    talk = trainers()
    until(talk, 10)
    talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 7, "path", 3))
    fail(talk, 20)
    finish(talk, 30, "trainer/0")
    assert read(talk).unreported() == {"trainer": ["progress", "checkpoints"]}


def test_the_number_of_marks_and_closed_segments_is_limited():
    segment = WorkSegment(0)
    for number in range(10_000):
        segment.report(number, number)
        assert len(segment.marks) <= MARKS_MAX
    assert segment.marks[0] == (0, 0) and segment.marks[-1] == (9999, 9999)
    assert segment.when(7777) == 7777
    talk = trainers(restart=restart(times=100, backoff_ns=0))
    for number in range(40):
        for more in range(1, 4):
            step(talk, 10 * number + more, 5 * number + more)
        fail(talk, 10 * number + 5)
    sheet = read(talk)
    assert len(sheet._work["trainer"].closed) == 16


def test_between_two_reports_steps_are_in_proportion():
    segment = WorkSegment(0)
    assert segment.when(5) == 0 and segment.pace() is None and segment.begins_at(None) == 0
    segment.report(10, 100)
    assert segment.when(12) == 100 and segment.when(9) == 0
    segment.report(20, 300)
    assert [segment.when(number) for number in (10, 15, 20, 25)] == [100, 200, 300, 400]


def test_a_replica_that_waited_for_a_version_to_be_published_works_from_then_on():
    """The actor acknowledges version 1 at 5 s, before it is published at 8 s."""
    edge = VersionEdge("learner")
    actor = role("actor", primary=False, restart=restart(), versions=edge)
    talk = joined(role("learner", restart=restart()), actor)
    until(talk, 5)
    talk.tell(ev.ReplicaAcknowledged(r("actor/0"), 1, 1))
    until(talk, 8)
    talk.tell(ev.ReplicaPublished(r("learner/0"), 1, 1))
    until(talk, 10)
    talk.tell(ev.CancelRequested("enough"))
    spent = seconds(read(talk), "actor", 10)
    assert spent["unknown"] == pytest.approx(2), spent


def test_an_injected_fault_is_found_by_the_replica_though_the_journal_names_the_attempt():
    """A journal has the target `trainer/0/attempt_1/0`. Where it was not found, work lasted until the exit at 41."""
    talk = trainers()
    step(talk, 10, 1)
    step(talk, 20, 11)
    fail(talk, 41)
    named = [seconds(read(talk, (40, target))) for target in ("trainer/0", "trainer/0/attempt_1/0")]
    assert named[0] == named[1] and named[1]["detection"] == 1


@pytest.mark.parametrize(("incarnation", "is_alive"), [(2, True), (1001, False)])
def test_what_a_node_has_done_until_it_fenced_is_lost_once_it_joins_again(incarnation: int, is_alive: bool):
    """Seventeen steps were done twice, and the report said "lost work 0.0 s": the controller had not heard of them."""
    talk = trainers(2, gang=False, restart=restart("replica", 9), nodes=3, cpu=1.0)
    for number in range(1, 11):
        step(talk, number, number)
        step(talk, number, number, "trainer/1")
    for name in ("trainer/0", "trainer/1"):
        save(talk, 10, 10, name)
    options, (lost, other) = talk.graph.options, (talk.replica("trainer/1").node, "node2")
    assert lost != other
    until(talk, 10 + (options.lease_ns + options.lease_margin_ns) / SECOND)
    talk.tell(ev.NodeSilent(lost))
    step(talk, 20, 11, "trainer/1")  # on the other node, from the checkpoint
    step(talk, 21, 12, "trainer/1")
    assert read(talk).lost() == {"trainer": 0}
    until(talk, 30)
    talk.tell(ev.NodeJoined(lost, talk.graph.cluster.nodes[0], incarnation=incarnation))
    sheet = read(talk)
    assert sheet.lost() == {"trainer": options.lease_ns * is_alive}
    assert seconds(sheet).get("lost work", 0) == options.lease_ns / SECOND * is_alive
    assert seconds(sheet)["detection"] >= options.lease_margin_ns / SECOND
