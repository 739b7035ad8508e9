"""`flowdist simulate --explore`: many seeds, each with faults that the topology has to survive."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from flowdist.cli.shared.common import print_json
from flowdist.cli.shared.options import TopologyOptions, gathered
from flowdist.cli.shared.terminal import rich_console
from flowdist.cli.simulate.campaign_report import campaign_dict, show_coverage, show_failures
from flowdist.cli.simulate.demands import Demands
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.testing.campaign import campaign
from flowdist.testing.corpus import Corpus

SHOWN_MAX = 10  # seeds that are named in one line
LAST_EVENTS = 20  # lines of a failing run's trace that are shown without --full


class CampaignOptions(NamedTuple):
    """Seeds to try, how many processes try them, and when a campaign fails or stops."""

    explore: int | None = None
    seeds: str | None = None
    jobs: int = 1
    corpus: str | None = None
    fail_fast: bool = False
    alike: int = 10
    cover: bool = False

    def chosen(self) -> Sequence[int]:
        """Return the seeds of --seeds, else those of --explore.

        Raises:
            FlowdistError: --seeds cannot be read, or there is no seed.
        """
        chosen = range(1, (self.explore or 0) + 1)
        if self.seeds is not None:
            first, colon, last = self.seeds.partition(":")
            if not (first.isdigit() and (last.isdigit() or not colon)):
                raise FlowdistError(f"--seeds {self.seeds} cannot be read", help="write --seeds 17, or --seeds 100:200")
            chosen = range(int(first), int(last) + 1 if colon else int(first) + 1)
        if not chosen:
            raise FlowdistError("there is no seed to try", help="write --explore 1000, or --seeds 1:1000")
        return chosen


campaign_options = gathered(
    "campaign",
    CampaignOptions,
    click.option("--explore", type=click.IntRange(min=1), metavar="N", help="Try N seeds, each with faults at random."),
    click.option("--seeds", metavar="A[:B]", help="Try exactly these seeds, each with faults at random."),
    click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes that try seeds (default: 1)."),
    click.option("--corpus", metavar="FILE", help="Keep seeds that fail in this file, and try them first."),
    click.option("--fail-fast", is_flag=True, help="Stop at the first failure."),
    click.option(
        "--alike",
        type=click.IntRange(min=0),
        default=10,
        show_default=True,
        metavar="N",
        help="Stop after N failures that are alike; 0: never.",
    ),
    click.option("--cover", is_flag=True, help="Fail also if no fault hit some phase of the job."),
)


class Campaign(NamedTuple):
    """Campaign of simulations, one for each seed: the job, the seeds, the demands, and how failures are shown."""

    graph: RoleGraph
    named: TopologyOptions
    options: CampaignOptions
    seeds: Sequence[int]
    demands: Demands
    is_full: bool  # show all lines of a failing run's trace
    collective: str | None  # what the peers of a dead worker do; None: each seed draws it

    def run(self) -> None:
        """Try every seed, show what failed and how to see it again, and exit with 0, 3, or 130 if interrupted.

        Seeds that the corpus keeps are tried first; seeds that fail are added to it at once. The exit code is 3 for a
        failure, or for a point (with --cover: also a phase) that a whole campaign never reached.
        """
        corpus = Corpus(Path(self.options.corpus)) if self.options.corpus is not None else None
        known = corpus.open() if corpus is not None else []
        seeds = list(dict.fromkeys([*(each.seed for each in known), *self.seeds]))
        properties, bounds = self.demands.properties(self.named), self.demands.bounds
        tried: dict[int, None] = {}
        with _Progress(len(seeds), quiet=self.named.as_json) as progress:

            def tell(verdict: Any) -> None:
                tried[verdict.seed] = None
                progress.hear(verdict)
                if corpus is not None and verdict.failure is not None:
                    corpus.keep([verdict.failure])  # at once: the campaign may be killed

            settings: dict[str, Any] = {"fail_fast": self.options.fail_fast, "properties": properties, "bounds": bounds}
            settings["alike_max"] = self.options.alike or None
            report = campaign(self.graph, seeds, jobs=self.options.jobs, known=known, tell=tell, **settings)
        if corpus is not None:
            corpus.keep(report.failures)
        failed = {failure.seed for failure in report.failures}
        fixed = [seed for seed in dict.fromkeys(each.seed for each in known) if seed in tried and seed not in failed]
        self._show(report, fixed)
        if report.stopped == "interrupted":
            sys.exit(130)
        sys.exit(3 if self._is_red(report) else 0)

    def _is_red(self, report: Any) -> bool:
        """Return whether the campaign fails: a seed has failed, or points or phases were never reached.

        Phases count with --cover alone. A campaign that was stopped early need not reach anything.
        """
        never = [*report.never_seen]
        if self.options.cover:
            never += [*report.unseen, *report.never_reached]
        return bool(report.failures or (never and not report.stopped))

    def _show(self, report: Any, fixed: list[int]) -> None:
        """Print the report of the campaign; `fixed` are seeds of the corpus that hold now."""
        target = self.named.target or ""
        words = [*self.named.words(), *self.demands.words()]
        words += ["--collective", self.collective] if self.collective is not None else []
        if self.named.as_json:
            print_json("exploration", **campaign_dict(report, target, words), holds_now=fixed)
            return
        show_failures(report, target, words, None if self.is_full else LAST_EVENTS)
        show_coverage(report)
        if report.outdated:
            count, plans = len(report.outdated), "plans name" if len(report.outdated) > 1 else "plan names"
            click.echo(f"\n{count} {plans} what this topology does not have; {self.options.corpus} keeps them")
        if fixed:
            more = f" and {len(fixed) - SHOWN_MAX} more" if len(fixed) > SHOWN_MAX else ""
            names = ", ".join(map(str, fixed[:SHOWN_MAX]))
            kept = f"{self.options.corpus} keeps them, to be tried first"
            click.echo(f"\nfailed before, and hold now: seeds {names}{more}; {kept}")


class _Progress:
    """Context manager that shows a progress bar with the remaining time on stderr, if that is a terminal."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        from rich.progress import (  # only a campaign draws
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("exploring"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]} failed"),
            TimeRemainingColumn(),
        )
        console = rich_console(err=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self._task = self._bar.add_task("", total=total, failed=0)
        self._failed = 0

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def hear(self, verdict: Any) -> None:
        """Count one more seed that was tried, and whether it failed."""
        self._failed += verdict.failure is not None
        self._bar.update(self._task, advance=1, failed=self._failed)
