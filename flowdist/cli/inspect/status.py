"""`flowdist status`: the state of a run, or how it has ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from flowdist.cli.shared.common import print_json, verb
from flowdist.cli.shared.records import RecordFile, replay_of
from flowdist.cli.shared.runs import RunOptions, run_options, statuses
from flowdist.cli.shared.terminal import rich_console
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.report.live.status import fitted, one_line, status_text
from flowdist.runtime.run_folder.runs import (
    ControllerIsPrivate,
    describe,
    known_mask,
    resume_help,
    state_of,
    status_at_end,
    written_status,
)
from flowdist.text.printable import joined

if TYPE_CHECKING:
    from flowdist.record.status import Status

WATCH_S = 1.0


@verb("status")
@run_options
@click.option("--watch", "-w", is_flag=True, help="Show it once a second until the run is over.")
@click.option("--plain", is_flag=True, help="With --watch: print a line for each change, on a terminal too.")
def command(named: RunOptions, watch: bool, plain: bool) -> None:
    """Show the state of a run: roles, nodes, what is unusual, what the run waits for, and recent decisions.

    \b
    flowdist status                     the newest run
    flowdist status word2vec-2026 -w    until the run is over; Ctrl-C ends the display, not the run
    flowdist status --json              all of it, with each replica

    RUN is the run's name, the beginning of its name, or its folder. For a run that is over, its end is shown. For a run
    that died without an end, its last state is shown, and how to resume it.
    """
    run_dir, graph = named.find()
    if watch and named.as_json:
        raise FlowdistError("--watch does not go with --json", help="flowdist logs --events -f prints JSON lines")
    if watch:
        _watch(run_dir, graph, plain or not sys.stdout.isatty())
    _show(run_dir, graph, named.as_json)


def _show(run_dir: Path, graph: RoleGraph, as_json: bool) -> None:
    """Print the status of a run: its controller's answer, or, once it is over, the status written at its end.

    For a run that died or wrote no status, or whose controller does not answer this user, the last status is replayed
    from the journal.
    """
    end, record = state_of(run_dir), None
    if end.state == "running":
        try:
            status = describe(run_dir)
        except ControllerIsPrivate:
            record, status = _last_status(run_dir)
        except FlowdistError:
            end = state_of(run_dir)
            if end.state == "running":
                raise
    if end.state != "running":
        written = written_status(run_dir) if end.state != "died" else None
        record, status = (None, written) if written is not None else _last_status(run_dir)
    state = end.state if end.state != "running" else status.state
    if as_json:
        content = msgspec.to_builtins(status) | {"state": state, "run": run_dir.name, "run_dir": str(run_dir)}
        print_json("status", **content)
    else:
        click.echo(known_mask(graph, os.environ)(status_text(status, state=state)), nl=False)
        if end.state == "died":
            click.echo(f"\nthe run died without an end, and none of its processes runs; {resume_help(run_dir)}")
    if record is not None:
        record.finish()


def _last_status(run_dir: Path) -> tuple[RecordFile, Status]:
    """Return the journal of a run, whose `finish` has to be called, and the last status that can be read of it."""
    record, replay, _ = replay_of(run_dir / "journal.jsonl", strict=True)
    return record, status_at_end(run_dir, record.header, replay)


def _watch(run_dir: Path, graph: RoleGraph, plain: bool) -> None:
    """Show the status about once a second until the run is over: as a picture, or `plain` as a line for each change."""
    mask = known_mask(graph, os.environ)
    if plain:
        last = ""
        for status in statuses(run_dir, WATCH_S):
            line = one_line(status)
            if (what := line.partition(" ")[2]) != last:  # the time alone is not a change
                click.echo(joined([mask(line)]), nl=False)
                last = what
        return
    from rich.live import Live  # only for a terminal

    from flowdist.report.live.terminal_view import picture_of

    console = rich_console()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        for status in statuses(run_dir, WATCH_S):
            live.update(picture_of(fitted(status, console.size.height - 1), mask), refresh=True)
