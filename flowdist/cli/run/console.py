"""Console of a run: lines for the user, on a terminal above a picture of the job, and the summary at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flowdist.cli.shared.common import paint, print_json, rich_console
from flowdist.report.record.spending import time_of_run
from flowdist.report.record.summary import summary_of, summary_text
from flowdist.runtime.run_folder.folder import JOINED
from flowdist.runtime.run_folder.root_cause import root_cause_text, write_outer_error_file
from flowdist.runtime.run_folder.runs import write_end
from flowdist.text.printable import one_line
from flowdist.text.streams import print_worker_line

if TYPE_CHECKING:
    from flowdist.report.live.terminal_view import Pinned
    from flowdist.runtime.supervisor.supervisor import Observer

COLOURS = {"warning": "yellow", "error": "red", "failed": "red", "event": "cyan"}


class Shown(NamedTuple):
    """Choice of output."""

    quiet: bool = False  # hide the output of workers
    as_json: bool = False  # print the summary as JSON on stdout
    live: bool = False  # draw a picture of the job's status if stderr is a terminal


LINES = Shown()


class Console:
    """Lines for the user: events of flowdist with their times on stderr, output of workers on the stream of the worker.

    The job's clock replaces `now_ns` when there is one, so that lines, journal and summary agree. `host` is this
    host's node in a job over several hosts, whose lines may go to one terminal. Every line passes `mask`.
    """

    def __init__(self, shown: Shown, mask: Callable[[str], str]) -> None:
        self.shown = shown
        self._mask, made_ns = mask, monotonic_ns()
        self.now_ns: Callable[[], int] = lambda: monotonic_ns() - made_ns
        self.host = ""
        self._pinned: Pinned | None = None

    def onlooker(self, run_id: str) -> Observer | None:
        """Return an observer that draws the job below the lines; None if not wanted, or if stderr is no terminal."""
        if not self.shown.live or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            return None
        from flowdist.report.live.terminal_view import LiveView, Pinned  # not needed by runs that show lines

        self._pinned = Pinned(rich_console(err=True))
        return LiveView(self._pinned, run_id)

    def close(self) -> None:
        """Remove the picture, if there is one; lines can still be shown."""
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None

    def show(self, kind: str, text: str) -> None:
        """Print a line, masked, above the picture if there is one; `kind` is a worker's stream or a key of COLOURS."""
        text = self._mask(text)
        if kind in ("stdout", "stderr"):
            err = kind == "stderr" or self.shown.as_json
            if self._pinned is not None and not self.shown.quiet and (err or sys.stdout.isatty()):
                self._pinned.print(text)
            elif not self.shown.quiet:
                print_worker_line(text, sys.stderr if err else sys.stdout)
            return
        text = one_line(f"error: {text}" if kind in ("error", "failed") else text)
        line = f"flowdist {self.now_ns() / 1e9:7.2f}s {self.host and f'{self.host} '}| {text}"
        if self._pinned is not None:
            self._pinned.print(line, COLOURS[kind])
            self._pinned.flush()  # the last lines before the end would be lost otherwise
        else:
            paint(line, err=True, fg=COLOURS[kind])


def finish(
    result: Any, as_json: bool, mask: Callable[[str], str], drawn: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write and print the summary, with the root cause of a failure; one that cannot be written is a warning."""
    run_dir = Path(result.run_dir)
    summary = {**summary_of(result.job, result.faults), **time_of_run(result.job.graph, result.sheet)}
    summary |= {"run_dir": result.run_dir, "unfired": [fault.spec for fault in result.unfired], **drawn}
    cause = mask(root_cause_text(result.job, run_dir)) if result.outcome == "failed" else ""
    if why := write_end(run_dir, {**summary, "root_cause": cause}, (result.job, result.sheet)):
        paint(f"flowdist: {why}", fg="yellow", err=True)
    if result.outcome == "failed" and (why := write_outer_error_file(result.job, run_dir, os.environ, mask)):
        paint(f"flowdist: {why}", fg="yellow", err=True)
    if as_json:
        print_json("run", **summary)
        return
    click.echo("\n" + summary_text(summary, brief=True), err=True, nl=False)
    if cause:
        click.echo("\n" + cause, err=True, nl=False)
    kept = "logs of this host" if (run_dir / JOINED).exists() else "logs, journal and checkpoints"
    click.echo(f"\n{kept}: {result.run_dir}", err=True)
