"""The lines of a record, and the milestones of a job, which faults wait for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from flowdist.control.controller import Controller
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Decided
from flowdist.faults.milestones import Milestone, has_come
from flowdist.graph import SECOND, RoleGraph
from flowdist.record.journal import (
    FaultLine,
    Header,
    Record,
    UnsavedLine,
    decode_line,
    digest,
    encode_line,
    encode_lines,
    record,
)
from flowdist.record.reader import read_whole_lines
from tests.control.harness import TCP, Talk, graph, r, restart, role


def a_job() -> RoleGraph:
    return graph(role("trainer", min_replicas=2, max_replicas=2, restart=restart(), ready=TCP, ports=("rpc",)))


def lines_of(talk: Talk) -> Iterator[bytes]:
    """Yield the lines of the record of a conversation."""
    controller = Controller(talk.graph, ("node0",))
    yield encode_line(Header(talk.graph, ("node0",), seed=7))
    for n, (event, at) in enumerate(talk.record, 1):
        yield encode_line(record(n, at, event, controller.handle(event, at)))


def recorded() -> tuple[Talk, bytes]:
    talk = Talk(a_job())
    talk.join("node0")
    talk.wait(5)
    talk.fail("trainer/1")
    return talk, b"".join(lines_of(talk))


def test_a_controller_that_reads_the_record_is_where_the_one_was_that_wrote_it():
    talk, data = recorded()
    lines, size, _ = read_whole_lines(data)
    assert size == len(data) and isinstance(lines[0], Header) and lines[0].seed == 7
    fresh = Controller(lines[0].graph, lines[0].known_nodes)
    for line in lines[1:]:
        assert isinstance(line, Record)
        assert tuple(fresh.handle(line.event, line.t_ns)) == line.effects
    assert fresh.state == talk.job


def test_many_lines_at_once_are_the_same_bytes():
    _, data = recorded()
    assert encode_lines(read_whole_lines(data)[0]) == data


def test_the_reason_of_a_line_is_what_the_controller_said():
    _, data = recorded()
    reasons = [line.reason for line in read_whole_lines(data)[0] if isinstance(line, Record)]
    assert [reason for reason in reasons if "trainer/1 failed" in reason] == [
        "incident 1: trainer/1 failed on node0: exit code 1; restarting trainer (restart 1 of 3)"
    ]
    event = ev.TimePassed()
    assert (
        record(1, 0, event, [Decided("world_forms", "", "a"), Decided("world_forms", "", "b", "warning")]).reason
        == "a; b"
    )


def test_what_a_crash_has_left_of_the_last_line_does_not_count():
    _, data = recorded()
    whole, size, _ = read_whole_lines(data)
    for cut in (data[:-1], data + b'{"type":"event","n":', data + b"\0" * 512):
        lines, found, _ = read_whole_lines(cut)
        assert lines == (whole if len(cut) > size else whole[:-1])
        assert found == cut.rfind(b"\n") + 1
    assert read_whole_lines(b"")[:2] == ([], 0) and read_whole_lines(b'{"type"')[:2] == ([], 0)


def test_the_digest_is_of_all_lines_but_the_header():
    talk, _ = recorded()
    lines = list(lines_of(talk))
    other = encode_line(Header(talk.graph, ("node0",), seed=8))
    assert digest(lines) == digest([other, *lines[1:]]) == hashlib.sha256(b"".join(lines[1:])).hexdigest()
    assert digest(lines[:-1]) != digest(lines)


def test_a_line_that_is_no_event_comes_back_as_it_was():
    for line in (
        FaultLine(3 * SECOND, "node2@3s:lost", "node2"),
        UnsavedLine(3 * SECOND, "trainer", 60, "the disk of trainer is full"),
    ):
        assert decode_line(encode_line(line)) == line


def test_an_unsaved_checkpoint_has_a_text():
    text = "the checkpoint of trainer at step 60 is not saved: the disk of ps is full"
    assert UnsavedLine(3 * SECOND, "trainer", 60, "the disk of ps is full").text == text


def has(talk: Talk, event: ev.Event, what: Milestone, number: int = 0, name: str = "trainer") -> bool:
    talk.tell(event)
    return has_come(talk.job, event, what, name, number)


def test_start_and_ready_come_with_any_replica_of_the_role():
    talk = Talk(a_job(), auto=False)
    talk.join("node0")
    talk.tell(ev.StoreOpened("trainer", 1, 29400))
    started, ready = ev.ReplicaStarted(r("trainer/1"), 1), ev.ReplicaReady(r("trainer/1"), 1)
    assert has(talk, started, "start") and not has_come(talk.job, started, "ready", "trainer", 0)
    assert has(talk, ready, "ready") and not has_come(talk.job, ready, "start", "trainer", 0)
    assert not has_come(talk.job, started, "start", "reader", 0)
    assert has_come(talk.job, started, "start", "trainer", 1) and not has_come(talk.job, started, "start", "trainer", 2)


def test_a_generation_has_come_when_all_of_it_runs():
    talk = Talk(a_job(), auto=False)
    talk.join("node0")
    talk.tell(ev.StoreOpened("trainer", 1, 29400))
    assert not has(talk, ev.ReplicaStarted(r("trainer/0"), 1), "generation", 1)
    second = ev.ReplicaStarted(r("trainer/1"), 1)
    assert has(talk, second, "generation", 1) and not has_come(talk.job, second, "generation", "trainer", 2)


def test_a_step_has_come_when_a_replica_reports_it_or_a_later_one():
    talk = Talk(a_job())
    talk.join("node0")
    assert not has(talk, ev.ReplicaProgressed(r("trainer/0"), 1, 499), "step", 500)
    assert has(talk, ev.ReplicaProgressed(r("trainer/1"), 1, 510), "step", 500)


def test_a_step_has_come_when_as_many_were_counted_in_one_attempt():
    talk = Talk(a_job())
    talk.join("node0")
    assert not has(talk, ev.ReplicaStepped(r("trainer/0"), 1, 499), "step", 500)
    assert has(talk, ev.ReplicaStepped(r("trainer/0"), 1, 510), "step", 500)


def test_a_checkpoint_counts_when_it_was_accepted_and_once():
    talk = Talk(a_job())
    talk.join("node0")
    first = ev.CheckpointOffered(r("trainer/0"), 1, 1, "a", 10)
    assert has(talk, first, "checkpoint", 1)
    assert not has(talk, first, "checkpoint", 2), "it was offered again, as the answer was lost"
    assert not has(talk, ev.CheckpointOffered(r("trainer/0"), 1, 0, "b", 20), "checkpoint", 2)
    assert has(talk, ev.CheckpointOffered(r("trainer/0"), 1, 1, "b", 20), "checkpoint", 2)


def test_nothing_has_come_with_an_event_of_something_else():
    talk = Talk(a_job())
    talk.join("node0")
    assert not has(talk, ev.TimePassed(), "start")
    assert not has(talk, ev.ReplicaStarted(r("trainer/9"), 1), "start")
