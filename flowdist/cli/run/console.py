"""What a run shows: lines, or on a terminal lines above a picture of the job; at the end its summary."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from flowdist.cli.shared.common import print_json

if TYPE_CHECKING:
    from flowdist.report.live.terminal_view import Pinned
    from flowdist.runtime.supervisor.supervisor import Observer

COLOURS = {"warning": "yellow", "error": "red", "event": "cyan"}


class Shown(NamedTuple):
    """`quiet`: not the workers' output. `as_json`: the summary on stdout. `live`: a picture, where that is possible."""

    quiet: bool = False
    as_json: bool = False
    live: bool = False


LINES = Shown()


class Console:
    """Lines for people: what flowdist does on stderr with the time, what workers print where they printed it.

    `now_ns` is the clock that they show: the job's own, once there is one, so that lines, journal and summary agree.
    """

    def __init__(self, shown: Shown, mask: Callable[[str], str]) -> None:
        self.shown = shown
        self._mask, made_ns = mask, monotonic_ns()
        self.now_ns: Callable[[], int] = lambda: monotonic_ns() - made_ns
        self._pinned: Pinned | None = None

    def onlooker(self, run_id: str) -> Observer | None:
        """Who draws the picture; None where nobody could see it."""
        if not self.shown.live or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            return None
        from rich.console import Console as RichConsole  # a run that shows lines alone does without

        from flowdist.report.live.terminal_view import LiveView, Pinned

        self._pinned = Pinned(RichConsole(stderr=True, highlight=False, markup=False))
        return LiveView(self._pinned, run_id)

    def close(self) -> None:
        """The picture goes; lines may still come."""
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None

    def show(self, kind: str, text: str) -> None:
        """Once nobody reads any more (`flowdist run | head`), the job goes on all the same: its logs are files."""
        try:
            self._show(kind, text)
        except OSError:
            _to_nowhere(sys.stdout, sys.stderr)

    def _show(self, kind: str, text: str) -> None:
        text = self._mask(text)
        if kind in ("stdout", "stderr"):
            if not self.shown.quiet:
                self._worker_line(text, err=kind == "stderr" or self.shown.as_json)
            return
        line = f"flowdist {self.now_ns() / 1e9:7.2f}s | " + (f"{kind}: {text}" if kind == "error" else text)
        if self._pinned is not None:
            self._pinned.print(line, COLOURS[kind])
            self._pinned.flush()  # at the end nobody looks any more
        else:
            click.secho(line, fg=COLOURS[kind], err=True)

    def _worker_line(self, text: str, *, err: bool) -> None:
        if self._pinned is not None and (err or sys.stdout.isatty()):
            self._pinned.print(text)
        else:
            click.echo(text, err=err)


def _to_nowhere(*streams: TextIO) -> None:
    """What those that nobody reads still hold, and all that follows, is thrown away."""
    for stream in streams:
        ends = select.poll()
        ends.register(stream.fileno(), select.POLLERR | select.POLLHUP)
        if ends.poll(0):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def finish(
    result: Any, as_json: bool, mask: Callable[[str], str], drawn: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write the summary down and show it, with what was the root cause where the job has failed.

    `drawn` are the rates of faults and their seed, if there are any.
    """
    from flowdist.report.record.spending import time_of_run  # after the run: it delays nothing
    from flowdist.report.record.summary import summary_of, summary_text
    from flowdist.runtime.run_folder.folder import JOINED
    from flowdist.runtime.run_folder.root_cause import root_cause_text
    from flowdist.runtime.run_folder.runs import write_status

    run_dir = Path(result.run_dir)
    summary = {**summary_of(result.job, result.faults), **time_of_run(result.job.graph, result.sheet)}
    summary |= {"run_dir": result.run_dir, "unfired": [fault.spec for fault in result.unfired], **drawn}
    cause = mask(root_cause_text(result.job, run_dir)) if result.outcome == "failed" else ""
    (run_dir / "summary.json").write_text(json.dumps({**summary, "root_cause": cause}, indent=2) + "\n")
    write_status(run_dir, result.job, result.sheet)
    if as_json:
        print_json("run", **summary)
        return
    click.echo("\n" + summary_text(summary, brief=True), err=True, nl=False)
    if cause:
        click.echo("\n" + cause, err=True, nl=False)
    kept = "logs of this host" if (run_dir / JOINED).exists() else "logs, journal and checkpoints"
    click.echo(f"\n{kept}: {result.run_dir}", err=True)
