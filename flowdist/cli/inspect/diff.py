"""`flowdist diff`: the first difference between two records, or two records of one job incident by incident."""

from __future__ import annotations

import sys

import click

from flowdist.cli.shared.common import print_json, verb
from flowdist.cli.shared.records import RecordFile, find_record, refuse_macro
from flowdist.cli.shared.runs import complete_run
from flowdist.errors import FlowdistError
from flowdist.graph import format_duration
from flowdist.record.reader import WholeRecord
from flowdist.report.record.divergence import divergence, divergence_of, divergence_text
from flowdist.sim.experiment.compare import Comparison, compare
from flowdist.sim.experiment.outcome import of_record
from flowdist.text.printable import joined, table

SIDE = ("outcome", "lasted_ns", "lost_ns")


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
        sides = [WholeRecord(name, record.header, list(record)) for name, record in zip((a, b), records, strict=True)]
        found = divergence(*sides, times=not no_times)
        is_same = found.is_none
        if as_json:
            print_json("diff", **divergence_of(found, context))
        else:
            click.echo(divergence_text(found, context), nl=False)
    for record in records:
        record.finish()
    sys.exit(0 if is_same else 1)


def _by_incident(records: list[RecordFile], names: tuple[str, str], as_json: bool) -> bool:
    """Print the outcomes of both side by side; return whether all decisions are the same."""
    outcomes = []
    for record, name in zip(records, names, strict=True):
        refuse_macro(record.header, name)
        outcomes.append(of_record(record.header, record))
    found = compare(*outcomes)
    differences = found.differences
    if as_json:
        pairs = [[one and one._asdict() for one in pair] for pair in found.pairs]
        for values in filter(None, [one for pair in pairs for one in pair]):
            del values["lost_ns"]  # the records do not say what one incident cost
        sides = {key: {name: getattr(one, name) for name in SIDE} for key, one in zip("ab", outcomes, strict=True)}
        print_json("diff", same_decisions=not differences, differences=differences, **sides, incidents=pairs)
    else:
        click.echo(_side_by_side(found, differences, names), nl=False)
    return not differences


def _side_by_side(found: Comparison, differences: list[str], names: tuple[str, str]) -> str:
    """Return a table of incidents and costs of two records, and each decision that differs."""
    a, b = found
    rows: list[tuple[str, ...]] = [("", "A", "B", "B is longer by")]
    rows.append(("outcome", a.outcome or "unfinished", b.outcome or "unfinished", ""))
    rows.append(("lasted", *_times(a.lasted_ns, b.lasted_ns)))
    for one, other in found.pairs:
        known = one or other
        assert known is not None
        label = f"{known.number}. {known.kind} of {known.root}"
        rows.append((f"{label}: at", *_times(one and one.opened_ns, other and other.opened_ns)))
        rows.append(("   until the next step", *_times(one and one.next_step_ns, other and other.next_step_ns)))
    for role in a.lost_ns:
        if a.lost_ns[role] or b.lost_ns.get(role):
            rows.append((f"lost work of {role}", *_times(a.lost_ns[role], b.lost_ns.get(role))))
    lines = [f"A  {names[0]}", f"B  {names[1]}", "", *table(rows), ""]
    if not differences:
        return joined([*lines, f"the same decisions: {len(found.pairs)} incidents"])
    return joined([*lines, "decisions that differ (A / B):", *(f"  {text}" for text in differences)])


def _times(one: int | None, other: int | None) -> tuple[str, str, str]:
    """Return two durations in ns and their difference, for people; `-` for what is not known."""
    texts = [format_duration(round(ns, -6)) if ns is not None else "-" for ns in (one, other)]
    more = "-" if one is None or other is None else format_duration(round(other - one, -6))
    return texts[0], texts[1], more
