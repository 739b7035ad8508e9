"""A record in a few lines: the most important moments, in their order."""

from __future__ import annotations

import pytest

from flowdist.control.protocol.events import ReplicaStepped
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import SECOND
from flowdist.record.journal import record
from flowdist.report.record.brief import brief_timeline
from tests.report.records import simulated


def test_faults_failures_and_the_end_are_kept_and_the_rest_fills_up() -> None:
    lines = simulated("gang.py", "trainer/0@3m:exit=3", "trainer/1@4m:exit=4", max_restarts=1).lines
    assert brief_timeline(lines, 5) == [
        "   2ms  trainer/0, trainer/1, trainer/2, trainer/3 start",
        "    3m  fault exit=3 hits trainer/0",
        "    3m  incident 1: trainer/0 failed on node0: exit code 3; restarting trainer (restart 1 of 1)",
        "    4m  incident 2: trainer/1 failed on node1: exit code 4; stopping trainer (to be judged when it is known "
        "whether node0 or node2 or node3 is lost)",
        "4m0.1s  the job fails: trainer/1 failed on node1: exit code 4; role trainer has used up its budget of "
        "1 restart",
    ]


def test_the_first_counted_step_of_an_attempt_is_a_moment() -> None:
    steps = [ReplicaStepped(ReplicaId("trainer", 0), 1, count) for count in (1, 40)]
    lines = [record(n, n * SECOND, event, []) for n, event in enumerate(steps, 1)]
    assert brief_timeline(lines, 9) == ["1s  trainer/0 has taken 1 optimizer step"]


def test_three_lines_are_enough() -> None:
    lines = simulated("gang.py", "trainer/0@3m:exit=3", max_restarts=0).lines
    assert [line.split()[0] for line in brief_timeline(lines, 3)] == ["2ms", "3m", "3m"]


def test_a_record_of_nothing_has_no_lines() -> None:
    assert brief_timeline([], 6) == []


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("trainer/1@30s:hang", "fault hang hits trainer/1"),
        ("node1@30s:delay=2s/500ms", "fault delay=2s hits node1, for 500ms"),
        ("node1@30s:preempt=90s/2m", "node1 is taken away in 1m30s"),
    ],
)
def test_a_fault_is_told_with_its_argument_and_duration(fault: str, line: str) -> None:
    assert any(text.endswith(line) for text in brief_timeline(simulated("gang.py", fault).lines, 9))


def test_steps_and_checkpoints_come_last() -> None:
    shown = brief_timeline(simulated("gang.py").lines, 99)
    assert any("trainer/0 reports step " in text for text in shown)
    assert any("trainer/0 has saved trainer/step-" in text for text in shown)
    assert not any("saved" in text for text in brief_timeline(simulated("gang.py").lines, 1))
