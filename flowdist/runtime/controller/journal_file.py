"""The file of a job's journal, as the controller writes it, and the exit codes of a controller that cannot use it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from flowdist.record.journal import Line, encode_line
from flowdist.record.reader import CheckChain, read_whole_lines

JOURNAL_LOST = os.EX_IOERR  # exit code of a controller that could not write its journal
# Exit code of a controller that cannot continue from the journal: its successor could not either. The last line that it
# prints, in controller.log, names the line of the journal and says what is wrong with it.
JOURNAL_BAD = os.EX_DATAERR


class JournalFile:
    """The journal's file, open for appending; it is made if it does not exist.

    An incomplete last line, which a crash may leave, is cut off when the file is opened.

    Raises:
        BadLine: A line of the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []  # the lines of the file when it was opened
        self._chain, whole = CheckChain(), 0
        try:
            if path.exists():
                self.lines, whole, reader = read_whole_lines(path.read_bytes(), str(path))
                self._chain = reader.chain
            self._file = path.open("ab")
            self._file.truncate(whole)
        except OSError as error:
            _end_without_journal(error)

    def write(self, line: Line, *, force: bool) -> bytes:
        """Append a line with its check, and return its bytes.

        The line survives a crash of this process, and with `force` (fsync) one of the machine.

        If the line cannot be written, this process exits at once with code JOURNAL_LOST: an effect that no later
        controller can read in the journal must not be carried out (R21).
        """
        data = self._chain.add_check(encode_line(line))
        try:
            self._file.write(data)
            self._file.flush()
            if force:
                os.fsync(self._file.fileno())
        except OSError as error:
            _end_without_journal(error)
        return data


def _end_without_journal(error: OSError) -> NoReturn:
    with contextlib.suppress(OSError):  # the log is on the same disk
        print(f"flowdist: the journal cannot be written: {error}", file=sys.stderr, flush=True)
    os._exit(JOURNAL_LOST)
