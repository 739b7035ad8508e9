"""Checks of a record while it is read: whatever happens to a journal shows at the first line that is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND
from flowdist.record.journal import FaultLine, Header, encode_line, record
from flowdist.record.reader import BadLine, CheckChain, RecordReader, read_whole_lines
from flowdist.record.replay import Replay
from tests.choosing import examples
from tests.control.harness import graph, joined, restart, role

Lines = list[bytes]


def journal(seconds: int = 5) -> Lines:
    """Return the lines of a journal, with their checks: a gang of two, of which one fails after some seconds."""
    talk = joined(role("trainer", min_replicas=2, max_replicas=2, restart=restart()))
    talk.wait(seconds)
    talk.fail("trainer/1")
    header = Header(talk.graph, ("node0",), run_id=f"after {seconds} s")
    replay, chain = Replay(header), CheckChain()
    fault = FaultLine(seconds * SECOND, "trainer/1@5s", "trainer/1")
    events = [replay.decide(event, at) for event, at in talk.record]
    lines = [header, *(line for line in events if line.t_ns < fault.t_ns), fault]
    lines += [line for line in events if line.t_ns >= fault.t_ns]
    return [chain.add_check(encode_line(line)) for line in lines]


GOOD, OTHER = journal(), journal(6)


def bad_line(lines: Lines) -> BadLine | None:
    """Return the error about the first line that cannot be used, if there is one."""
    try:
        read_whole_lines(b"".join(lines))
    except BadLine as bad:
        return bad
    return None


def test_a_journal_is_read_as_it_was_written_and_can_be_continued():
    lines, size, reader = read_whole_lines(b"".join(GOOD))
    assert size == len(b"".join(GOOD)) and isinstance(lines[0], Header)
    assert (reader.lines, reader.events) == (len(GOOD), len(GOOD) - 2)
    chain = CheckChain()
    assert [chain.add_check(encode_line(line)) for line in lines] == GOOD
    assert GOOD[-1].endswith(f'"check":"{chain.check}"}}\n'.encode())
    half = read_whole_lines(b"".join(GOOD[:4]))[2]
    assert [half.chain.add_check(encode_line(line)) for line in lines[4:]] == GOOD[4:]


def test_any_damaged_byte_shows_at_its_line():
    """All bits of some bytes; a damaged newline joins two lines."""
    draw = random.Random(1)
    for _ in range(examples(400, 4000)):
        number = draw.randrange(1, len(GOOD))
        line = bytearray(GOOD[number])
        line[draw.randrange(len(line))] ^= draw.randrange(1, 256)
        bad = bad_line([*GOOD[:number], bytes(line), *GOOD[number + 1 :]])
        assert bad is None if line[-1:] != b"\n" and number == len(GOOD) - 1 else bad and bad.number == number + 1


def test_a_damaged_header_shows_at_once_or_at_the_line_after_it():
    draw = random.Random(2)
    for _ in range(examples(200, 2000)):
        line = bytearray(GOOD[0])
        line[draw.randrange(len(line))] ^= draw.randrange(1, 256)
        bad = bad_line([bytes(line), *GOOD[1:]])
        assert bad is not None and bad.number in (1, 2)


@pytest.mark.parametrize("number", range(1, len(GOOD) - 1))
def test_a_line_that_is_repeated_missing_moved_or_of_another_run_is_named(number: int):
    before, line, after = GOOD[:number], GOOD[number], GOOD[number + 1 :]
    edits: list[tuple[Lines, int]] = [
        ([*before, line, line, *after], number + 2),
        ([*before, *after], number + 1),
        ([*before, after[0], line, *after[1:]], number + 1),
        ([*before, OTHER[number], *after], number + 1),
        ([*before, line, OTHER[number + 1], *after], number + 2),
    ]
    for lines, expected in edits:
        bad = bad_line(lines)
        assert bad is not None and bad.number == expected, bad


def without_check(line: bytes) -> bytes:
    return line[: line.rindex(b',"check":')] + b"}\n"


@pytest.mark.parametrize(
    ("edit", "number", "words"),
    [
        (lambda lines: [*lines[:5], lines[4], *lines[5:]], 6, "the line repeats the one before it"),
        (
            lambda lines: [*lines[:3], *lines[4:]],
            4,
            "event 4 follows event 2, and its check is wrong: lines are missing",
        ),
        (lambda lines: [*lines[:3], without_check(lines[3]), *lines[4:]], 4, "the line has no check"),
        (
            lambda lines: [*lines[:3], OTHER[3], *lines[4:]],
            4,
            "its check is wrong: the line is damaged, was changed, or",
        ),
        (lambda lines: [*lines[:3], b"\n", *lines[3:]], 4, "the line is empty"),
        (lambda lines: [*lines[:3], lines[3][9:], *lines[4:]], 4, "the line is damaged: "),
        (lambda lines: [*lines[:3], b"[" * 100_000 + b"\n"], 4, "the line is damaged: "),
        (lambda lines: lines[1:], 1, "the file has no header"),
        (lambda lines: [b"import flowdist\n", *lines], 1, "the file is no journal and no trace: "),
    ],
)
def test_the_error_says_what_is_wrong_and_what_can_be_read(edit: Callable[[Lines], Lines], number: int, words: str):
    bad = bad_line(edit(GOOD))
    assert bad is not None and bad.number == number and bad.message.startswith(f"journal.jsonl:{number}: {words}"), bad
    assert (f"lines 1 to {number - 1} can be read: {number - 2} events" in bad.message) == (number > 1)


def plain(*events: tuple[int, int]) -> Lines:
    """Return a trace, whose lines have no checks, of events with these numbers and times."""
    made = graph(role("trainer"))
    return [encode_line(Header(made, ())), *(encode_line(record(n, t, ev.TimePassed(), ())) for n, t in events)]


@pytest.mark.parametrize(
    ("lines", "number", "words"),
    [
        (plain((1, 5), (3, 6)), 3, "event 3 follows event 1: lines are missing or were added"),
        (plain((1, 5), (2, 4)), 3, "time runs backwards at event 2: its lines were reordered"),
        (plain((1, -5)), 2, "its time is -5 ns; only the header can be read"),
        (plain((1, 1 << 70)), 2, "its time is 1180591620717411303424 ns"),
        ([*plain((1, 5)), *plain((2, 6))], 3, "a second header, after event 1: two records in one file?"),
        (plain((1, 5))[1:], 1, "the file has no header"),
    ],
)
def test_a_trace_has_no_checks_and_is_checked_for_order(lines: Lines, number: int, words: str):
    assert bad_line(plain((1, 5), (2, 5), (3, 6))) is None
    bad = bad_line(lines)
    assert bad is not None and bad.message.startswith(f"journal.jsonl:{number}: {words}"), bad


def test_a_record_without_checks_is_continued_with_them_and_from_there_each_line_has_one():
    old = [without_check(line) for line in GOOD]
    _, _, reader = read_whole_lines(b"".join(old[:4]))
    lines = read_whole_lines(b"".join(GOOD))[0]
    mixed = [*old[:4], *(reader.chain.add_check(encode_line(line)) for line in lines[4:])]
    assert bad_line(mixed) is None and bad_line([*mixed[:5], old[5]]).number == 6  # type: ignore[union-attr]
    changed = [mixed[0], mixed[1].replace(b"node0", b"node9"), *mixed[2:]]
    assert bad_line(changed).number == 5, "the first check counts all lines before it"  # type: ignore[union-attr]


def test_the_end_of_a_record_is_read_without_its_beginning():
    for lines in (GOOD, [without_check(line) for line in GOOD]):
        reader = RecordReader(is_tail=True)
        assert [reader.read(line) for line in lines[4:]] == read_whole_lines(b"".join(GOOD))[0][4:]
        assert reader.events == len(GOOD) - 2
        reader = RecordReader(is_tail=True)
        reader.read(lines[6])
        with pytest.raises(BadLine, match="event 7 follows event 5"):
            reader.read(lines[8])


def test_another_help_leaves_the_rest_of_the_error():
    bad = RecordReader("x").error("it is wrong")
    assert str(bad) == str(bad.with_help("do this")) == "x:1: it is wrong"
    assert (bad.with_help("do this").help, bad.with_help("do this").number) == ("do this", 1)
