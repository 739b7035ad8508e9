"""The journal of a real run, as a file."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from flowdist.record.journal import Line, read_whole_lines

JOURNAL_LOST = os.EX_IOERR  # exit code of a controller that could not write its journal


class JournalFile:
    """The journal on disk. An incomplete last line, which a crash may leave, is cut off when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []  # those that the file had when it was opened
        whole = 0
        if path.exists():
            self.lines, whole = read_whole_lines(path.read_bytes())
        self._file = path.open("ab")
        self._file.truncate(whole)

    def write(self, line: bytes, *, force: bool) -> None:
        """Append a line. With `force` it survives a crash of the machine, else only one of this process.

        If the line cannot be written, this process ends at once: an effect that no later controller can read in the
        journal must not be carried out (R21).
        """
        try:
            self._file.write(line)
            self._file.flush()
            if force:
                os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # the log is on the same disk
                print(f"flowdist: the journal cannot be written: {error}", file=sys.stderr, flush=True)
            os._exit(JOURNAL_LOST)
