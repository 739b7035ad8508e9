"""`flowdist report`: the result of a run on one page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flowdist.cli.shared.common import print_json, verb
from flowdist.cli.shared.records import RecordFile, replay_of
from flowdist.cli.shared.runs import RunOptions, run_options
from flowdist.cli.shared.workloads import workload_option
from flowdist.report.record.spending import time_of_run
from flowdist.report.record.summary import summary_of, summary_text
from flowdist.runtime.run_folder.folder import SUMMARY
from flowdist.runtime.run_folder.results import Summary
from flowdist.runtime.run_folder.root_cause import root_cause_text
from flowdist.runtime.run_folder.runs import environment_of, known_mask, not_hidden, resume_help, state_of
from flowdist.runtime.saved_files import read_saved
from flowdist.text.printable import one_line

if TYPE_CHECKING:
    from flowdist.runtime.run_folder.resume import End
    from flowdist.runtime.worker_env.secret_values import Mask


@verb("report")
@run_options
@workload_option
def command(named: RunOptions, workload_file: str | None) -> None:
    """Report a run: its end and the reason, goodput and use of time, each incident with what it restarted and which
    role paid, and the root cause. With --workload, what the simulator expects of the run stands beside what happened.

    \b
    flowdist report                  the newest run, running or over
    flowdist report word2vec-2026 --json
    flowdist report --workload workload.toml     predicted with these times, beside what happened

    RUN is the run's name, the beginning of its name, or its folder. flowdist timeline draws the run, flowdist replay
    shows it event by event.
    """
    run_dir, graph = named.find()
    end = state_of(run_dir)
    mask = known_mask(graph, os.environ)
    over = end.state not in ("running", "died")
    written = _written_summary(run_dir, end) if over else None
    record, summary = (None, written) if written is not None else _from_journal(run_dir)
    summary |= {"root_cause": mask(summary["root_cause"])}
    if summary["root_cause"] and written is None and (warning := not_hidden(graph, os.environ)):
        click.echo(
            f"warning: {warning}", err=True
        )  # the root cause quotes a log, which is not masked; the written summary is
    starts = environment_of(run_dir)
    predicted = _predicted(run_dir, workload_file, summary)
    if named.as_json:
        more: dict[str, Any] = {"run": run_dir.name, "run_dir": str(run_dir), "state": end.state, "starts": starts}
        more |= {"predicted": predicted}
        print_json("report", **{**summary, **more})  # the folder may have been moved since the summary was written
    else:
        _show(run_dir, end, summary, starts, mask, _predicted_lines(predicted))
    if record is not None:
        record.finish()


def _predicted(run_dir: Path, workload_file: str | None, summary: dict[str, Any]) -> dict[str, Any] | None:
    """Return the prediction of the run with the times of a workload.toml beside what it was; None without such a file.

    Raises:
        FlowdistError: The run cannot be predicted with this workload.toml.
    """
    if workload_file is None:
        return None
    from flowdist.cli.shared.predicted import predicted  # the simulator: not needed by other reports

    return predicted(run_dir, workload_file, summary)


def _predicted_lines(predicted: dict[str, Any] | None) -> list[str]:
    """Return the lines of the prediction; none if none was asked for."""
    if predicted is None:
        return []
    from flowdist.cli.shared.predicted import predicted_text  # as above

    return ["", *predicted_text(predicted)]


def _show(
    run_dir: Path,
    end: End,
    summary: dict[str, Any],
    starts: list[dict[str, Any]],
    mask: Mask,
    predicted: list[str],
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


def _written_summary(run_dir: Path, end: End) -> dict[str, Any] | None:
    """Return the summary that the run wrote at its end; None if there is none that this version of flowdist can use.

    A summary with another outcome than `end`, which comes from the journal if that has it, is not used either.
    """
    summary: dict[str, Any] | None = read_saved(run_dir / SUMMARY, Summary)
    return summary if summary is not None and summary["outcome"] == end.state else None


def _from_journal(run_dir: Path) -> tuple[RecordFile, dict[str, Any]]:
    """Return the journal, whose `finish` has to be called, and the summary of what can be read of it.

    Raises:
        FlowdistError: The journal cannot be read from its beginning, or does not replay (`ReplayError`).
    """
    record, replay, faults = replay_of(run_dir / "journal.jsonl", strict=True)
    job = replay.job
    cause = root_cause_text(job, run_dir) if job.outcome == "failed" else ""
    return record, {**summary_of(job, faults), **time_of_run(job.graph, replay.sheet), "root_cause": cause}
