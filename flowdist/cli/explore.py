"""`flowdist simulate --explore`: many seeds, each with faults that the topology has to survive."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click

from flowdist.cli.common import Named, print_json
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph

SHOWN_MAX = 10


class Exploration(NamedTuple):
    """What the command line asks for."""

    seeds: range
    jobs: int
    corpus: Path | None
    fail_fast: bool
    cover: bool


def read_exploration(
    explore: int | None, seeds: str | None, jobs: int, corpus: str | None, fail_fast: bool, cover: bool
) -> Exploration | None:
    """None when nothing is to be explored; FlowdistError for seeds that cannot be read."""
    if explore is None and seeds is None:
        return None
    chosen = range(1, (explore or 0) + 1)
    if seeds is not None:
        first, colon, last = seeds.partition(":")
        if not (first.isdigit() and (last.isdigit() or not colon)):
            raise FlowdistError(f"--seeds {seeds} cannot be read", help="write --seeds 17, or --seeds 100:200")
        chosen = range(int(first), int(last) + 1 if colon else int(first) + 1)
    if not chosen:
        raise FlowdistError("there is no seed to try", help="write --explore 1000, or --seeds 1:1000")
    return Exploration(chosen, jobs, Path(corpus) if corpus is not None else None, fail_fast, cover)


def explore(graph: RoleGraph, named: Named, wanted: Exploration) -> None:
    """Run the campaign, show what broke and how to see it again, and end with 0 or 3."""
    from flowdist.testing.campaign import Corpus, campaign  # processes: only when something is explored

    corpus = Corpus(wanted.corpus) if wanted.corpus is not None else None
    before = corpus.seeds() if corpus is not None else []
    seeds = list(dict.fromkeys([*before, *wanted.seeds]))
    with _Progress(len(seeds), quiet=named.as_json) as progress:
        report = campaign(graph, seeds, jobs=wanted.jobs, fail_fast=wanted.fail_fast, tell=progress.hear)
    if corpus is not None:
        corpus.keep(report.failures)
    is_red = bool(report.failures) or (wanted.cover and bool(report.unseen))
    if named.as_json:
        print_json("exploration", **_as_values(report, named))
    else:
        _show(report, named)
    sys.exit(3 if is_red else 0)


def _options(named: Named) -> list[str]:
    words = [word for param in named.params for word in ("-p", param)]
    words += [word for text in named.sets for word in ("--set", text)]
    return words + (["--nodes", named.nodes] if named.nodes is not None else [])


def _as_values(report: Any, named: Named) -> dict[str, Any]:
    from flowdist.testing.campaign import replay_command

    failures = [
        {**failure._asdict(), "replay": replay_command(named.target or "", _options(named), failure)}
        for failure in report.failures
    ]
    coverage = [{"kind": kind, "phase": phase, "faults": count} for (kind, phase), count in report.coverage.items()]
    return {
        "seeds": report.seeds,
        "recoveries": report.recoveries,
        "failures": failures,
        "coverage": coverage,
        "unseen": report.unseen,
    }


def _show(report: Any, named: Named) -> None:
    from flowdist.report.table import table
    from flowdist.testing.campaign import replay_command

    for failure in report.failures[:SHOWN_MAX]:
        click.secho(f"seed {failure.seed}: {failure.property}", fg="red")
        click.echo(f"  {failure.text}")
        click.echo(f"  shortest plan: {', '.join(failure.faults) or 'none: it fails without a fault'}")
        if failure.divergence:
            click.echo(f"  {failure.divergence}")
        if failure.waiting:
            click.echo(f"  waiting for {', '.join(failure.waiting)}")
        click.echo(f"  again: {replay_command(named.target or '', _options(named), failure)}\n")
    if len(report.failures) > SHOWN_MAX:
        click.echo(f"... and {len(report.failures) - SHOWN_MAX} more\n")
    good = report.seeds - len(report.failures)
    click.echo(f"{good} of {report.seeds} seeds hold; {report.recoveries} recoveries\n")
    click.echo("Faults, by kind and by the phase of the job that they hit")
    for line in table(_coverage_rows(report.coverage)):
        click.echo(line)
    if report.unseen:
        click.echo(f"\nnever hit: {', '.join(report.unseen)}; more seeds would", err=True)


def _coverage_rows(coverage: dict[tuple[str, str], int]) -> list[tuple[str, ...]]:
    phases = ["starting", "steady", "in recovery", "ending"]
    if any(phase == "saving" for _, phase in coverage):
        phases.insert(2, "saving")
    kinds: Iterable[str] = dict.fromkeys(kind for kind, _ in coverage)
    rows: list[tuple[str, ...]] = [("", *phases)]
    rows += [(kind, *(str(coverage.get((kind, phase), "-")) for phase in phases)) for kind in kinds]
    return rows


class _Progress:
    """A bar with the time that is left, where somebody looks."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("exploring"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]} failed"),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self._task = self._bar.add_task("", total=total, failed=0)
        self._failed = 0

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def hear(self, verdict: Any) -> None:
        self._failed += verdict.failure is not None
        self._bar.update(self._task, advance=1, failed=self._failed)
