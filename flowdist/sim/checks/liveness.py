"""Liveness: how soon a job has to make progress after the last fault, by a bound that is computed from its topology.

The check has two phases, as proofs of distributed systems have. While faults happen only safety is demanded. Once the
last fault is over (nodes are back, links have no fault, no worker is slow), a primary task has to commit a new step
within a bound, and the job has to end within another. The first bound, `bound_ns`, is the sum of

    detection       the lease of a node and its margins; the longest `hang_after`; and if the controller died, the time
                    for which agents may keep workers without it
    re-formation    the longest grace, the longest back-off, and the start-ups and restores of all roles in a row
    growth          for each role that may grow: its cool-down, its join window, and one more re-formation
    a new step      the longest time between two checkpoints; for user code, which saves at will, all its work

The second bound adds all the work of all tasks, one after the other.
"""

from __future__ import annotations

from fractions import Fraction

from flowdist.control.protocol import events as ev
from flowdist.faults.grammar import Fault, Plan
from flowdist.graph import RoleGraph, RoleSpec, WorkloadSpec, format_duration, parse_duration
from flowdist.record.journal import FaultLine, Record
from flowdist.sim.result import SimResult
from flowdist.sim.user_code.workload import copy_ns

SPREAD = 1.2  # what a part of the work may take longer than nominally


def bound_ns(graph: RoleGraph, plan: Plan) -> int:
    """Return the longest time (ns) from the end of the last fault to the next committed step: the sum of the module."""
    again = _re_formation_ns(graph)
    grows = [spec for spec in graph.roles if spec.gang and spec.max_replicas > spec.min_replicas]
    growth = sum(spec.cooldown_ns + spec.join_window_ns + again for spec in grows)
    step = max((_cycle_ns(graph, spec) for spec in _primary(graph)), default=0)
    return _detection_ns(graph, plan) + again + growth + step


def end_ns(graph: RoleGraph, plan: Plan, horizon_ns: int) -> int:
    """Return by when (ns) the job has to be over, which takes `horizon_ns` without faults. A campaign stops there."""
    healed = max((fault.when.at_ns or 0) + _lasts_ns(graph, fault) for fault in plan.faults) if plan.faults else 0
    work = sum(_work_ns(graph, spec) for spec in graph.roles if spec.kind == "task")
    return max(healed, horizon_ns) + bound_ns(graph, plan) + horizon_ns + round(SPREAD * work)


def healed_ns(result: SimResult, plan: Plan) -> int:
    """Return the time in ns at which the last fault that hit was over, late writes included; 0 if none hit."""
    lasts = {fault.spec: _lasts_ns(result.job.graph, fault) for fault in plan.faults}
    hits = [line for line in result.lines if type(line) is FaultLine]
    return max((line.t_ns + lasts.get(line.spec, 0) for line in hits), default=0)


def late(result: SimResult, plan: Plan) -> tuple[int, str] | None:
    """Return the time in ns by which a new step had to be committed and was not, with a text that says so.

    None if a step was committed in time, or the run ended before that time was over.
    """
    graph = result.job.graph
    healed, bound = healed_ns(result, plan), bound_ns(graph, plan)
    if result.now <= healed + bound or _commits(result, healed, healed + bound):
        return None
    text = f"no step was committed within {format_duration(bound)} after the last fault was over"
    return healed + bound, f"{text}, at {format_duration(healed)}"


def _commits(result: SimResult, start: int, end: int) -> bool:
    """Return whether a task of `_primary` had a checkpoint accepted, or succeeded, between two times in ns.

    Checkpoints that fast-forward skipped have no line in the trace: the models of their worlds have the times.
    """
    names = {spec.name for spec in _primary(result.job.graph)}
    lines = (line for line in result.lines if type(line) is Record and start <= line.t_ns <= end)
    if any(_is_commit(line, names) for line in lines):
        return True
    worlds = [result.models[name] for role in names for name in result.job.roles[role].worlds if name in result.models]
    return any(first <= end and last >= start for model in worlds for first, last in model.skipped)


def _is_commit(line: Record, roles: set[str]) -> bool:
    if isinstance(line.event, ev.CheckpointOffered):
        return line.accepts and line.event.replica.role in roles
    return isinstance(line.event, ev.ReplicaExited) and line.event.kind is None and line.event.replica.role in roles


def _primary(graph: RoleGraph) -> list[RoleSpec]:
    """Return the tasks whose commits count as progress.

    These are the primary tasks, the tasks for whose success they wait, and all tasks in joint worlds with one of these,
    since any member of a joint world may be the one that saves.
    """
    found = {spec.name for spec in graph.roles if spec.kind == "task" and spec.primary}
    needed = set(found)
    for spec in reversed(graph.roles):  # gates point to earlier roles
        for gate in spec.gates if spec.name in needed else ():
            needed.add(gate.role)
            found |= {gate.role} if gate.condition == "succeeded" else set()
    joint = [name for world in graph.worlds if any(name in found for name in world.roles) for name in world.roles]
    return [spec for spec in graph.roles if spec.name in found or spec.name in joint]


def _detection_ns(graph: RoleGraph, plan: Plan) -> int:
    options = graph.options
    hangs = max((spec.hang_after_ns or 0 for spec in graph.roles), default=0)
    silence = options.lease_ns + 2 * options.lease_margin_ns
    if any(fault.target == "controller" for fault in plan.faults):
        silence = max(silence, options.controller_outage_ns + options.lease_ns)
    return silence + hangs + options.cause_window_ns


def _re_formation_ns(graph: RoleGraph) -> int:
    grace = max(max(spec.grace_ns, spec.stop_grace_ns, spec.drain_ns) for spec in graph.roles)
    policies = [policy for spec in graph.roles if spec.restart is not None for policy in spec.restart.chain()]
    backoff = max((policy.backoff_max_ns for policy in policies), default=0)
    starts = sum(_starts_ns(spec.workload) for spec in graph.roles)
    return grace + backoff + starts


def _starts_ns(load: WorkloadSpec) -> int:
    startup_ns = load.import_ns + max(load.startup_ns, load.warm_startup_ns or 0)
    return (
        round((1 + load.startup_spread) * startup_ns) + load.restore_ns + round((1 + load.step_spread) * load.warmup_ns)
    )


def _cycle_ns(graph: RoleGraph, spec: RoleSpec) -> int:
    """Return the longest time between two checkpoints, in ns; for user code, which may never save, all its work."""
    load = spec.workload
    if spec.simulate:
        return _work_ns(graph, spec)
    return min(round(_slowest(graph, spec) * (load.cycle_ns + load.lag_ns)), _work_ns(graph, spec))


def _work_ns(graph: RoleGraph, spec: RoleSpec) -> int:
    load = spec.workload
    steps = load.steps * (spec.longest_step_ns + copy_ns(spec))
    works = load.warmup_ns + steps + steps // load.checkpoint_every_ns * load.blocking_ns + load.finish_ns
    return load.startup_ns + load.restore_ns + round(_slowest(graph, spec) * works)


def _slowest(graph: RoleGraph, spec: RoleSpec) -> float:
    """Return how many times longer than its workload says a role may take: the slowest role of its world counts."""
    return 1 + max(graph.role(name).workload.step_spread for name in graph.mates_of(spec.name))


def _lasts_ns(graph: RoleGraph, fault: Fault) -> int:
    """Return how long a fault lasts, in ns: with its notice, and the checkpoint that a slow disk has delayed."""
    notice = parse_duration(fault.arg) if fault.kind == "preempt" and fault.arg else 0
    written = 0
    if fault.kind == "slow-checkpoint":
        longest = max(spec.workload.checkpoint_ns for spec in graph.roles)
        written = round(longest * Fraction(fault.arg.rstrip("x")))
    return notice + written + (fault.duration_ns or 0)
