"""A campaign: many seeds, each with a plan of faults that the topology has to survive; what fails is made small.

Safety is checked after every moment of every run: split brain always, the invariants where something has changed, and
all of them now and then and at the end. Quiet stretches are computed. Liveness: the faults end, what they broke heals,
and the job has to succeed. Where roles have models, nothing that user code did may differ from a run without faults. A
seed that fails is run again, every step played and everything checked after every event, and its plan is shrunk by
leaving faults out for as long as it goes on failing.
"""

from __future__ import annotations

import gc
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from flowdist.control.history import Line, Record
from flowdist.faults import NOTHING, Fault, Plan, parse_fault
from flowdist.graph import HOUR, SECOND, RoleGraph, format_duration
from flowdist.report.trace import trace_lines
from flowdist.sim.nemesis import Nemesis
from flowdist.sim.simulation import Checks, SimResult, Simulation
from flowdist.testing.sameness import difference, errors_text, has_models, unlike

PATIENCE = 50  # times as long as without faults: whoever takes longer has not recovered
MUST_SEE = ("steady", "starting", "in recovery")
SAVING = "saving"  # only where roles have models
CHUNK = 20
SHORT = 2  # faults: a plan that is no longer is as good as it gets
SHIFTS_S = (-1, 1, -3, 3, -8, 8, -20, 20, -40, 40)
COLLECT_AFTER = 50_000  # objects


class Failure(NamedTuple):
    """A broken promise. `faults` is the shortest plan found; `seed` spreads start-up times, `schedule` orders ties."""

    seed: int
    property: str
    text: str
    faults: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    divergence: str = ""
    schedule: int = 0


class Verdict(NamedTuple):
    """What one seed came to. `hits` counts the faults that hit, by kind and by the phase of the job."""

    seed: int
    faults: tuple[str, ...]
    failure: Failure | None
    hits: dict[tuple[str, str], int]
    recoveries: int


class Report(NamedTuple):
    """Of a whole campaign."""

    seeds: int
    failures: list[Failure]
    coverage: dict[tuple[str, str], int]
    recoveries: int
    has_models: bool = False

    @property
    def unseen(self) -> list[str]:
        """Phases that no fault ever hit: a campaign that never saw them has not tested them."""
        seen = {phase for (_, phase), count in self.coverage.items() if count}
        must = (*MUST_SEE, SAVING) if self.has_models else MUST_SEE
        return [phase for phase in must if phase not in seen]


def horizon(graph: RoleGraph) -> int:
    """How long the job takes when nothing goes wrong, in ns."""
    return Simulation(graph).run(1000 * HOUR).now


class Rules(NamedTuple):
    """What a run is judged by. `truth` is the run without faults, where roles have models.

    With `strict` an exception of user code is a failure by itself; else it is an exit that the topology has to survive.
    """

    until: int
    truth: SimResult | None = None
    strict: bool = False


def judge(graph: RoleGraph, plan: Plan, seed: int, rules: Rules, *, quick: bool = False) -> tuple[SimResult, str, str]:
    """The run, and the property that does not hold with what is wrong; two empty strings when all hold.

    A `quick` one computes quiet stretches and checks what has changed: ten times as many in the same time.
    """
    checks: Checks = "changed" if quick else "all"
    result = Simulation(graph, plan, seed=seed, schedule=seed, checks=checks, fast_forward=quick).run(rules.until)
    property, text = _broken(result, rules)
    raised = errors_text(result.played) if property else ""
    return result, property, f"{text}; {raised}" if raised else text


def _broken(result: SimResult, rules: Rules) -> tuple[str, str]:
    if result.violation is not None:
        return result.violation.property, str(result.violation)
    if rules.strict and result.played.errors:
        return "no exceptions", "user code raised an exception"
    if result.job.outcome is None:
        waiting = ", ".join(result.waiting)
        return "liveness", f"not done after {format_duration(rules.until)}; waiting for {waiting}"
    if result.job.outcome != "succeeded":
        return "survives", f"the job has {result.job.outcome}: {result.job.ending_reason}"
    return (rules.truth is not None and difference(rules.truth, result)) or ("", "")


def try_seed(graph: RoleGraph, seed: int, horizon_ns: int, strict: bool = False) -> Verdict:
    """Draw a plan, run it, and make it small if it fails."""
    rules = Rules(PATIENCE * horizon_ns, strict=strict)
    if has_models(graph):
        truth, property, text = judge(graph, NOTHING, seed, rules)
        if property:
            return Verdict(seed, (), Failure(seed, property, f"without any fault: {text}", (), schedule=seed), {}, 0)
        rules = rules._replace(truth=truth)
    plan = Nemesis(graph, horizon_ns, rules.truth.played.saves if rules.truth is not None else ()).plan(seed)
    result, property, text = judge(graph, plan, seed, rules, quick=True)
    failure = None
    if property:
        _, played, said = judge(graph, plan, seed, rules)  # what is wrong may be seen earlier
        if played:
            failure = _shrink(graph, plan, seed, rules, played, said)
        else:
            failure = Failure(
                seed, property, f"{text}; only when quiet stretches are computed", _specs(plan), schedule=seed
            )
    closed = sum(incident.result == "recovered" for incident in result.job.incidents)
    return Verdict(seed, _specs(plan), failure, dict(result.hits), closed)


def _specs(plan: Plan) -> tuple[str, ...]:
    return tuple(fault.spec for fault in plan.faults)


def _shrink(graph: RoleGraph, plan: Plan, seed: int, rules: Rules, property: str, text: str) -> Failure:
    """Leave out what is not needed for a failure of the same property, one fault after the other, from the last."""
    faults = list(plan.faults)
    passing: Sequence[Line] | None = None
    for fault in reversed(plan.faults):
        fewer = [other for other in faults if other is not fault]
        result, found, words = judge(graph, Plan(tuple(fewer)), seed, rules)
        if found == property:
            faults, text = fewer, words
        elif not found:
            passing = result.lines
    while len(faults) > SHORT:
        shorter = _fewer_at_other_times(graph, faults, seed, rules, property)
        if shorter is None:
            break
        faults = shorter
    result, _, text = judge(graph, Plan(tuple(faults)), seed, rules)
    where = _divergence(passing, result.lines) if passing is not None else ""
    return Failure(seed, property, text, tuple(fault.spec for fault in faults), tuple(result.waiting), where, seed)


def _fewer_at_other_times(
    graph: RoleGraph, faults: list[Fault], seed: int, rules: Rules, property: str
) -> list[Fault] | None:
    """One fault less, with those after it at another time: what is left out may only have made them meet something."""
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


def _divergence(passing: Sequence[Line], failing: Sequence[Line]) -> str:
    """The first line in which the nearest run that passes differs."""
    ours = [line for line in failing if isinstance(line, Record)]
    theirs = [line for line in passing if isinstance(line, Record)]
    for n, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            here, there = (next(iter(trace_lines([line])), "(nothing is said)") for line in (a, b))
            return f"the runs agree for {n} events; then this one: {here.strip()}; one that passes: {there.strip()}"
    return ""


def campaign(
    graph: RoleGraph,
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    fail_fast: bool = False,
    strict: bool = False,
    tell: Callable[[Verdict], None] = lambda verdict: None,
) -> Report:
    """Try every seed. The report is the same for any number of jobs.

    Args:
        graph: With nodes.
        seeds: Each is a run.
        jobs: Processes to use.
        fail_fast: Stop at the first failure.
        strict: An exception of user code is a failure, whatever the topology makes of it.
        tell: Hears of each seed, in order.
    """
    seeds = list(seeds)
    unsteady = _unsteady(graph, seeds[0]) if seeds and has_models(graph) else None
    if unsteady is not None:
        return Report(1, [unsteady], {}, 0)
    horizon_ns = horizon(graph)
    failures: list[Failure] = []
    coverage: Counter[tuple[str, str]] = Counter()
    done = recoveries = 0
    for verdict in _verdicts(graph, seeds, horizon_ns, jobs, strict):
        done += 1
        coverage.update(verdict.hits)
        recoveries += verdict.recoveries
        tell(verdict)
        if verdict.failure is not None:
            failures.append(verdict.failure)
            if fail_fast:
                break
    return Report(done, failures, dict(sorted(coverage.items())), recoveries, has_models(graph))


def _unsteady(graph: RoleGraph, seed: int) -> Failure | None:
    """User code that does not do the same twice: nothing that is found with it could be seen again."""
    text = unlike(*(Simulation(graph, seed=seed).run(1000 * HOUR) for _ in range(2)))
    return Failure(seed, "determinism", text, ()) if text else None


def _verdicts(graph: RoleGraph, seeds: list[int], horizon_ns: int, jobs: int, strict: bool) -> Iterator[Verdict]:
    if jobs <= 1:
        with _rare_collections():
            yield from (try_seed(graph, seed, horizon_ns, strict) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
        futures = [pool.submit(_try_all, graph, chunk, horizon_ns, strict) for chunk in chunks]
        try:
            for future in futures:
                yield from future.result()
        finally:
            for future in futures:
                future.cancel()


def _try_all(graph: RoleGraph, seeds: list[int], horizon_ns: int, strict: bool) -> list[Verdict]:
    with _rare_collections():
        return [try_seed(graph, seed, horizon_ns, strict) for seed in seeds]


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Nearly all that a run makes is needed up to its end: looking for garbage all the time finds none."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def replay_command(target: str, options: Iterable[str], failure: Failure) -> str:
    """The one line that shows the failure again."""
    words = ["flowdist", "simulate", *([target] if target else []), *options]
    words += ["--seed", str(failure.seed)]
    words += ["--schedule", str(failure.schedule)] if failure.schedule else []
    for fault in failure.faults:
        words += ["--fail", fault]
    return shlex.join(words)


class Corpus:
    """Seeds that have failed before, kept in a file and tried first: JSON lines of {seed, faults, property}."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def seeds(self) -> list[int]:
        """Oldest first; what cannot be read is no seed."""
        found: dict[int, None] = {}
        for line in self._path.read_text().splitlines() if self._path.is_file() else ():
            try:
                found[int(json.loads(line)["seed"])] = None
            except (ValueError, KeyError, TypeError):
                continue
        return list(found)

    def keep(self, failures: Iterable[Failure]) -> None:
        """Those that are new."""
        known = self.seeds()
        new = [failure for failure in failures if failure.seed not in known]
        if new:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                for failure in new:
                    entry = {"seed": failure.seed, "property": failure.property, "faults": failure.faults}
                    file.write(json.dumps(entry) + "\n")
