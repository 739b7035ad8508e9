"""Report of a campaign: each kind of failure with the command that shows it again, and what the faults covered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from flowdist.cli.shared.terminal import paint
from flowdist.report.table import table
from flowdist.testing.campaign import replay_command
from flowdist.testing.corpus import kinds_of, seeds_text

KINDS_MAX = 10
PHASES = ("starting", "steady", "saving", "in recovery", "restoring", "ending")


def campaign_dict(report: Any, target: str, options: list[str]) -> dict[str, Any]:
    """Return the report of a campaign as --json prints it.

    Args:
        report: The report.
        target: The topology, as the command line names it; empty for the default.
        options: Words of the command line that a replay needs besides the target.
    """
    failures = [{**each._asdict(), "replay": replay_command(target, options, each)} for each in report.failures]
    coverage = [{"kind": kind, "phase": phase, "faults": count} for (kind, phase), count in report.coverage.items()]
    return {
        "seeds": report.seeds,
        "recoveries": report.recoveries,
        "collectives": report.collectives,
        "failures": failures,
        "coverage": coverage,
        "unseen": report.unseen,
        "points": report.points,
        "never_seen": [*report.never_seen, *report.never_reached],
        "alike": [kind.seeds for kind in kinds_of(report.failures)],
        "stopped": report.stopped,
        "raised": report.raised,
        "outdated": [known._asdict() for known in report.outdated],
    }


def show_failures(report: Any, target: str, options: list[str], most: int | None) -> None:
    """Print each kind of failure: its shortest plan, the events around its cause, and the command that shows it again.

    At most `KINDS_MAX` kinds are printed.

    Args:
        report: The report of the campaign.
        target: The topology, as the command line names it; empty for the default.
        options: Words of the command line that a replay needs besides the target.
        most: Number of the last events that are shown; None: all.
    """
    kinds = kinds_of(report.failures)
    for failure, alike in kinds[:KINDS_MAX]:
        _show_failure(failure, alike, target, options, most)
    if len(kinds) > KINDS_MAX:
        click.echo(f"... and {len(kinds) - KINDS_MAX} kinds of failures more\n")


def _show_failure(failure: Any, alike: Any, target: str, options: list[str], most: int | None) -> None:
    """Print one failure, for all seeds in `alike` that failed in the same way."""
    paint(f"{seeds_text(failure, alike)}: {failure.property}", fg="red")
    click.echo(f"  {failure.text}")
    click.echo(f"  shortest plan: {', '.join(failure.faults) or 'none: it fails without a fault'}")
    if failure.needs:
        click.echo(f"  it needs: {failure.needs}")
    if failure.divergence:
        click.echo(f"  {failure.divergence}")
    if failure.waiting and "waiting for " not in failure.text:
        click.echo(f"  waiting for {', '.join(failure.waiting)}")
    click.echo(f"  again: {replay_command(target, options, failure)}")
    shown = failure.trace[:most]
    if shown:
        more = " (--full: more)" if len(failure.trace) > len(shown) else ""
        click.echo(f"  its trace around the cause{more}")
    for line in shown:
        click.echo(f"    {line}")
    click.echo()


def show_coverage(report: Any) -> None:
    """Print how many seeds hold, which faults hit which phase of the job, and what no seed reached."""
    if report.stopped:
        click.echo(f"stopped: {report.stopped}", err=True)
    if not report.recoveries and not report.coverage and report.failures:
        return
    good = report.seeds - len(report.failures)
    click.echo(f"{good} of {report.seeds} seeds hold; {report.recoveries} recoveries\n")
    if report.raised:
        seed, text = next(iter(report.raised.items()))
        survived = f"an exception in user code was survived as the exit of a worker in {len(report.raised)} of them"
        click.echo(f"{survived}, as in seed {seed}: {text} (with strict=True, `explore` of flowdist.testing fails)\n")
    if report.collectives:
        runs = ", ".join(f"they {how} in {count}" for how, count in report.collectives.items())
        click.echo(f"The peers of a worker that dies: {runs} runs, else they wait\n")
    click.echo("Faults, by kind and by the phase of the job that they hit")
    _show_table(_coverage_rows(report.coverage))
    if report.points:
        click.echo("\nPoints, and in how many runs they were seen")
        _show_table([(point, str(runs or "-")) for point, runs in report.points.items()])
    if not report.stopped:
        _show_missing(report)


def _show_table(rows: list[tuple[str, ...]]) -> None:
    click.echo("\n".join(table(rows)))


def _show_missing(report: Any) -> None:
    """Print the phases and points that no seed reached, on stderr; nothing if there are none."""
    if report.unseen or report.never_reached:
        never = [*(f"{phase} (a phase)" for phase in report.unseen), *report.never_reached]
        click.echo(f"\nnever hit: {', '.join(never)}; more seeds would", err=True)
    if report.never_seen:
        click.echo(f"\nnever seen: {', '.join(report.never_seen)}", err=True)


def _coverage_rows(coverage: dict[tuple[str, str], int]) -> list[tuple[str, ...]]:
    """Return the rows of a table: for each kind of fault, how many hit each phase of the job."""
    kinds: Iterable[str] = dict.fromkeys(kind for kind, _ in coverage)
    rows: list[tuple[str, ...]] = [("", *PHASES)]
    rows += [(kind, *(str(coverage.get((kind, phase), "-")) for phase in PHASES)) for kind in kinds]
    return rows
