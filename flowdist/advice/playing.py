"""Simulated runs of one job, each with the faults of a seed, and what of them is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from flowdist.errors import FlowdistError
from flowdist.faults.grammar import FaultError, Plan
from flowdist.faults.rates import entities, mean_ns
from flowdist.graph import HOUR, MINUTE, RoleGraph, RoleSpec
from flowdist.graph.units import DAY
from flowdist.record.accounts import goodput_of
from flowdist.report.goodput import Rarest, rarest_of
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.refused import MacroRefused
from flowdist.sim.macro.result import MacroResult
from flowdist.sim.macro.scope import scope_of
from flowdist.sim.result import SimResult
from flowdist.sim.simulation import Simulation

Mode = Literal["macro", "protocol"]
SMALL, LARGE = 200, 2_000  # nodes: up to SMALL, beginning a run costs nothing; above LARGE, more than its faults
TIMES_IDEAL = 4  # a run that would take so many times as long as without failures is ended: it may never succeed


class Job(NamedTuple):
    """Job to simulate: its graph, with nodes, and what happens to it from outside.

    `until_ns` is the virtual time at which each run ends at the latest. `arrival_ns` is the time from the start of a
    node until its agent connects. `declares_nodes` is false if the topology leaves the number of nodes to `run`.
    """

    graph: RoleGraph
    plan: Plan
    until_ns: int
    arrival_ns: int = 0
    declares_nodes: bool = True

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all nodes."""
        return sum(node.gpu for node in self.graph.cluster.nodes)

    @property
    def units(self) -> int:
        """Return what is paid for each hour: the number of GPUs, or of nodes if there are no GPUs."""
        return self.gpus or len(self.graph.cluster.nodes)


class Outcome(NamedTuple):
    """Numbers by which one run is judged.

    `goodput` is the productive share of the time, as `flowdist simulate` prints it. `work` is what was kept, in a unit
    that is the same for all runs of a job and its alternatives. `restarts` counts generations after the first, and
    `hits` how often each rate of the plan has hit, by its name.
    """

    seed: int
    goodput: float
    lasted_ns: int
    work: float
    failed: bool
    restarts: int
    reason: str = ""
    hits: Mapping[str, int] = MappingProxyType({})


class Budget(NamedTuple):
    """Size of the simulations: expected faults of one run at most, and the seeds to choose and to measure with."""

    faults: int
    choosing: int
    measuring: int


def leading_role(graph: RoleGraph) -> RoleSpec:
    """Return the primary task with the most work: its checkpoints and its size are what advice is about.

    Raises:
        FlowdistError: The job has no primary task.
    """
    tasks = [role for role in graph.roles if role.kind == "task" and role.primary]
    if not tasks:
        raise FlowdistError("the job has no primary task, whose work could be lost", help="name another topology")
    return max(tasks, key=lambda role: role.workload.steps * role.workload.step_ns)


def mode_of(job: Job) -> Mode:
    """Return the mode in which the job is simulated: macro mode if it plays the job and the faults.

    Raises:
        FaultError: The job does not have what a fault or rate names, or the simulator cannot play it.
    """
    check_faults(job.plan, job.graph)
    try:
        scope_of(job.graph, job.plan)
    except (MacroRefused, FaultError):
        return "protocol"
    return "macro"


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

    The error of a mean falls with the number of faults in all runs together. Runs of a short job have few faults each,
    so there are more of them.

    Args:
        graph: The job.
        plan: Its faults and rates.
        mode: The mode in which it is simulated.
        until_ns: The time at which each run ends, if the user has set one.
    """
    nodes = len(graph.cluster.nodes)
    faults, total, least, most = 200, 2_000, 10, 200
    if mode == "protocol":
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
    """Return the time in ns at which runs end if the user does not say: whole days, hours or minutes.

    That is when so many faults are expected, or several times the time that the job needs without failures.
    """
    rate = faults_per_ns(graph, plan)
    end_ns = TIMES_IDEAL * ideal_ns(graph)
    if rate and faults / rate < end_ns:
        end_ns = math.ceil(faults / rate)
    unit = DAY if end_ns > 10 * DAY else HOUR if end_ns > 10 * HOUR else MINUTE
    return -(-end_ns // unit) * unit


def play(job: Job, mode: Mode, seeds: Sequence[int], tell: Callable[[], None] = lambda: None) -> list[Outcome]:
    """Simulate a job once with each seed, and return the outcomes in the order of the seeds.

    Args:
        job: The job.
        mode: The mode of all of them.
        seeds: Seeds of the faults and of all other draws.
        tell: Called after each run.

    Raises:
        MacroRefused, FaultError: Macro mode does not play this job.
        FlowdistError: A simulation has found a violation.
    """
    found = []
    scope = scope_of(job.graph, job.plan) if mode == "macro" else None
    for seed in seeds:
        if scope is not None:
            outcome = _of_macro(seed, Macro(scope, job.plan, seed=seed).run(job.until_ns), scope.role)
        else:
            outcome = _in_protocol_mode(job, seed)
        found.append(outcome._replace(hits={rate.name: outcome.hits.get(rate.name, 0) for rate in job.plan.rates}))
        tell()
    return found


def _in_protocol_mode(job: Job, seed: int) -> Outcome:
    simulation = Simulation(
        job.graph, job.plan, seed=seed, checks="paced", fast_forward=True, arrival_ns=job.arrival_ns
    )
    result = simulation.run(job.until_ns)
    if result.violation is not None:
        raise FlowdistError(f"seed {seed}: the simulation has found a violation: {result.violation}")
    outcome = _of_protocol(seed, result, job.graph)
    simulation.take_apart()
    return outcome


def _of_macro(seed: int, result: MacroResult, role: RoleSpec) -> Outcome:
    """Return what a run in macro mode is judged by; the work is that of the gang."""
    steps = result.step - result.unsaved_steps
    work = float(steps) if role.workload.depends_on_size else float(result.spent["productive"])
    failed = result.outcome == "failed"
    restarts = max(0, result.generations - 1)
    return Outcome(seed, result.goodput, result.now, work, failed, restarts, result.reason, result.by_rate)


def _of_protocol(seed: int, result: SimResult, graph: RoleGraph) -> Outcome:
    """Return what a run in protocol mode is judged by; the work is that of the leading role."""
    role = leading_role(graph)
    models = [model for model in result.models.values() if model.pace.name == role.name]
    work = float(result.spent[role.name]["productive"])
    if role.workload.depends_on_size and role.gang:
        work = float(sum(model.step_at(result.now) - model.unsaved_steps for model in models))
    restarts = max((model.generation for model in models), default=1) - 1
    failed = result.job.outcome == "failed"
    goodput = goodput_of(graph, result.spent) or 0.0
    reason = result.job.ending_reason or ""
    return Outcome(seed, goodput, result.now, work, failed, max(0, restarts), reason, result.by_rate)


def rarest_in(outcomes: Sequence[Outcome]) -> Rarest | None:
    """Return the rate that has hit least often in all of these runs; None: their plan has no rates."""
    return rarest_of(outcomes[0].hits if outcomes else (), [outcome.hits for outcome in outcomes])
