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
from flowdist.faults.grammar import FaultError, Plan
from flowdist.faults.rates import entities, expected
from flowdist.graph import HOUR, RoleGraph, format_duration, parse_duration
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
from flowdist.report.table import table

if TYPE_CHECKING:
    from flowdist.dsl.check.arguments import Arguments
    from flowdist.sim.macro.scope import Scope

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
    """Runs in macro mode of one graph and plan, one for each seed."""

    graph: RoleGraph
    plan: Plan
    seeds: Sequence[int]
    until_ns: int | None
    as_json: bool
    command: Sequence[str]  # words of the command line, without --macro, the seeds and the end
    arguments: Arguments | None = None  # where the arguments of the topology stand; None: nowhere

    def _scope(self) -> Scope:
        """Return what macro mode needs to know of the job.

        Raises:
            MacroRefused, FaultError: Macro mode does not play the job, or a fault. The text begins with the place of
                the field, and the help is the command that plays a shorter time of it in protocol mode.
        """
        from flowdist.sim.macro.refused import MacroRefused  # a second simulator: only with --macro
        from flowdist.sim.macro.scope import scope_of

        try:
            return scope_of(self.graph, self.plan)
        except (MacroRefused, FaultError) as error:
            refusal, message, until_ns = getattr(error, "refusal", None), error.message, parse_duration(SHORT)
            if refusal is not None and self.arguments is not None:
                message = f"{place_text(self.arguments.place(refusal.role, refusal.field))}: {message}"
            end = format_duration(min(self.until_ns or until_ns, until_ns))
            seed = ["--seed", str(self.seeds[0])] if self.seeds[0] else []
            exact = shlex.join(["flowdist", "simulate", *self.command, *seed, "--until", end])
            raise FlowdistError(message, help=f"play a shorter time of it exactly: {exact}") from None

    def run(self, trace_file: Path | None) -> None:
        """Run every seed, show the results, and exit: with 0, 1 if a job failed, or 4 if one had not ended at the end.

        Args:
            trace_file: File for the trace of the run; None: no trace.

        Raises:
            FlowdistError: A trace of several runs is asked for, or macro mode cannot simulate the job.
        """
        scope = self._scope()
        if trace_file is not None and len(self.seeds) > 1:
            raise FlowdistError("--trace is of one run", help="name one seed")
        results, cpu_s = [], 0.0
        for seed in self.seeds:
            result, spent_s = self._run_seed(scope, seed, trace_file)
            results.append(result)
            cpu_s += spent_s
        summary = _summary(scope, self.seeds, results, cpu_s, [rate.name for rate in self.plan.rates])
        if self.as_json:
            print_json("macro", **summary)
        else:
            self._show(scope, summary)
        codes = [exit_code(result.outcome) for result in results]
        sys.exit(1 if 1 in codes else max(codes))

    def _run_seed(self, scope: Any, seed: int, trace_file: Path | None) -> tuple[Any, float]:
        """Run one seed, write its trace if a file is given, and return the result and the CPU time in seconds."""
        from flowdist.sim.macro.macro import Macro  # as above
        from flowdist.sim.macro.trace import MacroTrace

        trace = MacroTrace(scope, self.plan, seed) if trace_file is not None else None
        job = Macro(scope, self.plan, seed=seed, tell=trace.hear if trace is not None else None)
        began_s = process_time()
        result = job.run(self.until_ns)
        spent_s = process_time() - began_s
        if trace is not None:
            write_trace(trace_file, trace.lines)
        return result, spent_s

    def _show(self, scope: Any, summary: dict[str, Any]) -> None:
        """Print the size of the job, the rates of faults, and the results."""
        gpus = sum(node.gpu for node in self.graph.cluster.nodes)
        click.echo(f"{scope.role.max_replicas} replicas of {scope.role.name} on {len(scope.nodes)} nodes, {gpus} GPUs")
        for rate in self.plan.rates:
            click.echo(f"rate {expected(rate, len(entities(rate, self.graph, scope.nodes)))}")
        click.echo("\n" + macro_text(summary), nl=False)

    def cross_check(self) -> None:
        """Simulate the same faults in both modes, show the difference, and exit with 0, or with 3 if they differ.

        They differ if an outcome or a count differs for some seed, or if a bucket's share of the time differs by more
        than `EQUAL_TO`.

        Raises:
            FlowdistError: --until is not given, or macro mode cannot simulate the job.
        """
        from flowdist.sim.cross_check import compare  # as above

        self._scope()  # refuses what macro mode cannot simulate
        if self.until_ns is None:
            raise FlowdistError("--cross-check needs an end", help="write --until 12h")
        with ProgressLine(quiet=self.as_json) as progress:
            found = list(compare(self.graph, self.plan, self.seeds, self.until_ns, progress.tell))
        alike = sum(one.is_alike for one in found)
        shares = _shares(found)
        if self.as_json:
            runs = [{"seed": o.seed, "faults": o.faults, "alike": o.is_alike, "worst": o.worst} for o in found]
            equal = sum(one.is_equal for one in found)
            print_json("cross-check", runs=runs, equal=equal, alike=alike, shares=shares)
        else:
            _show_comparison(found, shares)
        is_red = alike < len(found) or max(one.worst for one in found) > EQUAL_TO
        sys.exit(3 if is_red else 0)


def _shares(found: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Return, for each bucket of time, its share in both modes and the largest difference of one seed."""
    return {
        bucket: {
            "macro": _share([one.macro.spent for one in found], bucket),
            "protocol": _share([one.protocol.spent for one in found], bucket),
            "worst": max((one.difference(bucket) for one in found), key=abs),
        }
        for bucket in BUCKETS
    }


def _show_comparison(found: Sequence[Any], shares: dict[str, dict[str, float]]) -> None:
    """Print the shares of time in both modes, and the seeds for which the modes disagree."""
    rows: list[tuple[str, ...]] = [("", "macro", "protocol", "difference", "worst")]
    for bucket, share in shares.items():
        macro, protocol = share["macro"], share["protocol"]
        if macro or protocol:
            rows.append((bucket, *(f"{100 * x:.4f} %" for x in (macro, protocol, macro - protocol, share["worst"]))))
    click.echo(f"{len(found)} seeds, {sum(one.faults for one in found)} faults, in macro and in protocol mode\n")
    click.echo("\n".join(table(rows)))
    click.echo(f"\nequal to the nanosecond: {sum(one.is_equal for one in found)} of {len(found)}")
    click.echo(f"same outcome, generations and incidents: {sum(one.is_alike for one in found)} of {len(found)}")
    for one in found:
        if not one.is_alike:
            click.echo(f"  seed {one.seed}: macro {one.macro[:4]}, protocol {one.protocol[:4]}")


def _summary(
    scope: Any, seeds: Sequence[int], results: list[Any], cpu_s: float, rates: Sequence[str]
) -> dict[str, Any]:
    """Return estimates over all runs, and the summary of each run with the keys of `flowdist simulate`.

    `cpu_s` is the CPU time of all runs in seconds. `rates` are the names of the rates, whose faults may be rare.
    """
    load = scope.role.workload
    restarts = sum(result.generations - 1 for result in results)
    between_ns = sum(result.now for result in results) / restarts if restarts else None
    rarest = rarest_of(rates, [result.by_rate for result in results])
    return {
        "runs": [_run(scope, seed, result) for seed, result in zip(seeds, results, strict=True)],
        "outcomes": dict(Counter(result.outcome or "unfinished" for result in results)),
        "estimates": {
            name: estimate([float(pick(result)) for result in results], rarest) for name, pick in ESTIMATES.items()
        },
        "time": {
            bucket: estimate([result.spent[bucket] / (sum(result.spent.values()) or 1) for result in results], rarest)
            for bucket in results[0].spent
        },
        "seeds_needed": seeds_needed(len(results), rarest),
        "no_interval": needed_text(len(results), rarest),
        "causes": _counts([result.causes for result in results], has_rates=bool(rates)),
        "faults_by_rate": _counts([result.by_rate for result in results], has_rates=bool(rates)),
        "between_s": _seconds(between_ns),
        "checkpoint_every_s": load.checkpoint_every_ns / 1e9,
        "young_s": _seconds(young_ns(load.blocking_ns, between_ns) if between_ns is not None else None),
        "daly_s": _seconds(daly_ns(load.blocking_ns, between_ns) if between_ns is not None else None),
        "failures_per_cpu_s": sum(result.faults for result in results) / cpu_s if cpu_s else None,
    }


def _counts(counted: list[Counter[str]], *, has_rates: bool) -> dict[str, Any]:
    """Return the estimate of each number that the runs have counted, by its name. `has_rates`: it may be rare."""
    found = {name: [counts[name] for counts in counted] for name in sorted({key for each in counted for key in each})}
    return {
        name: estimate(list(map(float, ns)), Rarest(name, sum(ns)) if has_rates else None) for name, ns in found.items()
    }


ESTIMATES: dict[str, Callable[[Any], float]] = {
    "goodput": lambda result: result.goodput,
    "days": lambda result: result.now / (24 * HOUR),
    "failures": lambda result: result.faults,
    "generations": lambda result: result.generations,
    "steps": lambda result: result.step,
    "hours lost": lambda result: result.lost_ns / HOUR,
}


def _seconds(ns: float | None) -> float | None:
    return ns / 1e9 if ns is not None else None


def _run(scope: Any, seed: int, result: Any) -> dict[str, Any]:
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


def _share(all_spent: list[dict[Any, int]], bucket: str) -> float:
    """Return the share of one bucket in the time of all runs, from 0 to 1."""
    total = sum(sum(spent.values()) for spent in all_spent)
    return sum(spent[bucket] for spent in all_spent) / total if total else 0.0
