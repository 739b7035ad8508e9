"""Picture of the job's status at the bottom of the terminal, below the scrolling output of the workers.

rich draws the picture. It does not keep a worker's line from moving the cursor, which would garble the picture:
`worker_line` does. Lines are collected and printed together, because each print draws the picture again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowdist.control.job.state import JobState
from flowdist.record.journal import Record
from flowdist.record.status import RecentDecisions, status_of
from flowdist.report.live.status import Line, fitted
from flowdist.text.printable import one_line, worker_line
from flowdist.text.queued_output import is_behind

PERIOD_S = 0.5
SHARE_MAX = 0.05  # of the time is spent on drawing at most


class Pinned:
    """Lines at the bottom of a terminal (the picture, from the first `show` on), with others printed above them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._above: list[Text] = []

    @property
    def height(self) -> int:
        """Return the present number of rows of the terminal."""
        return self._console.size.height

    @property
    def is_behind(self) -> bool:
        """Return whether the terminal still has to show much of what it got."""
        return is_behind(sys.stderr)

    def print(self, line: str, style: str = "") -> None:
        """Collect a line with its colours, to be printed above the picture at the next `flush`: see `worker_line`."""
        line = worker_line(line)
        self._above.append(Text.from_ansi(line, style=style) if "\x1b" in line else Text(line, style=style))

    def flush(self) -> None:
        """Print all lines that `print` has collected above the picture; do nothing if there are none."""
        if self._above:
            lines, self._above = Text("\n").join(self._above), []
            self._console.print(lines, soft_wrap=True)

    def show(self, lines: list[Line]) -> None:
        """Show these lines as the picture instead of the last ones, each cut to the width of the terminal."""
        self._live.start()
        self._live.update(picture_of(lines), refresh=True)

    def close(self) -> None:
        """Print the collected lines, and remove the picture."""
        self.flush()
        self._live.stop()


def picture_of(lines: list[Line], mask: Callable[[str], str] = str) -> Text:
    """Return the lines, with secrets masked, as one text for rich, each cut to the width of the terminal."""
    texts = (Text.assemble(*((one_line(mask(span.text)), span.style) for span in line)) for line in lines)
    return Text("\n", no_wrap=True, overflow="ellipsis").join(texts)


class LiveView:
    """Observer of a run that draws the status of the job on a terminal, at most every `PERIOD_S` seconds."""

    def __init__(self, pinned: Pinned, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pinned, self._run_id, self._clock = pinned, run_id, clock
        self._lately = RecentDecisions()
        self._next = 0.0

    def hear(self, record: Record) -> None:
        """Keep the messages and steps of an event for the next picture."""
        self._lately.hear(record)

    def look(self, job: JobState, now: int) -> None:
        """Print the collected lines, and draw the job's status at `now` (ns) if the last picture is old enough.

        Nothing is drawn while the terminal is behind, as one that the user has paused.
        """
        if self._pinned.is_behind:
            return
        self._pinned.flush()
        begun = self._clock()
        if begun < self._next:
            return
        lines = fitted(status_of(job, self._lately, self._run_id, now), max(3, self._pinned.height * 2 // 3))
        self._pinned.show([[], *lines])
        self._next = begun + max(PERIOD_S, (self._clock() - begun) / SHARE_MAX)
