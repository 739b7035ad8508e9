"""The file of a job's journal, as the controller writes it, and the exit codes of a controller that cannot use it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from flowdist.record.journal import Line, encode_line
from flowdist.record.reader import CheckChain, read_whole_lines
from flowdist.runtime.wire.frames import Place

JOURNAL_LOST = os.EX_IOERR  # exit code of a controller that could not write its journal
# Exit code of a controller that cannot continue from the journal: its successor could not either. The last line that it
# prints, in controller.log, names the line of the journal and says what is wrong with it.
JOURNAL_BAD = os.EX_DATAERR


class JournalFile:
    """The journal's file, open for appending; BadLine if a line cannot be used.

    An incomplete last line, which a crash may leave, is cut off when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []  # the lines of the file when it was opened
        self._chain, self._size = CheckChain(), 0
        try:
            if path.exists():
                self.lines, self._size, reader = read_whole_lines(path.read_bytes(), str(path))
                self._chain = reader.chain
            self._file = path.open("a+b")
            self._file.truncate(self._size)
        except OSError as error:
            _end_without_journal(error)

    def write(self, line: Line, *, force: bool) -> bytes:
        """Append a line with its check, which survives a crash, with `force` of the machine too; return its bytes.

        Else this process exits with JOURNAL_LOST: an effect without a line must not be carried out (R21).
        """
        data = self._chain.add_check(encode_line(line))
        try:
            self._file.write(data)
            self._file.flush()
            if force:
                os.fsync(self._file.fileno())
        except OSError as error:
            _end_without_journal(error)
        self._size += len(data)
        return data

    @property
    def place(self) -> Place:
        """The place behind the last line."""
        return Place(self._size, self._chain.check)

    def has(self, place: Place) -> bool:
        """Return whether the file agrees up to a place, of a line or not, that another process names."""
        end = b'"check":"%s"}\n' % place.check.encode(errors="replace")
        if not len(end) <= place.size <= self._size:
            return place == Place()
        return os.pread(self._file.fileno(), len(end), place.size - len(end)) == end


def _end_without_journal(error: OSError) -> NoReturn:
    with contextlib.suppress(OSError):  # the log is on the same disk
        print(f"flowdist: the journal cannot be written: {error}", file=sys.stderr, flush=True)
    os._exit(JOURNAL_LOST)
