"""Reading of a record: every line is checked before anything uses it.

A journal outlives crashes, full disks and editors, and a run may go on from it days later. So each line of a journal
ends with a check, the CRC-32 of all lines from the header to this one without their checks:

    {"type":"event","n":5,"t_ns":1700000,...,"reason":"","check":"9f3a1c2b"}

The check of a line depends on that of the line before it. A damaged byte, a repeated, missing or moved line, and a line
of another run therefore all show at the first line that is wrong. The check is no signature: it finds accidents, and
nobody who computes it anew. Only the end of a journal can be missing without a trace, as after a crash of the machine.

Traces of simulations have no checks. As soon as one line of a record has a check, all later lines must have one.

`RecordReader` also checks what needs no check sum: that a line is JSON of a known kind, that the header is the first
line and has a format and a graph that can be read, that events are numbered without a gap, and that time does not run
backwards. `Replay` checks what an event says about the job.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flowdist.errors import FlowdistError
from flowdist.graph import format_duration
from flowdist.graph.codec import why_unsound
from flowdist.record.journal import (
    AccountLine,
    FaultLine,
    Header,
    Line,
    Record,
    UnknownFormat,
    UnsavedLine,
    decode_line,
)

JOURNAL = "journal.jsonl"
HELP = "use an earlier copy of the file; a trace can be made again"
T_NS_MAX = 1 << 62  # nanoseconds; sums of times stay far below what 64 bits hold
_CHECK = re.compile(rb',"check":"([0-9a-f]{8})"\}\n\Z')
_CHECK_SIZE = len(',"check":"01234567"}\n')


class WholeRecord(NamedTuple):
    """A record under the name that is shown for it, with the lines after the header."""

    name: str
    header: Header
    lines: Sequence[Line]


class BadLine(FlowdistError):
    """A line of a record (`number`, from 1) cannot be used, as `why` says; the lines before it can.

    They have `events` events, the last of them at `t_ns` nanoseconds since the start of the job.
    """

    def __init__(self, source: str, number: int, why: str, *, events: int = 0, t_ns: int = 0, help: str = HELP) -> None:
        before = {1: "", 2: "; only the header can be read"}.get(number, f"; lines 1 to {number - 1} can be read")
        reach = f": {events} events, up to {format_duration(t_ns)}" if events else ""
        super().__init__(f"{source}:{number}: {why}{before}{reach}", help=help)
        self.source, self.number, self.why, self.events, self.t_ns = source, number, why, events, t_ns

    def with_help(self, help: str) -> BadLine:
        """Return the same error with another help text."""
        return BadLine(self.source, self.number, self.why, events=self.events, t_ns=self.t_ns, help=help)


class CheckChain:
    """The checks of a journal, computed line after line.

    `is_begun` is false until a line had a check; the lines before that count all the same.
    """

    def __init__(self) -> None:
        self.is_begun = False
        self._sum = 0

    @property
    def check(self) -> str:
        """The check of the last line."""
        return f"{self._sum:08x}"

    def add_check(self, line: bytes) -> bytes:
        """Return the next line of a journal, as `encode_line` has made it, with its check."""
        body = line.removesuffix(b"}\n")
        self.is_begun, self._sum = True, zlib.crc32(body, self._sum)
        return b'%s,"check":"%08x"}\n' % (body, self._sum)

    def verify(self, line: bytes) -> bool:
        """Return whether the next line has the right check, or has none and none of the lines before it has one."""
        found = _CHECK.search(line, max(0, len(line) - _CHECK_SIZE))
        body = line[: found.start()] if found is not None else line.removesuffix(b"}\n")
        self._sum = zlib.crc32(body, self._sum)
        if found is None:
            return not self.is_begun
        self.is_begun = True
        return int(found[1], 16) == self._sum

    def begin_after(self, line: bytes) -> None:
        """Take over the check of a line that cannot be verified, because the lines before it have not been read."""
        if (found := _CHECK.search(line)) is not None:
            self.is_begun, self._sum = True, int(found[1], 16)


class RecordReader:
    """Reader of a record: returns each line as a value once it has passed all checks.

    After an error the reader can be used no more. `lines`, `events` and `t_ns` say how far it has come: the number of
    lines and of events, and the time of the last event. `source` is for messages. With `is_tail` the first line is any
    line of a record, instead of its header: it cannot be verified, and the numbers of lines in messages count from it.
    """

    def __init__(self, source: str = JOURNAL, *, is_tail: bool = False) -> None:
        self.source = source
        self.lines = self.events = self.t_ns = 0
        self.chain = CheckChain()
        self._is_tail = is_tail
        self._last = b""

    def read(self, data: bytes) -> Line:
        """Return the next line of the record, given with its newline; BadLine if it cannot be used."""
        line = self._decoded(data)
        if isinstance(line, Header) and self.lines:
            raise self.error(f"a second header, after event {self.events}: two records in one file?")
        if isinstance(line, Header) and (why := why_unsound(line.graph)):
            raise self.error(f"its graph contradicts itself: {why}")
        if not isinstance(line, Header) and not self.lines and not self._is_tail:
            raise self.error("the file has no header")
        if self._is_tail and not self.lines:
            self.chain.begin_after(data)
        elif not self.chain.verify(data):
            raise self.error(self._why_unverified(data, line))
        if not isinstance(line, Header):
            self._check_order(line)
        self.lines += 1
        self._last = data
        return line

    def error(self, why: str) -> BadLine:
        """Return the error that says what is wrong with the line that is read next."""
        return BadLine(self.source, self.lines + 1, why, events=self.events, t_ns=self.t_ns)

    def _decoded(self, data: bytes) -> Line:
        try:
            return decode_line(data)
        except UnknownFormat as error:
            raise self.error(str(error)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if not self.lines and not self._is_tail:
                raise self.error(f"the file is no journal and no trace: {error}") from None
            what = "is empty" if not data.strip() else f"is damaged: {error}"
            raise self.error(f"the line {what}") from None

    def _why_unverified(self, data: bytes, line: Line) -> str:
        """Return what the check of a line shows, in the words of the most likely accident."""
        if data == self._last:
            return "the line repeats the one before it"
        if isinstance(line, Record) and line.n != self.events + 1:
            return f"{self._gap(line)}, and its check is wrong: lines are missing, repeated, moved or of another run"
        if _CHECK.search(data) is None:
            return "the line has no check, as the lines before it have: it was added or changed"
        return "its check is wrong: the line is damaged, was changed, or is of another run"

    def _gap(self, line: Record) -> str:
        return f"event {line.n} follows event {self.events}"

    def _check_order(self, line: Record | FaultLine | UnsavedLine | AccountLine) -> None:
        """Check that the line may come next, and note its number and time."""
        if not 0 <= line.t_ns <= T_NS_MAX:
            raise self.error(f"its time is {line.t_ns} ns")
        if not isinstance(line, Record):
            return
        if line.n != self.events + 1 and (self.events or not self._is_tail):
            raise self.error(f"{self._gap(line)}: lines are missing or were added")
        if line.t_ns < self.t_ns:
            raise self.error(f"time runs backwards at event {line.n}: its lines were reordered")
        self.events, self.t_ns = line.n, line.t_ns


def read_whole_lines(data: bytes, source: str = JOURNAL) -> tuple[list[Line], int, RecordReader]:
    """Read a record, and return its lines, how many bytes they take, and the reader, for the lines that follow.

    A last line without a newline, which a crash has cut off, is neither read nor counted. BadLine for another one.
    """
    whole = data.rfind(b"\n") + 1
    reader = RecordReader(source)
    lines = [reader.read(line + b"\n") for line in data[:whole].split(b"\n")[:-1]]
    return lines, whole, reader
