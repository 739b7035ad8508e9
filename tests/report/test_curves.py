"""The curves of a timeline: steps per second and goodput, from reports alone, in a few hundred values."""

from __future__ import annotations

import pytest

from flowdist.control.controller import Controller
from flowdist.graph import SECOND
from flowdist.record.journal import Header, Record, record
from flowdist.record.timesheet import Timesheet
from flowdist.report.curves import BINS_MAX, SAMPLES_MAX, Bins, Curves
from flowdist.report.record.spending import time_of_run
from flowdist.report.record.timeline import timeline_of
from tests.control.harness import Talk
from tests.record.sheets import count, fail, finish, save, step, trainers, until
from tests.report.records import crash_loop, simulated


def curves_of(talk: Talk) -> Curves:
    controller = Controller(talk.graph, tuple(spec.name for spec in talk.graph.cluster.nodes))
    found = Curves(controller.state, Timesheet(controller.state))
    for number, (event, now) in enumerate(talk.record, 1):
        found.look(now)
        line = record(number, now, event, controller.handle(event, now))
        found.sheet.hear(line)
        found.hear(line)
    found.close(talk.now)
    return found


def rates(talk: Talk, role: str = "trainer") -> list[float]:
    """Return the steps per second in each whole second."""
    width_ns, found = curves_of(talk).steps_per_s(talk.now)
    each = SECOND // width_ns
    assert each * width_ns == SECOND
    return [round(sum(found[role][n * each : (n + 1) * each]) / each, 2) for n in range(talk.now // SECOND)]


def test_amounts_are_kept_however_long_the_time_gets() -> None:
    bins = Bins()
    bins.add(0, 10 * SECOND, 20)
    bins.add(30 * SECOND, 30 * SECOND, 5)
    assert sum(bins.rates(0, 40 * SECOND)[: 10 * SECOND // bins.width_ns]) * bins.width_ns / SECOND == pytest.approx(20)
    bins.add(0, 3000 * SECOND, 3)
    assert len(bins.amounts) <= BINS_MAX and sum(bins.amounts) == pytest.approx(28)


def test_steps_count_between_two_reports_and_none_while_nothing_runs() -> None:
    talk = trainers(1)
    for second in range(1, 11):
        step(talk, second, 2 * second)
    fail(talk, 10)
    until(talk, 15)
    step(talk, 15, 1)
    step(talk, 16, 3)
    finish(talk, 17, "trainer/0")
    found = rates(talk)
    assert found[1:10] == [2.0] * 9 and found[10:14] == [0.0] * 4 and found[15] == 2.0 and found[16] == 0.0


def test_steps_after_the_last_report_went_on_at_its_pace_for_one_report_at_most() -> None:
    talk = trainers(1)
    step(talk, 2, 4)
    step(talk, 4, 8)
    fail(talk, 9)
    assert rates(talk)[2:] == [2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0]


def test_the_steps_of_a_first_report_took_as_long_as_the_others() -> None:
    talk = trainers(1)
    step(talk, 6, 2)  # after a start-up of 4 s
    step(talk, 8, 4)
    assert rates(talk) == [0.0] * 4 + [1.0] * 4


def test_a_generation_that_resumes_does_not_count_what_others_have_done() -> None:
    talk = trainers(1)
    step(talk, 1, 1)
    step(talk, 10, 10)
    save(talk, 10, 10)
    fail(talk, 11)
    until(talk, 12)
    step(talk, 13, 11)
    step(talk, 15, 13)
    assert rates(talk)[12:] == [1.0, 1.0, 1.0]


def test_replicas_with_worlds_of_their_own_have_their_mean() -> None:
    talk = trainers(2, gang=False)
    for second in range(1, 11):
        step(talk, second, second, "trainer/0")
        if second <= 5:
            step(talk, second, second, "trainer/1")
        if second == 5:
            fail(talk, 5, "trainer/1")
    assert rates(talk)[1:5] == [1.0] * 4 and rates(talk)[6:10] == [0.5] * 4


def test_counted_steps_have_a_curve_until_the_script_reports_its_own() -> None:
    talk = trainers(1)
    for second in range(1, 6):
        count(talk, second, 3 * second)
    assert rates(talk)[1:5] == [3.0] * 4
    for second in range(6, 9):
        step(talk, second, 100 + second)
        count(talk, second, 3 * second)
    assert max(rates(talk)[5:]) <= 3.0 and rates(talk)[6:8] == [1.0] * 2, "its numbers may begin anywhere"


def test_the_goodput_ends_with_that_of_the_report_and_falls_with_lost_work() -> None:
    talk = trainers(1)
    for second in range(1, 11):
        step(talk, second, second)
    fail(talk, 10.5)
    step(talk, 12, 1)  # from the beginning
    step(talk, 20, 9)
    found = curves_of(talk)
    before = next(share for ns, share in found.goodput if ns >= 10 * SECOND)
    after = next(share for ns, share in found.goodput if ns >= 20 * SECOND)
    assert before > 0.9 and after < 0.5
    assert found.goodput[-1] == (talk.now, time_of_run(talk.graph, found.sheet)["goodput"])


def test_a_long_record_has_a_few_hundred_values() -> None:
    header, lines = crash_loop(2, 1000)
    timeline = timeline_of(header, lines)
    _, steps = timeline.curves.steps_per_s(timeline.end_ns)
    assert all(len(found) <= BINS_MAX for found in steps.values())
    times = [ns for ns, _ in timeline.curves.goodput]
    assert SAMPLES_MAX / 4 < len(times) <= SAMPLES_MAX + 2 and times == sorted(times) and times[-1] == timeline.end_ns


def test_a_simulation_has_a_curve_for_each_task_that_steps() -> None:
    result = simulated("gang.py", "node2@3m/2m")
    header, *lines = result.lines
    assert isinstance(header, Header) and any(isinstance(line, Record) for line in lines)
    timeline = timeline_of(header, lines)
    width_ns, steps = timeline.curves.steps_per_s(timeline.end_ns)
    assert list(steps) == ["trainer"]
    done = sum(steps["trainer"]) * width_ns / SECOND
    assert done == pytest.approx(600 + timeline.lost_ns / SECOND, rel=0.05), "what was lost was done twice"
