"""Progress of a simulation that takes longer than two seconds, as one line on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowdist.graph import SECOND

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

AFTER_S = 2.0


class ProgressLine:
    """Progress line, which is removed at the end. A `Simulation` takes its method `tell`.

    Args:
        quiet: True: show nothing.
        console: Terminal that shows the line (default: stderr). Nothing is shown if it is not a terminal.
        clock: Time in seconds.
    """

    def __init__(
        self, *, quiet: bool, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet, self._console, self._clock = quiet, console, clock
        self._since = clock()
        self._line: Progress | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.stop()

    def tell(self, now: int, events: int) -> None:
        """Update the line.

        Args:
            now: Simulated time in ns.
            events: Number of events so far.
        """
        waited = self._clock() - self._since
        if self._quiet or waited < AFTER_S:
            return
        at = f"{now // (3600 * SECOND)}:{now // (60 * SECOND) % 60:02}:{now // SECOND % 60:02}"
        fields: dict[str, Any] = {"at": at, "events": f"{events:,}", "waited": f"{waited:.0f}"}
        if self._line is None:
            self._line = self._shown(fields)
        self._line.update(self._line.task_ids[0], **fields)

    def _shown(self, fields: dict[str, Any]) -> Progress:
        from rich.console import Console  # not needed by short simulations
        from rich.progress import Progress, TextColumn

        console = self._console or Console(stderr=True)
        words = TextColumn("simulating: at {task.fields[at]}, {task.fields[events]} events, in {task.fields[waited]} s")
        line = Progress(words, console=console, transient=True, disable=not console.is_terminal)
        line.add_task("", total=None, **fields)
        line.start()
        return line
