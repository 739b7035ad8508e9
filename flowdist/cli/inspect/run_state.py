"""Verbs about how a run goes, and how it has ended: `status` in short, `report` on one page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from flowdist.cli.shared.common import print_json, rich_console, verb
from flowdist.cli.shared.options import workload_option
from flowdist.cli.shared.records import RecordFile, replay_of
from flowdist.cli.shared.runs import RunOptions, run_options, statuses
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.report.live.status import fitted, status_text
from flowdist.report.live.status import one_line as status_line
from flowdist.report.record.samples import ledgers_text
from flowdist.report.record.spending import time_of_run
from flowdist.report.record.summary import summary_of, summary_text
from flowdist.runtime.run_folder.folder import SUMMARY
from flowdist.runtime.run_folder.root_cause import root_cause_text
from flowdist.runtime.run_folder.runs import (
    ControllerIsPrivate,
    describe,
    environment_of,
    known_mask,
    not_hidden,
    resume_help,
    state_of,
    status_at_end,
    written_status,
)
from flowdist.runtime.saved_files import read_sealed
from flowdist.text.printable import joined, one_line

if TYPE_CHECKING:
    from flowdist.record.status import Status
    from flowdist.runtime.run_folder.resume import End
    from flowdist.runtime.worker_env.secret_values import Mask

WATCH_S = 1.0


@verb("status")
@run_options
@click.option("--watch", "-w", is_flag=True, help="Show it once a second until the run is over.")
@click.option("--plain", is_flag=True, help="With --watch: print a line for each change, on a terminal too.")
def status(named: RunOptions, watch: bool, plain: bool) -> None:
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
    _show_status(run_dir, graph, named.as_json)


def _show_status(run_dir: Path, graph: RoleGraph, as_json: bool) -> None:
    """Print the status of a run: its controller's answer, or, once it is over, the status written at its end.

    Without either, and for a controller that does not answer this user, it is replayed from the journal.
    """
    end, record = state_of(run_dir), None
    if end.state == "running":
        try:
            found = describe(run_dir)
        except ControllerIsPrivate:
            record, found = _last_status(run_dir)
        except FlowdistError:
            end = state_of(run_dir)
            if end.state == "running":
                raise
    if end.state != "running":
        written = written_status(run_dir) if end.state != "died" else None
        record, found = (None, written) if written is not None else _last_status(run_dir)
    state = end.state if end.state != "running" else found.state
    if as_json:
        content = msgspec.to_builtins(found) | {"state": state, "run": run_dir.name, "run_dir": str(run_dir)}
        print_json("status", **content)
    else:
        click.echo(known_mask(graph, os.environ)(status_text(found, state=state)), nl=False)
        if end.state == "died":
            click.echo(f"\nthe run died without an end, and none of its processes runs; {resume_help(run_dir)}")
    if record is not None:
        record.finish()


def _last_status(run_dir: Path) -> tuple[RecordFile, Status]:
    """Return the journal of a run, whose `finish` has to be called, and the last status that can be read of it."""
    record, replay, _ = replay_of(run_dir / "journal.jsonl")
    return record, status_at_end(run_dir, record.header, replay)


def _watch(run_dir: Path, graph: RoleGraph, plain: bool) -> None:
    """Show the status about once a second until the run is over: as a picture, or `plain` as a line for each change."""
    mask = known_mask(graph, os.environ)
    if plain:
        last = ""
        for found in statuses(run_dir, WATCH_S):
            line = status_line(found)
            if (what := line.partition(" ")[2]) != last:  # the time alone is not a change
                click.echo(joined([mask(line)]), nl=False)
                last = what
        return
    from rich.live import Live  # only for a terminal

    from flowdist.report.live.terminal_view import picture_of

    console = rich_console()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        for found in statuses(run_dir, WATCH_S):
            live.update(picture_of(fitted(found, console.size.height - 1), mask), refresh=True)


@verb("report")
@run_options
@workload_option
@click.option("--samples", is_flag=True, help="Show which steps' samples count, and whether each was used once.")
def report(named: RunOptions, workload_file: str | None, samples: bool) -> None:
    """Report a run: its end and the reason, goodput and use of time, each incident with what it restarted and which
    role paid, and the root cause. With --workload, what the simulator expects of the run stands beside what happened.

    \b
    flowdist report                  the newest run, running or over
    flowdist report word2vec-2026 --json
    flowdist report --workload workload.toml     predicted with these times, beside what happened
    flowdist report --samples                    of scripts that use worker.samples(): was each sample used once?

    RUN is the run's name, the beginning of its name, or its folder. flowdist timeline draws the run, flowdist replay
    shows it event by event.
    """
    run_dir, graph = named.find()
    end = state_of(run_dir)
    mask = known_mask(graph, os.environ)
    written = read_sealed(run_dir / SUMMARY) if end.state not in ("running", "died") else None
    # the journal has another outcome, which counts; or this host has only joined, and its summary has the end alone
    if written is not None and (written["outcome"] != end.state or "roles" not in written):
        written = None
    record, summary = (None, written) if written is not None else _from_journal(run_dir)
    if samples:
        is_sure = _show_samples(summary.get("samples", {}), named.as_json)
        if record is not None:
            record.finish()
        sys.exit(0 if is_sure else 1)
    summary |= {"root_cause": mask(summary["root_cause"])}
    if summary["root_cause"] and written is None and (warning := not_hidden(graph, os.environ)):
        # the root cause quotes a log, which is not masked; the written summary is
        click.echo(f"warning: {warning}", err=True)
    starts = environment_of(run_dir)
    predicted, predicted_lines = None, list[str]()
    if workload_file is not None:
        from flowdist.cli.shared import predicted as simulated  # the simulator: not needed by other reports

        predicted = simulated.predicted(run_dir, workload_file, summary)
        predicted_lines = ["", *simulated.predicted_text(predicted)]
    if named.as_json:
        own = {"run": run_dir.name, "run_dir": str(run_dir), "state": end.state, "starts": starts}
        # the folder may have been moved since the summary was written
        print_json("report", **{**summary, **own, "predicted": predicted})
    else:
        _show_report(run_dir, end, summary, starts, mask, predicted_lines)
    if record is not None:
        record.finish()


def _show_samples(ledgers: dict[str, Any], as_json: bool) -> bool:
    """Print the ledger of samples, and return whether it shows that each sample was used once."""
    if as_json:
        print_json("samples", worlds=ledgers)
    else:
        click.echo(ledgers_text(ledgers), nl=False)
    return bool(ledgers) and not any(each["why_not_once"] for each in ledgers.values())


def _show_report(
    run_dir: Path, end: End, summary: dict[str, Any], starts: list[dict[str, Any]], mask: Mask, predicted: list[str]
) -> None:
    """Print the report as text: the name of the run, its starts, the summary, predictions, and where the rest is."""
    click.echo(f"{run_dir.name}\n")
    for start in starts:
        torch = f", torch {start.get('torch')}" if start.get("torch") else ""
        versions = f"flowdist {start.get('flowdist')}, Python {start.get('python')}{torch}"
        click.echo(one_line(f"started {start.get('started_at')} on {start.get('host')}: {versions}"))
    so_far = {"outcome": "running"} if end.state == "running" and not summary["outcome"] else {}
    click.echo(mask(summary_text({**summary, **so_far})), nl=False)
    for line in predicted:
        click.echo(mask(one_line(line)))
    if end.state == "died":
        click.echo(f"\nthe run died without an end, and none of its processes runs; {resume_help(run_dir)}")
    if summary["root_cause"]:
        click.echo("\n" + summary["root_cause"], nl=False)
    click.echo(f"\nlogs, journal and checkpoints: {run_dir}")


def _from_journal(run_dir: Path) -> tuple[RecordFile, dict[str, Any]]:
    """Return the journal, whose `finish` has to be called, and the summary of what can be read of it."""
    record, replay, faults = replay_of(run_dir / "journal.jsonl")
    job = replay.job
    cause = root_cause_text(job, run_dir) if job.outcome == "failed" else ""
    return record, {**summary_of(job, faults), **time_of_run(job.graph, replay.sheet), "root_cause": cause}
