"""`flowdist diff`: the first difference between two records."""

from __future__ import annotations

import sys

import click

from flowdist.cli.shared.common import print_json, verb
from flowdist.cli.shared.records import RecordFile, find_record
from flowdist.report.record.divergence import Side, divergence, divergence_of, divergence_text


@verb("diff")
@click.argument("a")
@click.argument("b")
@click.option("--context", type=click.IntRange(min=0), default=3, help="Lines shown before and after (default: 3).")
@click.option("--no-times", is_flag=True, help="Compare events and decisions, but not their times.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(a: str, b: str, context: int, no_times: bool, as_json: bool) -> None:
    """Show the first difference between two records, with the decisions of both controllers there.

    \b
    flowdist diff before.jsonl after.jsonl       two traces of flowdist simulate --trace
    flowdist diff --no-times runs/x runs/y       two real runs, whose times always differ

    A and B are traces, or runs: names in runs/, or folders. Exit code 0 if nothing but the headers differs,
    else 1.
    """
    records = [RecordFile(find_record(name)) for name in (a, b)]
    sides = [Side(name, record.header, list(record)) for name, record in zip((a, b), records, strict=True)]
    found = divergence(sides[0], sides[1], times=not no_times)
    if as_json:
        print_json("diff", **divergence_of(found, context))
    else:
        click.echo(divergence_text(found, context), nl=False)
    for record in records:
        record.finish()
    sys.exit(0 if found.is_none else 1)
