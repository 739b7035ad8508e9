"""Verdict on one run of a campaign, and shrinking of a plan of faults that breaks a promise of the topology.

Once the faults and what they broke are over, the job has to commit a new step, and to succeed, within bounds that
follow from the topology (`sim.checks.liveness`). Models must do the same as without faults.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from flowdist.faults.grammar import Fault, Plan, parse_fault
from flowdist.graph import SECOND, RoleGraph, format_duration
from flowdist.record.journal import FaultLine, Line, Record
from flowdist.report.record.trace import event_lines, event_text, stamp, trace_lines
from flowdist.sim.checks.bounds import Bounds
from flowdist.sim.checks.liveness import end_ns, late
from flowdist.sim.checks.properties import Properties
from flowdist.sim.engine.queue import CRASHES, broken_by
from flowdist.sim.simulation import Checks, SimResult, Simulation, Violation
from flowdist.testing.sameness import difference, errors_text

SHORT = 2  # a plan of so few faults is not tried with faults at other times
SHIFTS_S = (-1, 1, -3, 3, -8, 8, -20, 20, -40, 40)
KEPT = 200  # lines of the trace that a failure keeps, from shortly before its cause on
BEFORE = 4  # lines of the trace that are kept before the cause


class Failure(NamedTuple):
    """Promise of a topology that a run of a campaign has broken, with what is needed to replay the run.

    `trace` has the lines around the cause, which follows the first BEFORE lines: where it first differs from a run that
    passes, or else the first fault.
    """

    seed: int
    property: str  # name of the property that does not hold
    text: str  # what is wrong
    faults: tuple[str, ...]  # the shortest plan that was found, in the fault grammar
    waiting: tuple[str, ...] = ()  # what waits for what at the end of the run
    divergence: str = ""  # the first difference from a run with fewer faults that passes; empty: there is none
    schedule: int = 0  # draws the order of events that happen at the same time
    trace: tuple[str, ...] = ()
    collective: str = ""  # what the peers of dead workers did, where the topology does not say; empty: they waited
    needs: str = ""  # kinds of the faults of the shortest plan, each with the phase of the job that it hits, in words


class Rules(NamedTuple):
    """Demands on each run of a campaign, in addition to the invariants and liveness."""

    horizon_ns: int  # time that the job takes without faults
    properties: Properties = Properties()  # the user's
    bounds: Bounds = Bounds()  # of what the faults may cost
    strict: bool = False  # an exception in a user's model is a failure by itself, not an exit that is to be survived
    truth: SimResult | None = None  # of the run without faults, if roles have models


def judge(graph: RoleGraph, plan: Plan, seed: int, rules: Rules, *, quick: bool = False) -> tuple[SimResult, str, str]:
    """Simulate a plan of faults; return the result, the name of the broken property, and what is wrong, or empty texts.

    `seed` also draws the order of events at the same time. `quick`: fast-forward quiet times, and check only what has
    changed, ten times as fast. If no step is committed in time after the faults, the result is as of then.
    """

    def run(until: int) -> SimResult:
        checks: Checks = "changed" if quick else "all"
        asked = rules.properties
        sim = Simulation(graph, plan, seed=seed, schedule=seed, checks=checks, fast_forward=quick, properties=asked)
        try:
            result = sim.run(until)
        except CRASHES as error:  # the controller raised: the plan is shrunk; a single run shows the traceback
            result = sim.result(Violation(*broken_by(error)), has_crashed=True)
        sim.take_apart()
        return result

    until = end_ns(graph, plan, rules.horizon_ns)
    result = run(until)
    property, text = _broken(result, until, rules)
    stuck = late(result, plan) if property in ("", "liveness") else None
    if stuck is not None:
        result = run(stuck[0])  # up to the moment at which progress is late: the result then says what waits for what
        property, text = "liveness", f"{stuck[1]}; waiting for {', '.join(result.waiting)}"
    raised = errors_text(result.played) if property else ""
    return result, property, f"{text}; {raised}" if raised else text


def _broken(result: SimResult, until: int, rules: Rules) -> tuple[str, str]:
    """Return the first property that the run, stopped at `until` (ns), has broken, and what is wrong; or "", ""."""
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
    """Return the faults of a plan as texts in the fault grammar."""
    return tuple(fault.spec for fault in plan.faults)


def shrink(graph: RoleGraph, plan: Plan, seed: int, rules: Rules, property: str) -> Failure:
    """Look for a shorter plan that breaks the same property, and return the failure with the shortest one found.

    Faults are left out from the last one on; then one more, while later ones move to other times.
    """
    faults = list(plan.faults)
    for fault in reversed(plan.faults):
        fewer = [other for other in faults if other is not fault]
        if judge(graph, Plan(tuple(fewer)), seed, rules)[1] == property:
            faults = fewer
    while len(faults) > SHORT:
        shorter = _fewer_at_other_times(graph, faults, seed, rules, property)
        if shorter is None:
            break
        faults = shorter
    result, _, text = judge(graph, Plan(tuple(faults)), seed, rules)
    events, where = _cause(graph, faults, seed, rules, result.lines)
    waiting, trace = tuple(result.waiting), _lines_around(result.lines, events)
    needs = ", then ".join(f"{kind} {_PHASES.get(phase, phase)}" for kind, phase in result.hits)
    return Failure(seed, property, text, specs(Plan(tuple(faults))), waiting, where, seed, trace, needs=needs)


def _cause(
    graph: RoleGraph, faults: Sequence[Fault], seed: int, rules: Rules, lines: Sequence[Line]
) -> tuple[int, str]:
    """Return the latest place (`_divergence`) where runs without one of the faults, which pass, differ; or (0, "")."""
    found = (0, "")
    for fault in faults:
        fewer = Plan(tuple(other for other in faults if other is not fault))
        result, broken, _ = judge(graph, fewer, seed, rules)
        if not broken:
            found = max(found, _divergence(result.lines, lines))
    return found


_PHASES = {"starting": "while it starts", "steady": "while it trains", "saving": "while it saves"}
_PHASES |= {"in recovery": "during a recovery", "restoring": "while it restores", "ending": "while it ends"}


def _lines_around(lines: Sequence[Line], events: int) -> tuple[str, ...]:
    """Return KEPT lines of the trace from shortly before the cause: the record after `events`, or the first fault."""
    records = [number for number, line in enumerate(lines) if isinstance(line, Record)]
    faults = [number for number, line in enumerate(lines) if isinstance(line, FaultLine)]
    cause = records[events] if 0 < events < len(records) else next(iter(faults), len(lines) - KEPT)
    texts = [[*event_lines(line)] for line in lines[max(1, cause - KEPT) : cause + KEPT]]
    before = [text for some in texts[: cause - max(1, cause - KEPT)] for text in some]
    after = [text for some in texts[cause - max(1, cause - KEPT) :] for text in some]
    return (*before[-BEFORE:], *after)[:KEPT]


def _fewer_at_other_times(
    graph: RoleGraph, faults: list[Fault], seed: int, rules: Rules, property: str
) -> list[Fault] | None:
    """Return the faults without one, which only delayed later ones, and with those shifted; None if all pass."""
    for at in reversed(range(len(faults) - 1)):
        for seconds in SHIFTS_S:
            fewer = [*faults[:at], *(_shifted(other, seconds * SECOND) for other in faults[at + 1 :])]
            if judge(graph, Plan(tuple(fewer)), seed, rules)[1] == property:
                return fewer
    return None


def _shifted(fault: Fault, by_ns: int) -> Fault:
    """Return the fault at a time that is `by_ns` later, or earlier if negative; unchanged if it waits for an event."""
    if fault.when.at_ns is None:
        return fault
    at = format_duration(max(0, fault.when.at_ns + by_ns))
    return parse_fault(re.sub(r"@[^:/+]+", f"@{at}", fault.spec, count=1))


def _decided(line: Record) -> str:
    """Return the first decision that followed from the event of the record, in words; without a decision, the event."""
    return next(iter(trace_lines([line])), f"{stamp(line.t_ns)}  {event_text(line)}").strip()


def _divergence(passing: Sequence[Line], failing: Sequence[Line]) -> tuple[int, str]:
    """Return the number of events in which two runs agree before they differ, and the first difference; else 0, ""."""
    ours = [line for line in failing if isinstance(line, Record)]
    theirs = [line for line in passing if isinstance(line, Record)]
    for n, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return n, f"where it first differs from a run that passes: {_decided(a)}; the other: {_decided(b)}"
    return 0, ""
