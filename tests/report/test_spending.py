"""Time accounts in a line, as values, and what is unknown in words."""

from __future__ import annotations

import pytest

from flowdist.control.controller import Controller
from flowdist.graph import SECOND
from flowdist.record.accounts import BUCKETS, Bucket, Spent
from flowdist.record.journal import Line, Record
from flowdist.record.timesheet import Timesheet
from flowdist.report.record.spending import goodput_line, not_reported_lines, time_of, time_of_run
from flowdist.report.record.summary import summary_of, summary_text
from tests.control.harness import graph, restart, role
from tests.report.records import crash_loop

JOB = graph(role("ps", kind="service", restart=restart("replica")), role("trainer", max_replicas=2, restart=restart()))


def spent(**seconds: dict[Bucket, int]) -> Spent:
    made: Spent = {name: dict.fromkeys(BUCKETS, 0) for name in ("ps", "trainer")}
    for name, buckets in seconds.items():
        made[name] |= {bucket: value * SECOND for bucket, value in buckets.items()}
    return made


def test_goodput_is_a_share_of_the_time_of_tasks_up_to_their_end() -> None:
    values = time_of(JOB, spent(ps={"productive": 100}, trainer={"productive": 90, "lost work": 10, "done": 50}))
    assert values["goodput"] == 0.9 and values["time_ns"]["ps"] == {"productive": 100 * SECOND}
    assert values["time_s"]["trainer"] == {"productive": 90, "lost work": 10, "done": 50}
    assert goodput_line(values) == "goodput 90.0 %; lost work 10.0 %"


def test_a_perfect_run_has_nothing_more_to_say_and_one_without_time_nothing_at_all() -> None:
    assert goodput_line(time_of(JOB, spent(trainer={"productive": 3}))) == "goodput 100.0 %"
    none = time_of(JOB, spent(ps={"productive": 3}, trainer={"done": 3}))
    assert none["goodput"] is None and goodput_line(none) == ""


@pytest.mark.parametrize(
    ("unsaid", "line", "words"),
    [
        (["progress"], " (trainer reported no progress)", "no progress"),
        (["step numbers", "checkpoints"], "", "no step numbers: its optimizer steps were counted; work that was done"),
        (["step numbers"], "", "no step numbers: its optimizer steps were counted; work that was done again counts as"),
        (["checkpoints"], "", "no checkpoints: only steps that were done again count as lost work"),
    ],
)
def test_missing_reports_are_named(unsaid: list[str], line: str, words: str) -> None:
    values = {**time_of(JOB, spent(trainer={"productive": 3})), "not_reported": {"trainer": unsaid}}
    assert goodput_line(values) == "goodput 100.0 %" + line
    (told,) = not_reported_lines(values)
    assert told.startswith(f"trainer reported {words}")


def test_the_time_of_a_task_that_reports_nothing_is_unknown_and_no_part_of_goodput() -> None:
    unsaid = {"not_reported": {"trainer": ["progress", "checkpoints"]}}
    values = {**time_of(JOB, spent(trainer={"unknown": 97, "start-up": 3})), **unsaid}
    assert values["goodput"] is None
    assert goodput_line(values) == "goodput unknown: trainer reported neither progress nor checkpoints"
    (told,) = not_reported_lines(values)
    assert told.endswith("what it did while all of it ran is unknown, and no part of goodput")
    more = graph(role("trainer", restart=restart()), role("aside", primary=False, restart=restart()))
    times: Spent = {"trainer": {"productive": 9 * SECOND, "stalled": SECOND}, "aside": {"unknown": 10 * SECOND}}
    full: Spent = {name: {**dict.fromkeys(BUCKETS, 0), **buckets} for name, buckets in times.items()}
    both = {**time_of(more, full), "not_reported": {"aside": ["progress", "checkpoints"]}}
    assert goodput_line(both) == "goodput 90.0 %; stalled 10.0 % (that of aside is unknown)"


def test_a_job_that_failed_without_a_report_of_progress_has_no_goodput() -> None:
    values = {**time_of(JOB, spent(trainer={"productive": 3})), "not_reported": {"trainer": ["progress"]}}
    failed = {**values, "outcome": "failed"}
    assert goodput_line(failed) == "goodput unknown: trainer reported no progress before the job failed"
    assert goodput_line({**values, "outcome": "cancelled"}).startswith("goodput 100.0 %")
    assert goodput_line({**failed, "not_reported": {}}).startswith("goodput 100.0 %")


def test_the_summary_of_a_run_has_a_line_and_that_of_a_report_the_table() -> None:
    header, lines = crash_loop(2, 3)
    controller = Controller(header.graph, header.known_nodes)
    sheet = Timesheet(controller.state)
    for line in lines:
        assert isinstance(line, Record)
        controller.handle(line.event, line.t_ns)
        sheet.hear(line)
    faults: list[Line] = []
    summary = {**summary_of(controller.state, faults), **time_of_run(header.graph, sheet)}
    # each generation works for 70 s, and saves after 60 of them; what it did in the last 10 s is lost
    assert summary["time_ns"] == {"trainer": {"productive": 3 * 2 * 60 * SECOND, "lost work": 3 * 2 * 10 * SECOND}}
    assert summary["lost_work_s"] == {"trainer": 3 * 10}, "of the world, and not of its two replicas"
    assert summary["not_reported"] == {"trainer": ["progress"]}
    brief, full = summary_text(summary, brief=True), summary_text(summary)
    assert "goodput 85.7 %; lost work 14.3 % (trainer reported no progress)" in brief
    assert "Where the time went" not in brief
    assert full.count("saving without worker.saving()") == 1
    saved = {"trainer": {**summary["time_s"]["trainer"], "checkpoint": 1.0}}
    assert "saving without worker.saving()" not in summary_text({**summary, "time_s": saved})
    assert "  trainer  85.7 %      14.3 %\ntrainer reported no progress: it counts as productive" in full
