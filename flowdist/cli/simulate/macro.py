"""`flowdist simulate --macro`: weeks of a large job, from one change of membership to the next."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from flowdist.cli.shared.common import Named, print_json, write
from flowdist.cli.simulate.patience import Patience
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan
from flowdist.graph import HOUR, RoleGraph

EQUAL_TO = 0.001  # shares of all time: --cross-check is red beyond


class MacroWanted(NamedTuple):
    """What the command line asks for."""

    seeds: Sequence[int]
    until: int | None
    cross_check: bool
    trace: Path | None


def macro(graph: RoleGraph, plan: Plan, named: Named, wanted: MacroWanted) -> None:
    """Run every seed, show what they come to, and end with 0, 1 if a job failed, or 3 if the two modes differ."""
    from flowdist.sim.faults.injector import check_faults
    from flowdist.sim.macro.scope import scope_of

    check_faults(plan, graph)
    scope = scope_of(graph, plan)
    if wanted.cross_check:
        _cross_check(graph, plan, named, wanted)
    from time import process_time

    from flowdist.faults.rates import entities, expected
    from flowdist.record.journal import encode_line
    from flowdist.sim.macro.macro import Macro
    from flowdist.sim.macro.trace import MacroTrace

    if wanted.trace is not None and len(wanted.seeds) > 1:
        raise FlowdistError("--trace is of one run", help="name one seed")
    results = []
    spent = 0.0
    for seed in wanted.seeds:
        trace = MacroTrace(scope, plan, seed) if wanted.trace is not None else None
        job = Macro(scope, plan, seed=seed, tell=trace.hear if trace is not None else None)
        began = process_time()
        results.append(job.run(wanted.until))
        spent += process_time() - began
        if trace is not None and wanted.trace is not None:
            write(wanted.trace, b"".join(encode_line(line) for line in trace.lines))
    summary = _summary(scope, wanted.seeds, results, spent)
    if named.as_json:
        print_json("macro", **summary)
    else:
        from flowdist.report.goodput import macro_text

        gpus = sum(node.gpu for node in graph.cluster.nodes)
        nodes = sum(map(bool, scope.seats)) if scope.beside else len(scope.nodes)
        click.echo(f"{scope.role.max_replicas} replicas of {scope.role.name} on {nodes} nodes, {gpus} GPUs")
        for role, room in scope.beside:
            click.echo(f"beside it: {role.max_replicas} of {role.name} on {sum(map(bool, room))} nodes of their own")
        for rate in plan.rates:
            click.echo(f"rate {expected(rate, len(entities(rate, graph, scope.nodes)))}")
        click.echo("\n" + macro_text(summary), nl=False)
    sys.exit(1 if any(result.outcome == "failed" for result in results) else 0)


def _summary(scope: Any, seeds: Sequence[int], results: list[Any], cpu_s: float) -> dict[str, Any]:
    """Of all runs, and of each in the words of `flowdist simulate`."""
    from flowdist.report.goodput import daly_ns, estimate, young_ns

    load = scope.role.workload
    restarts = sum(result.generations - 1 for result in results)
    hours = sum(result.now for result in results) / HOUR
    between = hours * HOUR / restarts if restarts else None
    totals = [sum(result.spent.values()) or 1 for result in results]
    return {
        "runs": [_run(scope, seed, result) for seed, result in zip(seeds, results, strict=True)],
        "outcomes": dict(Counter(result.outcome or "unfinished" for result in results)),
        "estimates": {
            "goodput": estimate([result.goodput for result in results]),
            "days": estimate([result.now / (24 * HOUR) for result in results]),
            "failures": estimate([float(result.faults) for result in results]),
            "generations": estimate([float(result.generations) for result in results]),
            "steps": estimate([float(result.step) for result in results]),
            "hours lost": estimate([result.lost_ns / HOUR for result in results]),
        },
        "time": {
            bucket: estimate([result.spent[bucket] / total for result, total in zip(results, totals, strict=True)])
            for bucket in results[0].spent
        },
        "causes": {
            kind: estimate([float(result.causes[kind]) for result in results])
            for kind in sorted({kind for result in results for kind in result.causes})
        },
        "between_s": between / 1e9 if between is not None else None,
        "checkpoint_every_s": load.checkpoint_every_ns / 1e9,
        "young_s": young_ns(load.blocking_ns, between) / 1e9 if between is not None else None,
        "daly_s": daly_ns(load.blocking_ns, between) / 1e9 if between is not None else None,
        "failures_per_cpu_s": sum(result.faults for result in results) / cpu_s if cpu_s else None,
    }


def _run(scope: Any, seed: int, result: Any) -> dict[str, Any]:
    role = {
        "outcome": result.outcome,
        "generations": result.generations,
        "charged": result.charged,
        "step": result.step,
        "lost_steps": result.lost_steps,
        "lost_work_s": result.lost_ns / 1e9,
    }
    return {
        "seed": seed,
        "outcome": result.outcome,
        "reason": result.reason,
        "lasted_s": result.now / 1e9,
        "roles": {scope.role.name: role},
        "causes": dict(sorted(result.causes.items())),
        "failures": result.faults,
        "cordoned": result.cordoned,
        "beside": {name: {"generations": n, "saved_step": step} for name, (n, step) in result.beside.items()},
        "time_s": {scope.role.name: {bucket: ns / 1e9 for bucket, ns in result.spent.items() if ns}},
    }


def _cross_check(graph: RoleGraph, plan: Plan, named: Named, wanted: MacroWanted) -> None:
    """The same faults in both modes; a table of the difference."""
    from flowdist.record.accounts import BUCKETS
    from flowdist.report.table import table
    from flowdist.sim.checks.cross_check import compare

    if wanted.until is None:
        raise FlowdistError("--cross-check needs an end", help="write --until 12h")
    with Patience(quiet=named.as_json) as patience:
        found = list(compare(graph, plan, wanted.seeds, wanted.until, patience.tell))
    equal, alike = sum(one.is_equal for one in found), sum(one.is_alike for one in found)
    rows: list[tuple[str, ...]] = [("", "macro", "protocol", "difference", "worst")]
    shares = {}
    for bucket in BUCKETS:
        worst = max((one.difference(bucket) for one in found), key=abs)
        ours, theirs = (_share([getattr(one, mode).spent for one in found], bucket) for mode in ("macro", "protocol"))
        shares[bucket] = {"macro": ours, "protocol": theirs, "worst": worst}
        if ours or theirs:
            rows.append((bucket, *(f"{100 * x:.4f} %" for x in (ours, theirs, ours - theirs, worst))))
    worst_of_all = max(one.worst for one in found)
    is_red = alike < len(found) or worst_of_all > EQUAL_TO
    if named.as_json:
        values = [{"seed": one.seed, "faults": one.faults, "alike": one.is_alike, "worst": one.worst} for one in found]
        print_json("cross-check", runs=values, equal=equal, alike=alike, shares=shares)
    else:
        faults = sum(one.faults for one in found)
        click.echo(f"{len(found)} seeds, {faults} faults, in macro and in protocol mode\n")
        for line in table(rows):
            click.echo(line)
        click.echo(f"\nequal to the nanosecond: {equal} of {len(found)}")
        click.echo(f"same outcome, generations and incidents: {alike} of {len(found)}")
        for one in found:
            if not one.is_alike:
                click.echo(f"  seed {one.seed}: macro {one.macro[:4]}, protocol {one.protocol[:4]}")
    sys.exit(3 if is_red else 0)


def _share(all_spent: list[dict[Any, int]], bucket: str) -> float:
    total = sum(sum(spent.values()) for spent in all_spent)
    return sum(spent[bucket] for spent in all_spent) / total if total else 0.0
