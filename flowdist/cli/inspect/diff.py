"""`flowdist diff`: the first difference between two records, or two records of one job incident by incident."""

from __future__ import annotations

import sys

import click

from flowdist.cli.shared.common import print_json, verb
from flowdist.cli.shared.completion import complete_run
from flowdist.cli.shared.records import RecordFile, find_record, refuse_macro
from flowdist.errors import FlowdistError
from flowdist.record.story import align, story_of
from flowdist.report.record.divergence import Side, divergence, divergence_of, divergence_text
from flowdist.report.record.side_by_side import side_by_side_of, side_by_side_text


@verb("diff")
@click.argument("a", shell_complete=complete_run)
@click.argument("b", shell_complete=complete_run)
@click.option("--context", type=click.IntRange(min=0), default=3, help="Lines shown before and after (default: 3).")
@click.option("--no-times", is_flag=True, help="Compare events and decisions, but not their times.")
@click.option(
    "--by",
    type=click.Choice(["line", "incident"]),
    help="What is compared (default: incidents if one record is of a run and the other of a simulation, else lines).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(a: str, b: str, context: int, no_times: bool, by: str | None, as_json: bool) -> None:
    """Show the first difference between two records, or compare their incidents and decisions.

    \b
    flowdist diff before.jsonl after.jsonl       two traces of flowdist simulate --trace, line by line
    flowdist diff --no-times runs/x runs/y       two real runs, whose times always differ
    flowdist diff runs/x trace.jsonl             a run and its simulation, incident by incident

    A and B are traces, or runs: names in runs/, or folders. Exit code 0 if nothing but the headers differs, or if
    incident by incident all decisions are the same, else 1.
    """
    records = [RecordFile(find_record(name)) for name in (a, b)]
    is_mixed = len({bool(record.header.run_id) for record in records}) == 2
    if by == "incident" and (no_times or context != 3):
        raise FlowdistError("--by incident goes without --no-times and --context", help="leave them out")
    if by == "incident" or (by is None and is_mixed and not no_times):
        is_same = _by_incident(records, (a, b), as_json)
    else:
        is_same = _by_line(records, (a, b), context, as_json, times=not no_times)
    for record in records:
        record.finish()
    sys.exit(0 if is_same else 1)


def _by_line(records: list[RecordFile], names: tuple[str, str], context: int, as_json: bool, *, times: bool) -> bool:
    """Print the first line that differs; return whether none does."""
    sides = [Side(name, record.header, list(record)) for name, record in zip(names, records, strict=True)]
    found = divergence(sides[0], sides[1], times=times)
    if as_json:
        print_json("diff", **divergence_of(found, context))
    else:
        click.echo(divergence_text(found, context), nl=False)
    return found.is_none


def _by_incident(records: list[RecordFile], names: tuple[str, str], as_json: bool) -> bool:
    """Print both stories side by side; return whether all decisions are the same.

    Raises:
        FlowdistError: A record is of macro mode, or has a line that cannot be replayed.
    """
    stories = []
    for record, name in zip(records, names, strict=True):
        refuse_macro(record.header, name)
        stories.append(story_of(record.header, record))
    found = align(*stories)
    if as_json:
        print_json("diff", **side_by_side_of(found))
    else:
        click.echo(side_by_side_text(found, names), nl=False)
    return not found.differences
