"""The difference of two records: none, an event, a time, a decision, a fault, an end, a header."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.control.protocol.effects import Decided
from flowdist.control.protocol.events import ControllerStarted, TimePassed
from flowdist.record.journal import FaultLine, Header, Line, Record, UnsavedLine
from flowdist.record.reader import WholeRecord
from flowdist.report.record.divergence import Divergence, divergence, divergence_of, divergence_text
from tests.report.records import simulated

LINES: list[Line] = simulated("gang.py", "node2@3m/2m").lines
FAULT_AT = next(i for i, line in enumerate(LINES[1:]) if isinstance(line, FaultLine))


def side(name: str, lines: list[Line]) -> WholeRecord:
    header = lines[0]
    assert isinstance(header, Header)
    return WholeRecord(name, header, lines[1:])


def changed(at: int, **fields: object) -> list[Line]:
    lines = list(LINES)
    lines[at + 1] = msgspec.structs.replace(lines[at + 1], **fields)  # type: ignore[type-var]
    return lines


def compare(other: list[Line], *, times: bool = True) -> Divergence:
    return divergence(side("a", LINES), side("b", other), times=times)


def test_a_record_and_itself_are_the_same() -> None:
    found = compare(list(LINES))
    assert found.is_none and divergence_of(found, 3)["equal"] is True
    assert divergence_text(found, 3) == f"the same: {len(LINES) - 1} lines\n"


@pytest.mark.parametrize(
    ("other", "at", "what"),
    [
        (changed(4, event=TimePassed()), 4, "event"),
        (changed(4, t_ns=1_700_001), 4, "time"),
        (changed(4, effects=(Decided("world_forms", "", "nothing starts"),), reason="nothing starts"), 4, "decision"),
        (changed(FAULT_AT, spec="node1@3m"), FAULT_AT, "fault"),
        (changed(FAULT_AT, t_ns=1), FAULT_AT, "time"),
        ([line for line in LINES if not isinstance(line, FaultLine)], FAULT_AT, "fault"),
        (LINES[:-2], len(LINES) - 3, "end"),
    ],
)
def test_the_first_line_that_differs_is_found_and_how(other: list[Line], at: int, what: str) -> None:
    found = compare(other)
    assert (found.at, found.what, found.is_none) == (at, what, False)


def test_when_a_run_began_and_was_resumed_by_the_wall_clock_is_no_difference() -> None:
    lines = changed(4, event=ControllerStarted(2, at="2026-11-25T22:46:58.120+01:00"))
    lines[0] = msgspec.structs.replace(lines[0], began_at="2026-11-25T22:40:00.000+01:00")  # type: ignore[type-var]
    found = divergence(side("a", lines), side("b", changed(4, event=ControllerStarted(2))), times=True)
    assert found.is_none and not found.headers


def test_a_checkpoint_that_is_not_saved_in_one_of_them_is_a_difference() -> None:
    unsaved = UnsavedLine(1_000, "trainer", 60, "the disk of trainer is full")
    lines = [*LINES[:5], unsaved, *LINES[5:]]
    later = [*LINES[:5], msgspec.structs.replace(unsaved, t_ns=2_000), *LINES[5:]]
    other = [*LINES[:5], msgspec.structs.replace(unsaved, step=120), *LINES[5:]]
    assert compare(lines).what == "unsaved" and compare(lines).at == 4
    pairs = ((lines, ""), (later, "time"), (other, "unsaved"))
    assert [divergence(side("a", lines), side("b", one)).what for one, _ in pairs] == [what for _, what in pairs]
    assert divergence(side("a", lines), side("b", later), times=False).is_none
    told = divergence_of(compare(lines), 0)
    assert told["b"]["reason"] == "the checkpoint of trainer at step 60 is not saved: the disk of trainer is full"
    assert "!! the checkpoint of trainer at step 60 is not saved" in divergence_text(compare(lines), 1)


def test_without_times_only_what_happened_counts() -> None:
    assert compare(changed(4, t_ns=1_700_001), times=False).is_none
    assert compare(changed(FAULT_AT, t_ns=1), times=False).is_none
    assert compare(changed(4, event=TimePassed()), times=False).what == "event"


def test_both_reasons_are_shown_with_the_lines_before() -> None:
    at = next(i for i, line in enumerate(LINES[1:]) if isinstance(line, Record) and line.n == 20)
    other = changed(at, effects=(Decided("world_forms", "", "it is given up"),), reason="it is given up")
    text = divergence_text(compare(other), 2)
    assert "the same happens, and the decision differs" in text
    assert "reason: it is given up" in text and "restarting trainer (a change of membership, not counted)" in text
    assert "!! node2@3m/2m hits node2" in text and "#21" in text and "#22" in text and "#23" not in text
    assert "the state before that: flowdist replay a --step 19" in text
    told = divergence_of(compare(other), 2)
    assert [len(told["before"]), len(told["a"]["after"])] == [2, 2] and told["b"]["reason"] == "it is given up"
    assert told["a"]["digest"] != told["b"]["digest"] and told["same_lines"] == at


def test_where_nothing_was_said_the_last_reason_before_stands() -> None:
    at = next(i for i, line in enumerate(LINES[1:]) if isinstance(line, Record) and line.n == 21)
    told = divergence_of(compare(changed(at, event=TimePassed())), 0)
    assert told["a"]["reason"].startswith("nothing here; the last one, at event 20: node2 lost")
    first = [LINES[0], msgspec.structs.replace(LINES[1], reason="")]
    assert divergence_of(divergence(side("a", first), side("b", LINES)), 0)["a"]["reason"] == "no decision so far"


def test_differences_of_headers_are_listed_and_do_not_count() -> None:
    header = LINES[0]
    assert isinstance(header, Header)
    trainer = msgspec.structs.replace(header.graph.roles[0], procs=2)
    graph = msgspec.structs.replace(header.graph, roles=(trainer,))
    found = compare([msgspec.structs.replace(header, seed=7, graph=graph), *LINES[1:]])
    assert found.is_none and found.headers == ["graph.roles.trainer.procs: 1 / 2", "seed: 0 / 7"]
    assert "the headers differ (a / b):" in divergence_text(found, 3)


def test_one_that_ends_earlier_says_so() -> None:
    text = divergence_text(compare(LINES[:10]), 1)
    assert "one of them ends here" in text and "B (no more lines)" in text
