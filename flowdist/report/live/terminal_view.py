"""A picture of the job that stays at the bottom of the terminal, while what workers print scrolls by above it.

rich draws it. What it does not do is to keep a worker's line from moving the cursor: progress bars, titles and whatever
else is printed for a terminal of one's own would garble the picture, so that only colours come through. Lines are
gathered and printed together, as the picture is drawn anew with each print.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowdist.control.job.state import JobState
from flowdist.record.journal import Record
from flowdist.record.status import RecentDecisions, status_of
from flowdist.report.live.status import Line, fitted

PERIOD_S = 0.5
SHARE_MAX = 0.05  # of the time may go into drawing
OVERWRITTEN = re.compile(r"^(\[[\w./-]+\] )?.*\r")  # by a progress bar: what is left is its last state, and the name
SPECIAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Whatever a terminal might obey but for colours: titles and links, cursor movements, what is left of either, the rest.
OBEYED = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)"
    r"|\x1b\[[0-?]*[ -/]*[@-ln-~]"
    r"|\x1b(?!\[[\d;:]*m)"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
)


class Pinned:
    """Lines at the bottom of a terminal, and others above them. Nothing is there before the first `show`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._above: list[Text] = []

    @property
    def height(self) -> int:
        """Rows of the terminal: it may become another."""
        return self._console.size.height

    def print(self, line: str, style: str = "") -> None:
        """A line above, with the next `flush`. Colours in it stay, whatever else would move the cursor goes."""
        line = OVERWRITTEN.sub(r"\1", line)
        special = SPECIAL.search(line) is not None
        self._above.append(Text.from_ansi(OBEYED.sub("", line), style=style) if special else Text(line, style=style))

    def flush(self) -> None:
        """Print what waits for it."""
        if self._above:
            lines, self._above = Text("\n").join(self._above), []
            self._console.print(lines, soft_wrap=True)

    def show(self, lines: list[Line]) -> None:
        """These instead of the last ones, each cut to the width that there is."""
        self._live.start()
        picture = Text("\n", no_wrap=True, overflow="ellipsis").join(
            Text.assemble(*((span.text, span.style) for span in line)) for line in lines
        )
        self._live.update(picture, refresh=True)

    def close(self) -> None:
        """Take them away, with all printed that was to be."""
        self.flush()
        self._live.stop()


class LiveView:
    """An onlooker of a run that draws what it sees. `pinned` is where."""

    def __init__(self, pinned: Pinned, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pinned, self._run_id, self._clock = pinned, run_id, clock
        self._lately = RecentDecisions()
        self._next = 0.0

    def hear(self, record: Record) -> None:
        self._lately.hear(record)

    def look(self, job: JobState, now: int) -> None:
        self._pinned.flush()
        begun = self._clock()
        if begun < self._next:
            return
        lines = fitted(status_of(job, self._lately, self._run_id, now), max(3, self._pinned.height * 2 // 3))
        self._pinned.show([[], *lines])
        self._next = begun + max(PERIOD_S, (self._clock() - begun) / SHARE_MAX)
