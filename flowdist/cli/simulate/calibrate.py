"""`flowdist calibrate`: the times of the workers, measured in recorded runs, for the simulator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from flowdist.cli.shared.common import print_json, verb, write
from flowdist.cli.shared.options import json_option
from flowdist.cli.shared.records import RecordFile, open_record
from flowdist.cli.shared.runs import complete_run
from flowdist.errors import FlowdistError
from flowdist.graph import format_duration
from flowdist.record.reader import BadLine, WholeRecord
from flowdist.record.replay import Replay
from flowdist.sim.calibration.calibration import Calibration, calibrate
from flowdist.sim.calibration.file import calibration_text
from flowdist.sim.calibration.fit import rounded
from flowdist.sim.calibration.observe import observe
from flowdist.sim.experiment.compare import Comparison
from flowdist.sim.experiment.predict import held_out
from flowdist.text.printable import table


@verb("calibrate")
@click.argument("runs", nargs=-1, required=True, shell_complete=complete_run)
@click.option("-o", "file", type=click.Path(dir_okay=False), help="Write the times to this file: workload.toml.")
@json_option
def command(runs: tuple[str, ...], file: str | None, as_json: bool) -> None:
    """Measure the times of the workers in the journals of runs, for the simulator.

    \b
    flowdist calibrate runs/a runs/b -o workload.toml
    flowdist simulate topology.py --workload workload.toml --fail node1@3m
    flowdist replay runs/a --workload workload.toml --fail node1@3m

    Shows each duration with its distribution, what the runs cannot tell, and how well each run is predicted by the
    others; a single run, by its first two thirds. Of a damaged journal the lines before the damage count, and the exit
    code is 2.
    """
    records = [_read(name) for name in runs]
    usable = [run for _, run in records]
    found = calibrate([observe(run.header, run.lines) for run in usable])
    predictions = list(zip(runs, held_out(usable), strict=True))
    if file is not None:
        write(Path(file), calibration_text(found, runs).encode())
    if as_json:
        print_json("calibration", **_as_values(found, runs, predictions))
    else:
        _show(found, runs, predictions)
        click.echo(f"\nwrote {file}" if file is not None else "\nto use the times: add -o workload.toml")
    for record, _ in records:
        record.finish()
    sys.exit(0)


def _read(name: str) -> tuple[RecordFile, WholeRecord]:
    """Read a record up to its end, or to the first line that cannot be used or replayed, which `bad` then names."""
    record = open_record(name)
    replay, lines = Replay(record.header, source=str(record.path)), []
    try:
        for line in record:
            replay.hear(line)
            lines.append(line)
    except BadLine as bad:
        record.bad = bad
    if replay.difference is not None:
        click.echo(f"warning: {name}: {replay.difference.text}; its incidents may not be those of the run", err=True)
    if not any(replica.attempt for replica in replay.job.replicas.values()):
        raise record.bad or FlowdistError(f"{name}: no worker ever started", help="name a run in which workers ran")
    return record, WholeRecord(name, record.header, lines)


def _show(found: Calibration, runs: tuple[str, ...], predictions: list[tuple[str, Comparison]]) -> None:
    """Print the distributions, what is unknown, and the errors on what was held out."""
    click.echo(f"calibrated from {', '.join(runs)}")
    for name, times in found.roles.items():
        click.echo(f"\n{name}")
        if times.measured:
            click.echo("\n".join(table([(what, each.text) for what, each in times.measured.items()])))
        for text in times.silent:
            click.echo(f"  {text}")
        for text in times.unknown:
            click.echo(f"  the runs cannot tell {text}")
    if found.job:
        click.echo("\nflowdist itself")
        click.echo("\n".join(table([(what, each.text) for what, each in found.job.items()])))
    by = "the others" if len(predictions) > 1 else "its first two thirds"
    click.echo(f"\nheld out: each run, predicted by {by}")
    click.echo("\n".join(table(_rows(predictions))))
    for name, each in predictions:
        for text in each.differences:
            click.echo(f"  {name}: another decision (run / prediction): {text}")


def _rows(predictions: list[tuple[str, Comparison]]) -> list[tuple[str, ...]]:
    """Return the table of predictions: a row of headings, then one for each figure of each run."""
    rows: list[tuple[str, ...]] = [("run", "figure", "real", "predicted", "error")]
    for name, each in predictions:
        for figure in each.figures:
            times = [format_duration(rounded(ns)) for ns in (figure.real_ns, figure.predicted_ns)]
            error = "-" if figure.error is None else f"{100 * figure.error:.1f} %"
            rows.append((name, figure.what, *times, error))
    return rows


def _as_values(found: Calibration, runs: tuple[str, ...], predictions: list[tuple[str, Comparison]]) -> dict[str, Any]:
    """Return the calibration and the held-out errors as plain values, for --json."""
    roles = {
        name: {
            "workload": times.fields,
            "measured": {what: each._asdict() for what, each in times.measured.items()},
            "unknown": [*times.silent, *times.unknown],
        }
        for name, times in found.roles.items()
    }
    outs = [
        {
            "run": name,
            "figures": [{**figure._asdict(), "error": figure.error} for figure in each.figures],
            "decisions": each.differences,
        }
        for name, each in predictions
    ]
    job = {what: each._asdict() for what, each in found.job.items()}
    return {"runs": list(runs), "roles": roles, "job": job, "arrival_ns": found.arrival_ns, "held_out": outs}
