"""`flowdist list`: the runs of a folder, the newest first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from flowdist.cli.shared.common import paint, print_json, verb
from flowdist.cli.shared.options import json_option, runs_option
from flowdist.graph import format_duration
from flowdist.runtime.run_folder.access import owner_of
from flowdist.runtime.run_folder.folder import private_runs, run_dirs
from flowdist.runtime.run_folder.runs import environment_of, state_of
from flowdist.text.printable import table

COLOURS = {"running": "cyan", "succeeded": "green", "failed": "red", "died": "red", "cancelled": "yellow"}


@verb("list")
@click.option("-n", "most", type=click.IntRange(min=1), default=20, help="Maximum of runs to list (default: 20).")
@click.option("--state", "states", multiple=True, type=click.Choice(list(COLOURS)), help="List runs in this state.")
@runs_option
@json_option
def command(most: int, states: tuple[str, ...], base: str, as_json: bool) -> None:
    """List runs, the newest first: running, succeeded, failed, cancelled, or died without an end.

    \b
    flowdist list
    flowdist list --state running --json
    """
    found: list[dict[str, Any]] = []
    for run_dir in run_dirs(Path(base)):
        if len(found) == most:
            break
        entry = _entry(run_dir)
        if not states or entry["state"] in states:
            found.append(entry)
    private = [{"run": folder.name, "owner": owner_of(folder)} for folder in private_runs(Path(base))]
    if as_json:
        print_json("runs", runs=found, private=private)
        return
    for each in private:
        click.echo(f"{each['run']} is private to the user {each['owner']}", err=True)
    if not found:
        click.echo(f"there are no {' or '.join(states)}{' ' * bool(states)}runs in {base}", err=True)
        return
    rows: list[tuple[str, ...]] = [("run", "state", "started", "lasted", "reason")]
    for entry in found:
        lasted = format_duration(round(entry["lasted_s"]) * 10**9) if entry["lasted_s"] is not None else "-"
        rows.append((entry["run"], entry["state"], entry["started_at"][:19].replace("T", " "), lasted, entry["reason"]))
    heading, *lines = table(rows)
    paint(heading, bold=True)
    for line, entry in zip(lines, found, strict=True):
        paint(line, fg=COLOURS[entry["state"]])


def _entry(run_dir: Path) -> dict[str, Any]:
    """Return what is listed of a run; `lasted_s` is None if it is unknown."""
    end = state_of(run_dir)
    starts = environment_of(run_dir)
    made = (run_dir / "graph.json").stat().st_mtime
    started = starts[0].get("started_at") if starts else None
    lasted_s = time.time() - made if end.state == "running" else end.lasted_ns / 1e9
    return {
        "run": run_dir.name,
        "run_dir": str(run_dir.resolve()),
        "state": end.state,
        "reason": end.reason,
        "started_at": started or time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(made)),
        "lasted_s": lasted_s if lasted_s or end.state == "running" else None,
    }
