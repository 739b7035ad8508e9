"""A picture of the job that stays at the bottom of the terminal, while what workers print scrolls by above it.

The lines of the picture are cut to the width of the terminal, and it is taken away and drawn again with one write for
each thing that is printed above: so no line of a worker is ever mixed with it. rich's own Live counts rows by the width
that there was when it drew, and after a terminal was made narrower erases what is not its own; here a picture that the
terminal has broken anew is left where it is, and drawn again below.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from flowdist.control.history import Record
from flowdist.control.state import JobState
from flowdist.control.status import Lately, status_of
from flowdist.report.status import Line, fitted

PERIOD_S = 0.5
SHARE_MAX = 0.05  # of the time may go into drawing
WIDTH_MAX = 120  # of the picture: a terminal that is made narrower leaves short lines as they are
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

Size = Callable[[], os.terminal_size]


class Pinned:
    """Lines at the bottom of a terminal. `size` is asked each time: a terminal may become another."""

    def __init__(self, stream: TextIO, size: Size | None = None) -> None:
        self._stream = stream
        self._size = size or (lambda: os.get_terminal_size(stream.fileno()))
        self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False, width=10_000)
        self._shown: list[tuple[int, str]] = []  # width and text of each line that is there

    @property
    def height(self) -> int:
        return self._size().lines

    def print(self, line: str, style: str = "") -> None:
        """A line above. Colours in it stay, whatever else would move the cursor goes."""
        text = Text.from_ansi(line, style=style) if CONTROL.search(line) else Text(line, style=style)
        self._write(self._erased() + self._rendered(text) + "\n" + self._drawn())

    def show(self, lines: list[Line]) -> None:
        """These instead of the last ones."""
        before = self._erased()
        width = min(self._size().columns - 1, WIDTH_MAX)
        self._shown = []
        for line in lines:
            text = Text.assemble(*((span.text, span.style) for span in line))
            text.truncate(max(1, width), overflow="ellipsis")
            self._shown.append((text.cell_len, self._rendered(text)))
        self._write(before + self._drawn())

    def close(self) -> None:
        """Take them away."""
        self._write(self._erased())
        self._shown = []

    def _erased(self) -> str:
        """The cursor is behind the last of the lines: go to the beginning of the first, and erase from there on."""
        if not self._shown:
            return ""
        if any(width > self._size().columns for width, _ in self._shown):
            return "\r\n"  # broken anew, nobody knows into how many rows
        up = len(self._shown) - 1
        return (f"\x1b[{up}A" if up else "") + "\r\x1b[J"

    def _drawn(self) -> str:
        return "\r\n".join(text for _, text in self._shown)

    def _rendered(self, text: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(text, end="", soft_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class LiveView:
    """An onlooker of a run that draws what it sees. `pinned` is where."""

    def __init__(self, pinned: Pinned, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pinned, self._run_id, self._clock = pinned, run_id, clock
        self._lately = Lately()
        self._next = 0.0

    def hear(self, record: Record) -> None:
        self._lately.hear(record)

    def look(self, job: JobState, now: int) -> None:
        begun = self._clock()
        if begun < self._next:
            return
        lines = fitted(status_of(job, self._lately, self._run_id, now), max(3, self._pinned.height * 2 // 3))
        self._pinned.show([[], *lines])
        self._next = begun + max(PERIOD_S, (self._clock() - begun) / SHARE_MAX)
