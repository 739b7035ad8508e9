"""Simulations of the job of a published result, in macro mode, and the number of each that is compared with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from flowdist.dsl.load import compile_loaded
from flowdist.dsl.topology import Topology
from flowdist.dsl.words import Node, Workload
from flowdist.faults.grammar import Plan
from flowdist.faults.rates import check_rates, parse_rate
from flowdist.graph import HOUR, MINUTE, RoleGraph, parse_duration
from flowdist.report.goodput import Rarest, rarest_of
from flowdist.sim.experiment.compare import mean_share
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.outcome import Outcome
from flowdist.sim.experiment.play import play_seeds
from flowdist.validation.rows import Job, Row


def values_of(row: Row) -> tuple[list[float], Rarest | None]:
    """Return the simulated number of each seed, and the rate that has hit least often in all of them."""
    if row.quantity == "best interval":
        return _best_intervals(row)
    results = _results(row, row.job)
    return [QUANTITIES[row.quantity](result) for result in results], _rarest(row, results)


def _rarest(row: Row, results: Sequence[Outcome]) -> Rarest | None:
    names = [parse_rate(text).name for text in row.rates]
    return rarest_of(names, [result.hits for result in results])


def graph_of(job: Job) -> RoleGraph:
    """Return the graph of the job: a gang with one replica on each node, and spare nodes."""
    nodes = (job.nodes + job.spares) * [Node(gpu=job.gpus)]
    topology = Topology("published", nodes=nodes, **job.topology)
    role = {"replicas": job.nodes, **job.role}
    topology.role("trainer", "sleep inf", gpu=job.gpus, workload=Workload(**job.workload), **role)
    return compile_loaded(topology).graph


def _results(row: Row, job: Job) -> list[Outcome]:
    """Return the result of each seed for a job, which is the row's or differs from it in its checkpoint interval."""
    graph = graph_of(job)
    plan = Plan(rates=tuple(parse_rate(text) for text in row.rates))
    check_rates(plan.rates, graph, [node.name for node in graph.cluster.nodes], lambda _: None)
    return list(play_seeds(Experiment(graph, plan, parse_duration(row.until)), "fast", range(1, row.seeds + 1)))


def _interruptions(result: Outcome) -> int:
    """Return how often the gang was interrupted; the growth of a gang is no interruption."""
    return sum(count for kind, count in result.causes.items() if kind != "joined")


def _per_interruption(value: float, result: Outcome) -> float:
    return value / max(1, _interruptions(result))


QUANTITIES: dict[str, Callable[[Outcome], float]] = {
    "goodput": lambda result: result.goodput or 0.0,
    "waiting": lambda result: mean_share([result], "waiting"),
    "interruptions": lambda result: float(_interruptions(result)),
    "hours between interruptions": lambda result: _per_interruption(result.lasted_ns / HOUR, result),
    "hours lost per interruption": lambda result: _per_interruption(sum(result.lost_ns.values()) / HOUR, result),
}


def _best_intervals(row: Row) -> tuple[list[float], Rarest | None]:
    """Return the best checkpoint interval in minutes, for each seed: the vertex of a parabola; and the rarest rate.

    The parabola is fitted to goodput over the interval's logarithm. All intervals of a seed have the same faults, so
    that differences are not those of the draws.
    """
    tried = [math.log(parse_duration(text) / MINUTE) for text in row.intervals]
    goodputs: list[list[float]] = []
    found: list[Rarest] = []
    for text in row.intervals:
        job = replace(row.job, workload={**row.job.workload, "checkpoint_every": text})
        results = _results(row, job)
        goodputs.append([result.goodput or 0.0 for result in results])
        found += filter(None, [_rarest(row, results)])
    best = [math.exp(_vertex(tried, list(column))) for column in zip(*goodputs, strict=True)]
    return best, min(found, key=lambda one: one.hits, default=None)


def _vertex(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the vertex of the parabola of least squares: points are evenly spaced, so its parts are orthogonal."""
    middle = math.fsum(xs) / len(xs)
    us = [x - middle for x in xs]
    mean_square = math.fsum(u * u for u in us) / len(us)
    slope = math.fsum(u * y for u, y in zip(us, ys, strict=True)) / math.fsum(u * u for u in us)
    bends = [u * u - mean_square for u in us]
    bend = math.fsum(b * y for b, y in zip(bends, ys, strict=True)) / math.fsum(b * b for b in bends)
    return middle - slope / (2 * bend)
