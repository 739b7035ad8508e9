"""Simulated runs of one job, each with the faults of a seed, and what of them is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowdist.errors import FlowdistError
from flowdist.faults.grammar import FaultError, Plan
from flowdist.faults.rates import entities, mean_ns
from flowdist.graph import HOUR, MINUTE, RoleGraph, RoleSpec
from flowdist.graph.units import DAY
from flowdist.report.goodput import Rarest, rarest_of
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.outcome import Outcome
from flowdist.sim.experiment.play import Mode, play_seeds
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.macro.scope import MacroRefused, scope_of

MODES: dict[Mode, str] = {"fast": "macro", "exact": "protocol"}  # as the command line names them
SMALL, LARGE = 200, 2_000  # nodes: up to SMALL, beginning a run costs nothing; above LARGE, more than its faults
TIMES_IDEAL = 4  # a run that would take so many times as long as without failures is ended: it may never succeed


class Budget(NamedTuple):
    """Size of the simulations: expected faults of one run at most, and the seeds to choose and to measure with."""

    faults: int
    choosing: int
    measuring: int


def leading_role(graph: RoleGraph) -> RoleSpec:
    """Return the primary task with the most work, which advice is about; FlowdistError if there is none."""
    tasks = [role for role in graph.roles if role.kind == "task" and role.primary]
    if not tasks:
        raise FlowdistError("the job has no primary task, whose work could be lost", help="name another topology")
    return max(tasks, key=lambda role: role.workload.steps * role.workload.step_ns)


def mode_of(job: Experiment) -> Mode:
    """Return the mode in which the job is simulated: fast if that plays job and faults; FaultError if no mode does."""
    check_faults(job.plan, job.graph)
    try:
        scope_of(job.graph, job.plan)
    except (MacroRefused, FaultError):
        return "exact"
    return "fast"


def ideal_ns(graph: RoleGraph) -> int:
    """Return about how long the work of the leading role takes without failures, in ns."""
    load = leading_role(graph).workload
    work_ns = load.steps * load.step_ns
    return load.startup_ns + work_ns + work_ns * load.blocking_ns // load.checkpoint_every_ns


def faults_per_ns(graph: RoleGraph, plan: Plan) -> float:
    """Return the expected number of faults that the rates of a plan bring in one ns."""
    nodes = [node.name for node in graph.cluster.nodes] + plan.new_nodes
    counts = [(rate, len(entities(rate, graph, nodes))) for rate in plan.rates]
    return math.fsum(count / mean_ns(rate, count) for rate, count in counts if count)


def budget_of(graph: RoleGraph, plan: Plan, mode: Mode, until_ns: int | None = None) -> Budget:
    """Return how long and how often a job is simulated, so that advice takes seconds and its errors are small.

    The error of a mean falls with the number of faults in all runs together, so a short job with few in each has more
    runs.
    """
    nodes = len(graph.cluster.nodes)
    faults, total, least, most = 200, 2_000, 10, 200
    if mode == "exact":
        faults, total, least, most = 20, 160, 5, 25
    elif nodes > LARGE:
        faults, total, least, most = nodes // 10, nodes // 4, 2, 5
    elif nodes > SMALL:
        total, least = 1_000, 5
    long_ns = min(until_ns or horizon_ns(graph, plan, faults), ideal_ns(graph))
    in_a_run = max(1.0, min(2 * faults, long_ns * faults_per_ns(graph, plan) + len(plan.faults)))
    seeds = math.ceil(total / in_a_run)
    return Budget(faults, max(least, min(most, seeds)), max(least, 5, min(most, seeds)))


def horizon_ns(graph: RoleGraph, plan: Plan, faults: int) -> int:
    """Return when runs end if the user does not say, in whole minutes or more: after `faults`, or some ideal times."""
    rate = faults_per_ns(graph, plan)
    end_ns = TIMES_IDEAL * ideal_ns(graph)
    if rate and faults / rate < end_ns:
        end_ns = math.ceil(faults / rate)
    unit = DAY if end_ns > 10 * DAY else HOUR if end_ns > 10 * HOUR else MINUTE
    return -(-end_ns // unit) * unit


def play(job: Experiment, mode: Mode, seeds: Sequence[int], tell: Callable[[], None] = lambda: None) -> list[Outcome]:
    """Simulate a job once with each seed, in their order; fast mode raises MacroRefused or FaultError if it cannot."""
    found = []
    for outcome in play_seeds(job, mode, seeds):
        found.append(outcome._replace(result=None))  # thousands of them are kept
        tell()
    return found


def work_of(outcome: Outcome, role: RoleSpec) -> float:
    """Return the kept work of a role of today's job, in one unit for all runs of the job and its alternatives."""
    if role.workload.depends_on_size and role.gang:
        return float(outcome.kept_steps[role.name])
    return float(outcome.spent[role.name]["productive"])


def rarest_in(outcomes: Sequence[Outcome]) -> Rarest | None:
    """Return the rate that has hit least often in all of these runs; None: their plan has no rates."""
    return rarest_of(outcomes[0].hits if outcomes else (), [outcome.hits for outcome in outcomes])
