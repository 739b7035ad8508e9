"""Simulations on the command line: progress of one that takes longer than two seconds, and its summary."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowdist.cli.shared.common import rich_console
from flowdist.graph import SECOND
from flowdist.record.journal import UnsavedLine
from flowdist.report.record.spending import time_of
from flowdist.report.record.summary import in_seconds, summary_of
from flowdist.sim.checks.bounds import recoveries

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from flowdist.sim.simulation import SimResult

AFTER_S = 2.0  # a shorter simulation shows no progress
BROKEN, UNFINISHED = 3, 4  # exit codes


def exit_code(outcome: str | None, *, is_broken: bool = False) -> int:
    """Return the exit code of a simulation."""
    if is_broken:
        return BROKEN
    return UNFINISHED if outcome is None else int(outcome != "succeeded")


class ProgressLine:
    """Context manager that shows the progress of a simulation in one line, and removes the line at the end.

    The line appears after `AFTER_S` seconds, unless `quiet`, or if the console (default: stderr) is no terminal.
    """

    def __init__(
        self, *, quiet: bool, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet, self._console, self._clock = quiet, console, clock
        self._since = clock()
        self._line: Progress | None = None
        self.label = "simulating"  # the caller may change it, to say which of several simulations runs

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.stop()

    def tell(self, now: int, events: int) -> None:
        """Show how far a simulation is: the simulated time in nanoseconds, and the number of events so far."""

        def text(waited_s: float) -> str:
            at = f"{now // (3600 * SECOND)}:{now // (60 * SECOND) % 60:02}:{now // SECOND % 60:02}"
            return f"{self.label}: at {at}, {events:,} events, in {waited_s:.0f} s"

        self.show(text)

    def show(self, text: Callable[[float], str]) -> None:
        """Show a text, made of the seconds that were waited so far; in the first `AFTER_S` seconds, do nothing."""
        waited_s = self._clock() - self._since
        if self._quiet or waited_s < AFTER_S:
            return
        if self._line is None:
            self._line = self._shown()
        self._line.update(self._line.task_ids[0], text=text(waited_s))

    def _shown(self) -> Progress:
        from rich.progress import Progress, TextColumn  # not needed by short simulations

        console = self._console or rich_console(err=True)
        words = TextColumn("{task.fields[text]}", markup=False)
        line = Progress(words, console=console, transient=True, disable=not console.is_terminal)
        line.add_task("", total=None, text="")
        line.start()
        return line


def simulated_summary(result: SimResult) -> dict[str, Any]:
    """Return the summary of a simulation: that of its record, with what only the simulator knows."""
    summary = summary_of(result.job, result.lines)
    lines = [line for line in result.lines if isinstance(line, UnsavedLine)]
    keys = ("world", "step", "reason")
    summary["unsaved"] = [{"t_s": line.t_ns / 1e9} | {key: getattr(line, key) for key in keys} for line in lines]
    summary["lasted_s"] = result.now / 1e9
    for role, model in result.worlds_of_roles():
        work = summary["roles"][role]
        work["step"] = max(work["step"], model.step_at(result.now))
        work["lost_steps"] = work.get("lost_steps", 0) + model.lost_steps
        work["lost_work_s"] = work.get("lost_work_s", 0.0) + model.lost_ns / 1e9
        work["unsaved_steps"] = work.get("unsaved_steps", 0) + model.unsaved_steps
        work["unsaved_work_s"] = work.get("unsaved_work_s", 0.0) + model.unsaved_ns / 1e9
    summary |= time_of(result.job.graph, result.spent)
    found = recoveries(result)
    for incident in summary["incidents"]:
        incident["steps_again_s"] = in_seconds(found.get(incident["number"]))
    return summary
