"""`flowdist simulate --explore`: many seeds, each with faults that the topology has to survive.

Demands on simulated runs are here, too: a file of properties, bounds on the cost of failures, and liveness.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from flowdist.cli.shared.common import paint, print_json, progress_bar
from flowdist.cli.shared.options import TopologyOptions, gathered
from flowdist.dsl.load import DEFAULT_FILE
from flowdist.errors import FlowdistError, first_of
from flowdist.graph import RoleGraph
from flowdist.sim.checks.bounds import Bounds, bounds_of
from flowdist.sim.checks.properties import Properties
from flowdist.testing.campaign import campaign, replay_command
from flowdist.testing.corpus import Corpus, kinds_of, seeds_text
from flowdist.testing.declare import load_properties, side_file
from flowdist.testing.repro_command import bound_words
from flowdist.text.printable import table

SHOWN_MAX = 10  # seeds that are named in one line
LAST_EVENTS = 20  # lines of a failing run's trace that are shown without --full
KINDS_MAX = 10
PHASES = ("starting", "steady", "saving", "in recovery", "restoring", "ending")


class Demands(NamedTuple):
    """Demands on simulated runs, as the command line states them; None for one that is not given."""

    file: str | None = None
    recovers_within: str | None = None
    lost_work: str | None = None
    goodput: float | None = None
    live: bool = False

    @property
    def bounds(self) -> Bounds:
        """Return the bounds on recovery time, lost work and goodput."""
        return bounds_of(self.recovers_within, self.lost_work, self.goodput)

    def properties(self, named: TopologyOptions) -> Properties:
        """Load the properties of the given file, or of the file beside the topology; without either there are none."""
        if self.file is not None:
            return load_properties(Path(self.file))
        beside = side_file(named.target or DEFAULT_FILE)
        return load_properties(beside) if beside is not None else Properties()

    def words(self) -> list[str]:
        """Return the file of properties and the bounds as words of a command line that shows a failure again."""
        file = ["--properties", self.file] if self.file is not None else []
        return [*file, *bound_words(self.recovers_within, self.lost_work, self.goodput)]


demand_options = gathered(
    "demands",
    Demands,
    click.option(
        "--properties", "file", metavar="FILE", help="Check these properties (default: x_properties.py beside x.py)."
    ),
    click.option("--recovers-within", metavar="TIME", help="Fail if an incident needs longer until steps go on."),
    click.option("--lost-work", metavar="TIME", help="Fail if a world loses more work than this."),
    click.option("--goodput", type=float, metavar="SHARE", help="Fail if less of the tasks' time is productive: 0.9."),
    click.option("--live", is_flag=True, help="Fail if the job makes no progress within a bound after the last fault."),
)


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
        """Return the seeds of --seeds, else those of --explore."""
        chosen = range(1, (self.explore or 0) + 1)
        if self.seeds is not None:
            first, colon, last = self.seeds.partition(":")
            if not (first.isdecimal() and (last.isdecimal() or not colon)):
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
        """Try every seed, those of the corpus first, show what failed, and exit with 0, 3, or 130 if interrupted.

        A point (with --cover: also a phase) that was never reached is a failure, too.
        """
        corpus = Corpus(Path(self.options.corpus)) if self.options.corpus is not None else None
        known = corpus.open() if corpus is not None else []
        seeds = list(dict.fromkeys([*(each.seed for each in known), *self.seeds]))
        properties, bounds = self.demands.properties(self.named), self.demands.bounds
        tried: dict[int, None] = {}
        with progress_bar("exploring", "{task.fields[failed]} failed", quiet=self.named.as_json) as bar:
            task, failures = bar.add_task("", total=len(seeds), failed=0), list[int]()

            def tell(verdict: Any) -> None:
                tried[verdict.seed] = None
                failures.extend([verdict.seed] * (verdict.failure is not None))
                bar.update(task, advance=1, failed=len(failures))
                if corpus is not None and verdict.failure is not None:
                    corpus.keep([verdict.failure])  # at once: the campaign may be killed

            settings: dict[str, Any] = {"fail_fast": self.options.fail_fast, "properties": properties, "bounds": bounds}
            settings["alike_max"] = self.options.alike or None
            report = campaign(self.graph, seeds, jobs=self.options.jobs, known=known, tell=tell, **settings)
        if corpus is not None:
            corpus.keep(report.failures)
        self._show(report, [seed for seed in dict.fromkeys(each.seed for each in known) if seed in tried])
        if report.stopped == "interrupted":
            sys.exit(130)
        sys.exit(3 if self._is_red(report) else 0)

    def _is_red(self, report: Any) -> bool:
        """Return whether a seed has failed, or a campaign that was not stopped early has not reached all."""
        cover = [*report.unseen, *report.never_reached] if self.options.cover else []
        return bool(report.failures or (not report.stopped and (report.never_seen or cover)))

    def _show(self, report: Any, known: list[int]) -> None:
        """Print the report of the campaign; `known` are the seeds of the corpus that were tried."""
        failed = {failure.seed for failure in report.failures}
        fixed = [seed for seed in known if seed not in failed]
        target = self.named.target or ""
        words = [*self.named.words(), *self.demands.words()]
        words += ["--collective", self.collective] if self.collective is not None else []
        if self.named.as_json:
            print_json("exploration", **_campaign_dict(report, target, words), holds_now=fixed)
            return
        _show_failures(report, target, words, None if self.is_full else LAST_EVENTS)
        _show_coverage(report)
        if report.outdated:
            count, plans = len(report.outdated), "plans name" if len(report.outdated) > 1 else "plan names"
            click.echo(f"\n{count} {plans} what this topology does not have; {self.options.corpus} keeps them")
        if fixed:
            names = first_of(list(map(str, fixed)), SHOWN_MAX)
            kept = f"{self.options.corpus} keeps them, to be tried first"
            click.echo(f"\nfailed before, and hold now: seeds {names}; {kept}")


def _campaign_dict(report: Any, target: str, options: list[str]) -> dict[str, Any]:
    """Return the report of a campaign as --json prints it; a replay needs the words `options` besides the target."""
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


def _show_failures(report: Any, target: str, options: list[str], most: int | None) -> None:
    """Print at most `KINDS_MAX` kinds of failures, each with the last `most` events (None: all) and its command."""
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
    if shown := failure.trace[:most]:
        more = " (--full: more)" if len(failure.trace) > len(shown) else ""
        click.echo(f"  its trace around the cause{more}")
    for line in shown:
        click.echo(f"    {line}")
    click.echo()


def _show_coverage(report: Any) -> None:
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
    click.echo("\n".join(table(_coverage_rows(report.coverage))))
    if report.points:
        click.echo("\nPoints, and in how many runs they were seen")
        click.echo("\n".join(table([(point, str(runs or "-")) for point, runs in report.points.items()])))
    never = [*(f"{phase} (a phase)" for phase in report.unseen), *report.never_reached]
    if report.stopped:
        return
    if never:
        click.echo(f"\nnever hit: {', '.join(never)}; more seeds would", err=True)
    if report.never_seen:
        click.echo(f"\nnever seen: {', '.join(report.never_seen)}", err=True)


def _coverage_rows(coverage: dict[tuple[str, str], int]) -> list[tuple[str, ...]]:
    """Return the rows of a table: for each kind of fault, how many hit each phase of the job."""
    kinds = dict.fromkeys(kind for kind, _ in coverage)
    return [("", *PHASES), *((kind, *(str(coverage.get((kind, phase), "-")) for phase in PHASES)) for kind in kinds)]
