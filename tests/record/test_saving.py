"""Timesheets of jobs whose workers report how long they save and restore."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import Activity
from flowdist.graph import SECOND
from tests.control.harness import Talk, r, restart, role
from tests.record.sheets import count, fail, finish, read, revive, save, seconds, stall, step, trainers, until


def spend(talk: Talk, at: float, sum_s: float, on: Activity = "saving", name: str = "trainer/0") -> None:
    """Report at the time `at` how long the attempt has saved or restored so far, in seconds."""
    until(talk, at)
    talk.report(ev.ReplicaSpent, name, on, round(sum_s * SECOND))


def test_saving_is_no_productive_time_and_restoring_no_start_up():
    talk = trainers(2)
    spend(talk, 10, 6, "restoring")
    step(talk, 10, 1)
    step(talk, 12, 2)
    spend(talk, 50, 20)
    spend(talk, 99, 25)
    finish(talk, 100, "trainer/0", "trainer/1")
    expected = {"start-up": 2 * 2, "restore": 2 * 6, "productive": 2 * 67, "checkpoint": 2 * 25}
    assert seconds(read(talk)) == expected


def test_the_member_that_spends_most_counts_for_its_world():
    talk = trainers(2)
    for at, sum_s, name in ((10, 3, "trainer/0"), (11, 5, "trainer/1"), (20, 4, "trainer/0"), (21, 4, "trainer/1")):
        spend(talk, at, sum_s, name=name)
    finish(talk, 100, "trainer/0", "trainer/1")
    assert seconds(read(talk)) == {"unknown": 2 * 95, "checkpoint": 2 * 5}


def test_a_report_that_comes_again_or_from_a_dead_attempt_changes_nothing():
    talk = trainers()
    spend(talk, 20, 5)
    spend(talk, 30, 5)
    fail(talk, 40)
    talk.tell(ev.ReplicaSpent(r("trainer/0"), 1, "saving", 30 * SECOND))
    spend(talk, 60, 2)
    finish(talk, 100, "trainer/0")
    assert seconds(read(talk)) == {"unknown": 93, "checkpoint": 5 + 2}


def test_a_world_spends_no_more_than_it_has_worked():
    talk = trainers()
    spend(talk, 10, 1000)
    spend(talk, 20, 1000, "restoring")
    finish(talk, 30, "trainer/0")
    assert seconds(read(talk)) == {"restore": 10, "checkpoint": 10, "unknown": 10}


def test_the_time_of_the_first_step_is_estimated_without_the_saving_after_it():
    talk = trainers()
    step(talk, 20, 1)
    spend(talk, 30, 6)
    step(talk, 30, 3)  # so a step takes 2 s, not 5
    finish(talk, 100, "trainer/0")
    assert seconds(read(talk)) == {"start-up": 18, "checkpoint": 6, "productive": 76}


def test_restoring_among_the_steps_is_no_productive_time():
    talk = trainers()
    for number in (1, 2):
        step(talk, 10 * number, number)
    spend(talk, 50, 4, "restoring")
    finish(talk, 100, "trainer/0")
    assert seconds(read(talk)) == {"productive": 96, "restore": 4}


def test_a_role_that_reports_nothing_else_saves_and_restores_all_the_same():
    talk = trainers()
    spend(talk, 5, 5, "restoring")
    spend(talk, 50, 10)
    assert seconds(read(talk)) == {"restore": 5, "checkpoint": 10, "unknown": 35}
    finish(talk, 100, "trainer/0")
    assert seconds(read(talk)) == {"restore": 5, "checkpoint": 10, "unknown": 85}


def test_the_first_step_turns_what_was_taken_for_work_into_start_up_without_its_saving():
    talk = trainers()
    spend(talk, 20, 5)
    fail(talk, 30)
    step(talk, 40, 1)
    step(talk, 41, 2)
    finish(talk, 50, "trainer/0")
    assert seconds(read(talk)) == {"start-up": 25 + 9, "checkpoint": 5, "productive": 11}


def test_lost_work_is_lost_with_its_saving():
    talk = trainers()
    for number in range(1, 31):
        step(talk, number, number)
    spend(talk, 30, 6)
    save(talk, 30, 30)
    fail(talk, 35)
    assert seconds(read(talk)) == {"productive": 24, "checkpoint": 6, "lost work": 5}
    step(talk, 45, 5)  # from an older one, of step 4: of the saving, no more counts than the work that was kept
    step(talk, 46, 6)
    finish(talk, 50, "trainer/0")
    assert seconds(read(talk)) == {"checkpoint": 4, "lost work": 31, "start-up": 9, "productive": 6}


def test_work_before_the_first_checkpoint_is_lost_and_its_saving_was_saving():
    talk = trainers()
    spend(talk, 20, 5)
    fail(talk, 30)
    save(talk, 60)
    finish(talk, 100, "trainer/0")
    assert seconds(read(talk)) == {"lost work": 25, "checkpoint": 5, "productive": 70}


def test_what_is_restored_before_all_members_run_is_restored():
    talk = trainers(2)
    talk.auto = False
    fail(talk, 10)
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    talk.tell(ev.StoreOpened("trainer", 2, 29500))
    talk.tell(ev.ReplicaStarted(r("trainer/0"), 2))
    spend(talk, 18, 7, "restoring")
    until(talk, 20)
    talk.tell(ev.ReplicaStarted(r("trainer/1"), 2))
    finish(talk, 30, "trainer/0", "trainer/1")
    assert seconds(read(talk)) == {"unknown": 2 * 20, "start-up": 2 * 3, "restore": 2 * 7}


def test_steps_that_are_counted_while_the_world_stops_are_no_work():
    talk = trainers(2)
    count(talk, 2, 1)
    talk.auto = False
    fail(talk, 10)
    count(talk, 12, 90, "trainer/1")
    until(talk, 20)
    assert seconds(read(talk), now=20)["productive"] == 2 * 8


def test_what_a_service_saves_is_a_part_of_its_service():
    talk = trainers(1, role("ps", kind="service", restart=restart(times=1)))
    spend(talk, 20, 5, name="ps/0")
    finish(talk, 30, "trainer/0")
    assert seconds(read(talk), "ps") == {"productive": 30}


names = st.sampled_from(["trainer/0", "trainer/1"])
times = st.one_of(st.integers(1, 90), st.integers(0, 3).map(lambda n: n * 10**6))
moves = st.one_of(
    st.tuples(st.just(spend), times, st.sampled_from(["saving", "restoring"]), names),
    st.tuples(st.sampled_from([step, count, save]), st.integers(1, 9), names),
    st.tuples(st.sampled_from([fail, stall, revive]), names),
)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 5, 20]), moves), max_size=25), st.booleans())
def test_every_second_is_in_one_bucket_whatever_is_reported(
    told: list[tuple[int, tuple[object, ...]]], is_elastic: bool
):
    talk, at = trainers(2), 0
    for wait, (move, *values) in told:
        at += wait
        if is_elastic:
            talk.elastic("trainer/0", "trainer/1")
        if move is not fail or talk.replica(values[-1]).is_live:  # type: ignore[arg-type]
            move(talk, at, *values)  # type: ignore[operator]
    read(talk)  # checks the sum, and that no bucket is negative, after each line
