"""`flowdist simulate --explore`: many seeds, each with faults that the topology has to survive."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click

from flowdist.cli.shared.common import Named, print_json
from flowdist.cli.simulate.demands import Demands
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph

SHOWN_MAX = 10
LAST_EVENTS = 20  # of a run that fails, without --full
PHASES = ("starting", "steady", "saving", "in recovery", "restoring", "ending")


class Exploration(NamedTuple):
    """What the command line asks for."""

    seeds: range
    jobs: int
    corpus: Path | None
    fail_fast: bool
    cover: bool
    is_full: bool = False
    collective: str | None = None  # else each seed draws it


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


def explore(graph: RoleGraph, named: Named, wanted: Exploration, demands: Demands) -> None:
    """Run the campaign, show what broke and how to see it again, and end with 0 or 3."""
    from flowdist.testing.campaign import campaign  # processes: only when something is explored
    from flowdist.testing.corpus import Corpus

    corpus = Corpus(wanted.corpus) if wanted.corpus is not None else None
    known = corpus.open() if corpus is not None else []
    seeds = list(dict.fromkeys([*(one.seed for one in known), *wanted.seeds]))
    properties, bounds = demands.properties(named), demands.bounds
    tried: dict[int, None] = {}
    with _Progress(len(seeds), quiet=named.as_json) as progress:

        def tell(verdict: Any) -> None:
            tried[verdict.seed] = None
            progress.hear(verdict)
            if corpus is not None and verdict.failure is not None:
                corpus.keep([verdict.failure])  # at once: the campaign may be killed

        options: dict[str, Any] = {"fail_fast": wanted.fail_fast, "properties": properties, "bounds": bounds}
        report = campaign(graph, seeds, jobs=wanted.jobs, known=known, tell=tell, **options)
    failed = {failure.seed for failure in report.failures}
    before = dict.fromkeys(one.seed for one in known)
    held = [seed for seed in before if seed in tried and seed not in failed]
    if corpus is not None:
        corpus.keep(report.failures)
    never = [*report.never_seen, *((*report.unseen, *report.never_reached) if wanted.cover else ())]
    is_red = bool(report.failures or (never and not report.stopped))
    again = [*_options(named), *demands.words()]
    again += ["--collective", wanted.collective] if wanted.collective is not None else []
    if named.as_json:
        print_json("exploration", **_as_values(report, named.target or "", again), holds_now=held)
    else:
        _show_failures(report, named.target or "", again, None if wanted.is_full else LAST_EVENTS)
        _show_coverage(report)
        if report.outdated:
            count, plans = len(report.outdated), "plans name" if len(report.outdated) > 1 else "plan names"
            click.echo(f"\n{count} {plans} what this topology does not have; {wanted.corpus} keeps them")
        if held:
            more = f" and {len(held) - SHOWN_MAX} more" if len(held) > SHOWN_MAX else ""
            names = ", ".join(map(str, held[:SHOWN_MAX]))
            click.echo(
                f"\nfailed before, and hold now: seeds {names}{more}; {wanted.corpus} keeps them, to be tried first"
            )
    if report.stopped == "interrupted":
        sys.exit(130)
    sys.exit(3 if is_red else 0)


def _options(named: Named) -> list[str]:
    words = [word for param in named.params for word in ("-p", param)]
    words += [word for text in named.sets for word in ("--set", text)]
    return words + (["--nodes", named.nodes] if named.nodes is not None else [])


def _as_values(report: Any, target: str, options: list[str]) -> dict[str, Any]:
    from flowdist.testing.campaign import replay_command
    from flowdist.testing.deduplication import kinds_of

    failures = [
        {**failure._asdict(), "replay": replay_command(target, options, failure)} for failure in report.failures
    ]
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
        "outdated": [known._asdict() for known in report.outdated],
    }


def _show_failures(report: Any, target: str, options: list[str], most: int | None) -> None:
    """Each with all that one needs to understand it; `most` is how many of the last events are shown."""
    from flowdist.testing.campaign import replay_command
    from flowdist.testing.deduplication import kinds_of, seeds_text

    kinds = kinds_of(report.failures)
    for failure, alike in kinds[:SHOWN_MAX]:
        click.secho(f"{seeds_text(failure, alike)}: {failure.property}", fg="red")
        click.echo(f"  {failure.text}")
        click.echo(f"  shortest plan: {', '.join(failure.faults) or 'none: it fails without a fault'}")
        if failure.divergence:
            click.echo(f"  {failure.divergence}")
        if failure.waiting and "waiting for " not in failure.text:
            click.echo(f"  waiting for {', '.join(failure.waiting)}")
        click.echo(f"  again: {replay_command(target, options, failure)}")
        shown = failure.last if most is None else failure.last[-most:]
        if shown:
            click.echo(f"  the last {len(shown)} lines of its trace" + ("" if most is None else " (--full: more)"))
        for line in shown:
            click.echo(f"    {line}")
        click.echo()
    if len(kinds) > SHOWN_MAX:
        click.echo(f"... and {len(kinds) - SHOWN_MAX} kinds of failures more\n")


def _show_coverage(report: Any) -> None:
    from flowdist.report.table import table

    if report.stopped:
        click.echo(f"stopped: {report.stopped}", err=True)
    if not report.recoveries and not report.coverage and report.failures:
        return
    good = report.seeds - len(report.failures)
    click.echo(f"{good} of {report.seeds} seeds hold; {report.recoveries} recoveries\n")
    if report.collectives:
        runs = ", ".join(f"they {how} in {count}" for how, count in report.collectives.items())
        click.echo(f"The peers of a worker that dies: {runs} runs, else they wait\n")
    click.echo("Faults, by kind and by the phase of the job that they hit")
    for line in table(_coverage_rows(report.coverage)):
        click.echo(line)
    if report.points:
        click.echo("\nPoints, and in how many runs they were seen")
        for line in table([(point, str(runs or "-")) for point, runs in report.points.items()]):
            click.echo(line)
    if report.stopped:
        return
    if report.unseen or report.never_reached:
        never = [*(f"{phase} (a phase)" for phase in report.unseen), *report.never_reached]
        click.echo(f"\nnever hit: {', '.join(never)}; more seeds would", err=True)
    if report.never_seen:
        click.echo(f"\nnever seen: {', '.join(report.never_seen)}", err=True)


def _coverage_rows(coverage: dict[tuple[str, str], int]) -> list[tuple[str, ...]]:
    kinds: Iterable[str] = dict.fromkeys(kind for kind, _ in coverage)
    rows: list[tuple[str, ...]] = [("", *PHASES)]
    rows += [(kind, *(str(coverage.get((kind, phase), "-")) for phase in PHASES)) for kind in kinds]
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
