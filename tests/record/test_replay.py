"""Replays of records, of records that were edited, and of unknown formats."""

from __future__ import annotations

import re

import msgspec
import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Decided, FinishJob, StartReplica, StopReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import SECOND, NodeSpec
from flowdist.record.journal import FORMAT, FaultLine, Header, Record
from flowdist.record.reader import BadLine
from flowdist.record.reader import read_whole_lines as read
from flowdist.record.replay import Difference, Replay, ReplayError
from tests.control.harness import graph, joined, restart, role


def recorded() -> tuple[Header, list[Record]]:
    """A gang of two, of which one fails after five seconds."""
    talk = joined(role("trainer", min_replicas=2, max_replicas=2, restart=restart()))
    talk.wait(5)
    talk.fail("trainer/1")
    header = Header(talk.graph, ("node0",))
    replay = Replay(header)
    return header, [replay.decide(event, at) for event, at in talk.record]


def changed(lines: list[Record], kind: type, **fields: object) -> tuple[list[Record], int]:
    """The record with another effect at the first event that has one of that kind, and the number of that event."""
    n = next(line.n for line in lines if any(isinstance(effect, kind) for effect in line.effects))
    effects = [msgspec.structs.replace(e, **fields) if isinstance(e, kind) else e for e in lines[n - 1].effects]
    return [*lines[: n - 1], msgspec.structs.replace(lines[n - 1], effects=tuple(effects)), *lines[n:]], n


def test_a_replay_of_a_record_has_its_job_its_time_its_decisions_and_its_position():
    header, lines = recorded()
    whole = Replay(header, strict=True).follow(lines)
    assert whole.difference is None and whole.n_different is None
    assert (whole.n, whole.t_ns, whole.last) == (len(lines), lines[-1].t_ns, lines[-1])
    assert len(whole.job.incidents) == 1 and "trainer/1 failed" in "".join(said.text for said in whole.decisions.said)
    assert sum(whole.sheet.spent()["trainer"].values()) == 2 * whole.job.now
    empty = Replay(header)
    assert (empty.n, empty.t_ns, empty.last) == (0, 0, None)


def test_a_new_decision_is_the_line_that_a_replay_of_it_expects():
    header, lines = recorded()
    replay = Replay(header).follow(lines)
    line = replay.decide(ev.CancelRequested("enough"), lines[-1].t_ns + SECOND)
    assert line.n == len(lines) + 1 and replay.job.ending == "cancelled" and replay.last is line
    assert Replay(header, strict=True).follow([*lines, line]).job == replay.job


def test_an_order_that_the_controller_would_not_give_is_named_by_event_and_field():
    header, lines = recorded()
    edited, n = changed(lines, StopReplica, grace_ns=7)
    replay = Replay(header).follow(edited)
    assert replay.n_different == n and replay.difference is not None and not replay.difference.is_wording
    assert f"event {n} (ReplicaExited) does not replay: the record says StopReplica trainer/0 with grace_ns=7, " in (
        replay.difference.text
    )
    with pytest.raises(ReplayError, match=f"event {n} .* decides StopReplica trainer/0 with grace_ns=") as caught:
        Replay(header, strict=True).follow(edited)
    assert "the version of flowdist that wrote the record" in caught.value.help
    missing = [*edited[: n - 1], msgspec.structs.replace(edited[n - 1], effects=())]
    with pytest.raises(ReplayError, match="the record says nothing more, this version of flowdist decides "):
        Replay(header, strict=True).follow(missing)


def test_other_words_for_the_same_decision_do_not_stop_a_strict_replay():
    header, lines = recorded()
    edited, n = changed(lines, Decided, text="it was so")
    replay = Replay(header, strict=True).follow(edited)
    assert replay.n_different == n and replay.difference is not None and replay.difference.is_wording
    assert "the record says 'it was so', this version of flowdist decides " in replay.difference.text
    assert Replay(header).follow([header, *lines]).difference is None, "the header came as a line"


def test_the_reason_of_an_end_is_a_matter_of_words():
    header, lines = recorded()
    replay = Replay(header).follow(lines)
    line = replay.decide(ev.CancelRequested("enough", now=True), lines[-1].t_ns)
    for stop in [effect for effect in line.effects if isinstance(effect, StopReplica)]:
        line = replay.decide(ev.ReplicaStopped(stop.replica, stop.attempt), lines[-1].t_ns)
    assert isinstance(line.effects[-1], FinishJob)
    ending = msgspec.structs.replace(line.effects[-1], reason="enough is enough")
    edited = msgspec.structs.replace(line, effects=(*line.effects[:-1], ending))
    assert Difference(edited, line.effects).is_wording
    assert "FinishJob with reason=enough is enough, " in Difference(edited, line.effects).text


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (ev.ReplicaStopped(ReplicaId("nosuch", 7), 1), "the job has no replica 'nosuch/7'"),
        (ev.ReplicaProgressed(ReplicaId("trainer", 2), 1, 5), "the job has no replica 'trainer/2'"),
        (ev.StoreOpened("nosuch", 1, 29500), "the job has no world 'nosuch'"),
        (ev.StoreLost("trainer/0", 1), "the job has no world 'trainer/0'"),
        (ev.NodeSilent("node7"), "no node 'node7' has joined"),
        (ev.GpuFailed("node7", 0, "hot"), "no node 'node7' has joined"),
        (
            ev.NodeJoined("n", NodeSpec("n"), inventory=(ev.InventoryItem(ReplicaId("x", 0), 1, "running"),)),
            "the job has no replica 'x/0'",
        ),
    ],
)
def test_an_event_that_names_what_the_job_does_not_have_is_a_bad_line(event: ev.Event, words: str):
    header, lines = recorded()
    wrong = Record(len(lines) + 1, lines[-1].t_ns, event)
    fault = FaultLine(1, "trainer/1@5s", "trainer/1")  # counts as a line, not as an event
    with pytest.raises(BadLine, match=re.escape(words)) as caught:
        Replay(header, source="x/journal.jsonl").follow([fault, *lines, wrong])
    assert caught.value.number == len(lines) + 3 and caught.value.events == len(lines)
    assert caught.value.message.startswith(f"x/journal.jsonl:{len(lines) + 3}: event {len(lines) + 1} (")


@pytest.mark.parametrize(
    "event", [ev.NodeGone("x"), ev.NodeLeft("x"), ev.DrainRequested("x"), ev.ScaleRequested("x", 1)]
)
def test_an_order_or_a_death_may_name_what_the_job_does_not_have(event: ev.Event):
    header, lines = recorded()
    replay = Replay(header).follow(lines)
    line = replay.decide(event, lines[-1].t_ns)
    assert Replay(header, strict=True).follow([*lines, line]).job == replay.job


def test_an_event_that_breaks_the_controller_is_a_bad_line():
    """Only a reader of lines could let such a line through; the user still has to learn which line it is."""
    header, lines = recorded()
    back = msgspec.structs.replace(lines[-1], n=len(lines) + 1, t_ns=5)
    with pytest.raises(BadLine, match=f":{len(lines) + 2}: .* cannot be replayed: ValueError: time runs backwards"):
        Replay(header).follow([*lines, back])


def test_after_a_difference_the_time_is_that_of_the_decisions_of_today():
    """With the effects of the record, the timesheet would start replicas in a state that has never started them."""
    header, lines = recorded()
    edited, n = changed(lines, StartReplica, node="node9")
    assert Replay(header).follow(edited).sheet.spent() == Replay(header).follow(lines).sheet.spent() and n


@pytest.mark.parametrize(
    "line",
    [
        b'"header"',
        b'["header"]',
        b'{"event":"header"}',
        b'{"event":{"type":"NodeQuiet","inventory":5}}',
        b'{"type":"header","format":"x"}',
    ],
)
def test_a_line_that_is_no_record_is_an_error_whatever_words_are_in_it(line: bytes):
    with pytest.raises(BadLine, match="the file is no journal and no trace: "):
        read(line + b"\n")


@pytest.mark.parametrize("number", [0, 6])
def test_a_record_of_an_unknown_format_is_refused_before_its_other_fields_are_read(number: int):
    words = f"journal.jsonl:1: its format is {number}, and this version of flowdist reads format 1"
    with pytest.raises(BadLine, match=words):
        read(b'{"type":"header","graph":"of another time","format":%d}\n' % number)


def test_a_record_without_a_format_is_of_no_known_one():
    with pytest.raises(BadLine, match="its format is 0, and this version of flowdist reads format 1"):
        read(b'{"type":"header","graph":"of another time"}\n')


def test_the_first_release_writes_format_1():
    assert FORMAT == Header(graph(role("trainer")), ()).format == 1
