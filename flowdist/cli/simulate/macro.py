"""`flowdist simulate --macro`: weeks of a large job, computed from one change of membership to the next."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flowdist.cli.shared.common import print_json, write_trace
from flowdist.cli.shared.options import gathered
from flowdist.cli.shared.simulated import ProgressLine, exit_code
from flowdist.dsl.problems.problem import place_text
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import FaultError
from flowdist.faults.rates import entities, expected
from flowdist.graph import HOUR, format_duration, parse_duration
from flowdist.record.accounts import BUCKETS
from flowdist.report.goodput import (
    Rarest,
    daly_ns,
    estimate,
    macro_text,
    needed_text,
    rarest_of,
    seeds_needed,
    young_ns,
)
from flowdist.report.record.summary import in_seconds
from flowdist.sim.experiment.compare import Comparison, mean_share
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.outcome import Outcome
from flowdist.sim.experiment.play import cross_check, play_seeds
from flowdist.sim.macro.books import MacroResult
from flowdist.sim.macro.macro import MacroTrace
from flowdist.sim.macro.scope import MacroRefused, Scope, scope_of
from flowdist.text.printable import table

if TYPE_CHECKING:
    from flowdist.dsl.read.fields import Arguments

EQUAL_TO = 0.001  # share of all time: a larger difference of a bucket fails --cross-check
SHORT = "6h"  # a time that protocol mode plays in minutes


class MacroOptions(NamedTuple):
    """Choice of macro mode, and of its comparison with the protocol mode."""

    is_macro: bool
    cross_check: bool


macro_options = gathered(
    "mode",
    MacroOptions,
    click.option("--macro", "is_macro", is_flag=True, help="Compute changes alone: weeks of a large gang in seconds."),
    click.option("--cross-check", is_flag=True, help="With --macro: simulate the same faults in both modes; compare."),
)


class MacroRun(NamedTuple):
    """Runs of one experiment in macro mode, one for each seed."""

    experiment: Experiment
    seeds: Sequence[int]
    as_json: bool
    command: Sequence[str]  # words of the command line, without --macro, the seeds and the end
    arguments: Arguments | None = None  # where the arguments of the topology stand; None: nowhere

    def _scope(self) -> Scope:
        """Return what macro mode needs to know of the job."""
        try:
            return scope_of(self.experiment.graph, self.experiment.plan)
        except (MacroRefused, FaultError) as error:
            refusal, message, until_ns = getattr(error, "refusal", None), error.message, parse_duration(SHORT)
            if refusal is not None and self.arguments is not None:
                message = f"{place_text(self.arguments.place(refusal.role, refusal.field))}: {message}"
            end = format_duration(min(self.experiment.until_ns or until_ns, until_ns))
            seed = ["--seed", str(self.seeds[0])] if self.seeds[0] else []
            exact = shlex.join(["flowdist", "simulate", *self.command, *seed, "--until", end])
            raise FlowdistError(message, help=f"play a shorter time of it exactly: {exact}") from None

    def run(self, trace_file: Path | None) -> None:
        """Run every seed, show the results, and exit with 0, 1 if a job failed, or 4 if one had not ended in time."""
        scope = self._scope()
        if trace_file is not None and len(self.seeds) > 1:
            raise FlowdistError("--trace is of one run", help="name one seed")
        plan = self.experiment.plan
        trace = MacroTrace(scope, plan, self.seeds[0]) if trace_file is not None else None
        began_s = process_time()
        tell = trace.hear if trace is not None else None
        results = list(play_seeds(self.experiment, "fast", self.seeds, scope, tell))
        cpu_s = process_time() - began_s
        if trace is not None:
            write_trace(trace_file, trace.lines)
        of_macro = [one.result for one in results if isinstance(one.result, MacroResult)]
        summary = _summary(scope, results, of_macro, cpu_s, [rate.name for rate in plan.rates])
        if self.as_json:
            print_json("macro", **summary)
        else:
            size = f"{scope.role.max_replicas} replicas of {scope.role.name} on {len(scope.nodes)} nodes"
            click.echo(f"{size}, {self.experiment.gpus} GPUs")
            for rate in plan.rates:
                click.echo(f"rate {expected(rate, len(entities(rate, scope.graph, scope.nodes)))}")
            click.echo("\n" + macro_text(summary), nl=False)
        codes = [exit_code(result.outcome) for result in results]
        sys.exit(1 if 1 in codes else max(codes))

    def cross_check(self) -> None:
        """Simulate the same faults in both modes, show the difference, and exit with 0, or with 3 if they differ.

        A bucket's share of the time may differ by `EQUAL_TO`; an outcome or a count may not.
        """
        self._scope()  # refuses what macro mode cannot simulate
        if self.experiment.until_ns is None:
            raise FlowdistError("--cross-check needs an end", help="write --until 12h")
        with ProgressLine(quiet=self.as_json) as progress:
            played = list(cross_check(self.experiment, self.seeds, progress.tell))
        found, faults = [one for _, one in played], [len(drawn.plan.faults) for drawn, _ in played]
        alike, equal, shares = sum(one.is_alike for one in found), sum(one.is_equal for one in found), _shares(found)
        if self.as_json:
            rows = zip(self.seeds, faults, found, strict=True)
            runs = [{"seed": seed, "faults": n, "alike": o.is_alike, "worst": o.worst} for seed, n, o in rows]
            print_json("cross-check", runs=runs, equal=equal, alike=alike, shares=shares)
        else:
            _show_shares(sum(faults), len(found), shares)
            click.echo(f"\nequal to the nanosecond: {equal} of {len(found)}")
            click.echo(f"same outcome, generations and incidents: {alike} of {len(found)}")
            for seed, one in zip(self.seeds, found, strict=True):
                if not one.is_alike:
                    sides = (one.a, one.b)
                    texts = [(x.outcome, x.lasted_ns, *x.generations.values(), dict(x.causes)) for x in sides]
                    click.echo(f"  seed {seed}: macro {texts[0]}, protocol {texts[1]}")
        is_red = alike < len(found) or max(one.worst for one in found) > EQUAL_TO
        sys.exit(3 if is_red else 0)


def _shares(found: Sequence[Comparison]) -> dict[str, dict[str, float]]:
    """Return, for each bucket of time, its share in both modes and the largest difference of one seed."""
    sides = [[one.a for one in found], [one.b for one in found]]
    shares = [{bucket: mean_share(outcomes, bucket) for bucket in BUCKETS} for outcomes in sides]
    worst = {bucket: max((one.difference(bucket) for one in found), key=abs) for bucket in BUCKETS}
    return {each: {"macro": shares[0][each], "protocol": shares[1][each], "worst": worst[each]} for each in BUCKETS}


def _show_shares(faults: int, seeds: int, shares: dict[str, dict[str, float]]) -> None:
    """Print the shares of time in both modes."""
    rows: list[tuple[str, ...]] = [("", "macro", "protocol", "difference", "worst")]
    for bucket, share in shares.items():
        macro, protocol = share["macro"], share["protocol"]
        if macro or protocol:
            rows.append((bucket, *(f"{100 * x:.4f} %" for x in (macro, protocol, macro - protocol, share["worst"]))))
    click.echo(f"{seeds} seeds, {faults} faults, in macro and in protocol mode\n")
    click.echo("\n".join(table(rows)))


def _summary(
    scope: Scope, runs: Sequence[Outcome], results: Sequence[MacroResult], cpu_s: float, rates: Sequence[str]
) -> dict[str, Any]:
    """Return estimates over all runs, and the summary of each run with the keys of `flowdist simulate`.

    `cpu_s` is the CPU time of all runs. `rates` are the names of the rates, whose faults may be rare.
    """
    load = scope.role.workload
    restarts = sum(result.generations - 1 for result in results)
    between_ns = sum(result.now for result in results) / restarts if restarts else None
    rarest = rarest_of(rates, [one.hits for one in runs])
    return {
        "runs": [_run(scope, one.seed, result) for one, result in zip(runs, results, strict=True)],
        "outcomes": dict(Counter(one.outcome or "unfinished" for one in runs)),
        "estimates": {
            name: estimate([float(pick(result)) for result in results], rarest) for name, pick in ESTIMATES.items()
        },
        "time": {
            bucket: estimate([result.spent[bucket] / (sum(result.spent.values()) or 1) for result in results], rarest)
            for bucket in results[0].spent
        },
        "seeds_needed": seeds_needed(len(runs), rarest),
        "no_interval": needed_text(len(runs), rarest),
        "causes": _counts([result.causes for result in results], has_rates=bool(rates)),
        "faults_by_rate": _counts([result.by_rate for result in results], has_rates=bool(rates)),
        "between_s": in_seconds(between_ns),
        "checkpoint_every_s": load.checkpoint_every_ns / 1e9,
        "young_s": in_seconds(young_ns(load.blocking_ns, between_ns) if between_ns is not None else None),
        "daly_s": in_seconds(daly_ns(load.blocking_ns, between_ns) if between_ns is not None else None),
        "failures_per_cpu_s": sum(result.faults for result in results) / cpu_s if cpu_s else None,
    }


def _counts(counted: list[Counter[str]], *, has_rates: bool) -> dict[str, Any]:
    """Return the estimate of each number that the runs have counted, by its name. `has_rates`: it may be rare."""
    found = {name: [counts[name] for counts in counted] for name in sorted({key for each in counted for key in each})}
    return {
        name: estimate(list(map(float, ns)), Rarest(name, sum(ns)) if has_rates else None) for name, ns in found.items()
    }


ESTIMATES: dict[str, Callable[[MacroResult], float]] = {
    "goodput": lambda result: result.goodput or 0.0,
    "days": lambda result: result.now / (24 * HOUR),
    "failures": lambda result: result.faults,
    "generations": lambda result: result.generations,
    "steps": lambda result: result.step,
    "hours lost": lambda result: result.lost_ns / HOUR,
}


def _run(scope: Scope, seed: int, result: MacroResult) -> dict[str, Any]:
    """Return the summary of the run of one seed."""
    counts = ("outcome", "generations", "charged", "step", "lost_steps", "unsaved_steps")
    figures = {key: getattr(result, key) for key in counts}
    figures |= {"lost_work_s": result.lost_ns / 1e9, "unsaved_work_s": result.unsaved_ns / 1e9}
    return {
        "seed": seed,
        "outcome": result.outcome,
        "reason": result.reason,
        "lasted_s": result.now / 1e9,
        "roles": {scope.role.name: figures},
        "causes": dict(sorted(result.causes.items())),
        "failures": result.faults,
        "cordoned": result.cordoned,
        "time_s": {scope.role.name: {bucket: ns / 1e9 for bucket, ns in result.spent.items() if ns}},
    }
