"""Verdict on one run of a campaign, and shrinking of plans of faults that break a promise.

Liveness has two phases. First the faults end, and what they broke heals. From then on the job has to commit a new step,
and to succeed, within bounds that follow from the topology (`sim.checks.liveness`). Where roles have models, what user
code did must not differ from a run without faults.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from flowdist.faults.grammar import Fault, Plan, parse_fault
from flowdist.graph import SECOND, RoleGraph, format_duration
from flowdist.record.journal import Line, Record
from flowdist.record.restart_rules import CRASHES, crash
from flowdist.report.record.trace import event_lines, event_text, stamp, trace_lines
from flowdist.sim.checks.bounds import Bounds
from flowdist.sim.checks.liveness import end_ns, late
from flowdist.sim.checks.properties import Properties
from flowdist.sim.simulation import Checks, SimResult, Simulation, Violation
from flowdist.testing.sameness import difference, errors_text

SHORT = 2  # faults: a plan of so few is not tried at other times
SHIFTS_S = (-1, 1, -3, 3, -8, 8, -20, 20, -40, 40)
KEPT = 200  # last lines of the trace of a run that fails


class Failure(NamedTuple):
    """Broken promise of a topology.

    Attributes:
        seed: Spreads start-up times.
        property: Name of the property that does not hold.
        text: What is wrong.
        faults: The shortest plan that was found.
        waiting: What waits for what at the end of the run.
        divergence: The first difference from a run that passes.
        schedule: Orders events of the same time.
        last: The last lines of the trace.
        collective: What peers of dead workers did, where the topology does not say.
    """

    seed: int
    property: str
    text: str
    faults: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    divergence: str = ""
    schedule: int = 0
    last: tuple[str, ...] = ()
    collective: str = ""


class Rules(NamedTuple):
    """Demands on a run, beside those that always hold.

    Attributes:
        horizon_ns: How long the job takes without faults.
        properties: The user's properties.
        bounds: What the faults may cost.
        strict: An exception of user code is a failure by itself; else it is an exit that the topology has to survive.
        truth: The run without faults, where roles have models.
    """

    horizon_ns: int
    properties: Properties = Properties()
    bounds: Bounds = Bounds()
    strict: bool = False
    truth: SimResult | None = None


def judge(graph: RoleGraph, plan: Plan, seed: int, rules: Rules, *, quick: bool = False) -> tuple[SimResult, str, str]:
    """Run the plan, and return the result, the property that is broken, and what is wrong; both empty if none is.

    With `quick` the run fast-forwards and checks only what has changed. That is ten times as fast.
    """

    def run(until: int) -> SimResult:
        checks: Checks = "changed" if quick else "all"
        asked = rules.properties
        sim = Simulation(graph, plan, seed=seed, schedule=seed, checks=checks, fast_forward=quick, properties=asked)
        try:
            result = sim.run(until)
        except CRASHES as error:  # control raised: the plan is shrunk all the same, and a single run shows the stack
            result = sim.result(Violation(*crash(error)), has_crashed=True)
        sim.take_apart()
        return result

    until = end_ns(graph, plan, rules.horizon_ns)
    result = run(until)
    property, text = _broken(result, plan, until, rules)
    stuck = late(result, plan) if property in ("", "liveness") else None
    if stuck is not None:
        result = run(stuck[0])  # at that moment the result says what waits for what
        property, text = "liveness", f"{stuck[1]}; waiting for {', '.join(result.waiting)}"
    raised = errors_text(result.played) if property else ""
    return result, property, f"{text}; {raised}" if raised else text


def _broken(result: SimResult, plan: Plan, until: int, rules: Rules) -> tuple[str, str]:
    if result.violation is not None:
        return result.violation.property, str(result.violation).removeprefix(f"{result.violation.property}: ")
    if rules.strict and result.played.errors:
        return "no exceptions", "user code raised an exception"
    if result.job.outcome is None:
        return "liveness", f"not done after {format_duration(until)}; waiting for {', '.join(result.waiting)}"
    if result.job.outcome != "succeeded":
        return "survives", f"the job has {result.job.outcome}: {result.job.ending_reason}"
    changed = difference(rules.truth, result) if rules.truth is not None else None
    broken = rules.bounds.broken(result) if changed is None else []
    return changed or (broken[0] if broken else ("", ""))


def specs(plan: Plan) -> tuple[str, ...]:
    return tuple(fault.spec for fault in plan.faults)


def shrink(graph: RoleGraph, plan: Plan, seed: int, rules: Rules, property: str) -> Failure:
    """Return the failure with a shorter plan that breaks the same property.

    Faults are left out one after the other, from the last; then also with later faults at other times.
    """
    faults = list(plan.faults)
    passing: list[Sequence[Line]] = []
    for fault in reversed(plan.faults):
        fewer = [other for other in faults if other is not fault]
        result, found, _ = judge(graph, Plan(tuple(fewer)), seed, rules)
        if found == property:
            faults = fewer
        elif not found:
            passing.append(result.lines)
    while len(faults) > SHORT:
        shorter = _fewer_at_other_times(graph, faults, seed, rules, property)
        if shorter is None:
            break
        faults = shorter
    result, _, text = judge(graph, Plan(tuple(faults)), seed, rules)
    where = max((_divergence(lines, result.lines) for lines in passing), default=(0, ""))[1]
    waiting, last = tuple(result.waiting), _last_lines(result.lines)
    return Failure(seed, property, text, specs(Plan(tuple(faults))), waiting, where, seed, last)


def _last_lines(lines: Sequence[Line]) -> tuple[str, ...]:
    """Return the last lines of the trace: what happened before the end, and what followed from it."""
    return tuple(text for line in lines[max(1, len(lines) - KEPT) :] for text in event_lines(line))[-KEPT:]


def _fewer_at_other_times(
    graph: RoleGraph, faults: list[Fault], seed: int, rules: Rules, property: str
) -> list[Fault] | None:
    """Return the plan without one fault and with later faults shifted; None if no such plan breaks the property.

    The fault that is left out may have mattered only because it delayed what the later ones hit.
    """
    for at in reversed(range(len(faults) - 1)):
        for seconds in SHIFTS_S:
            fewer = [*faults[:at], *(_shifted(other, seconds * SECOND) for other in faults[at + 1 :])]
            if judge(graph, Plan(tuple(fewer)), seed, rules)[1] == property:
                return fewer
    return None


def _shifted(fault: Fault, by_ns: int) -> Fault:
    if fault.when.at_ns is None:
        return fault
    at = format_duration(max(0, fault.when.at_ns + by_ns))
    return parse_fault(re.sub(r"@[^:/+]+", f"@{at}", fault.spec, count=1))


def _decided(line: Record) -> str:
    """Return the first decision that followed from the event; without one, the event."""
    return next(iter(trace_lines([line])), f"{stamp(line.t_ns)}  {event_text(line)}").strip()


def _divergence(passing: Sequence[Line], failing: Sequence[Line]) -> tuple[int, str]:
    """Return for how many events the two runs agree, and the first difference in words."""
    ours = [line for line in failing if isinstance(line, Record)]
    theirs = [line for line in passing if isinstance(line, Record)]
    for n, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return n, f"the runs agree for {n} events; then this one: {_decided(a)}; one that passes: {_decided(b)}"
    return 0, ""
