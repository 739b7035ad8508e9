"""A campaign: many seeds, each with a plan of faults that the topology has to survive; what fails is made small.

Safety is checked after every moment of every run: split brain always, the invariants where something has changed, and
all of them now and then and at the end; the user's properties after every event. Quiet stretches are computed, where no
property of the user's looks on. Liveness: the faults end, what they broke heals, and within a bound that follows from
the topology (`sim.liveness`) the job has to commit a new step, and to succeed. A seed that fails is run again, every
step played and everything checked after every event, and its plan is shrunk by leaving out what it fails without.
"""

from __future__ import annotations

import gc
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from flowdist.control.history import Line, Record
from flowdist.faults import Plan
from flowdist.graph import HOUR, RoleGraph, format_duration
from flowdist.report.trace import event_lines, trace_lines
from flowdist.sim.bounds import Bounds
from flowdist.sim.liveness import end_ns, late
from flowdist.sim.nemesis import Nemesis, tolerance_of
from flowdist.sim.points import CONTROLLER, DOUBLE, reachable
from flowdist.sim.properties import Properties
from flowdist.sim.simulation import Checks, SimResult, Simulation

MUST_SEE = ("steady", "starting", "in recovery")
CHUNK = 20
COLLECT_AFTER = 50_000  # objects
NOTHING_DEMANDED, UNBOUNDED = Properties(), Bounds()
KEPT = 200  # last lines of a run that fails


class Failure(NamedTuple):
    """A broken promise. `faults` is the shortest plan found; `seed` spreads start-up times, `schedule` orders ties."""

    seed: int
    property: str
    text: str
    faults: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    divergence: str = ""
    schedule: int = 0
    last: tuple[str, ...] = ()  # lines of its trace, up to where it failed


class Rules(NamedTuple):
    """What a run is judged by, beside what always holds. `horizon_ns` is how long it takes without faults."""

    horizon_ns: int
    properties: Properties = Properties()
    bounds: Bounds = Bounds()


class Verdict(NamedTuple):
    """What one seed came to. `hits` counts the faults that hit, by kind and by the phase of the job."""

    seed: int
    faults: tuple[str, ...]
    failure: Failure | None
    hits: dict[tuple[str, str], int]
    recoveries: int
    seen: tuple[str, ...] = ()  # points, built in or the user's


class Report(NamedTuple):
    """Of a whole campaign."""

    seeds: int
    failures: list[Failure]
    coverage: dict[tuple[str, str], int]
    recoveries: int
    points: Mapping[str, int] = MappingProxyType(
        {}
    )  # in how many runs each was seen that can be, built in or the user's
    demanded: tuple[str, ...] = ()  # the user's

    @property
    def never_seen(self) -> list[str]:
        """Points of the user's that no run reached: the campaign has not tested what it was to test."""
        return [point for point in self.demanded if not self.points.get(point)]

    @property
    def never_reached(self) -> list[str]:
        """Built-in ones."""
        return [point for point, runs in self.points.items() if not runs and point not in self.demanded]

    @property
    def unseen(self) -> list[str]:
        """Phases that no fault ever hit: a campaign that never saw them has not tested them."""
        seen = {phase for (_, phase), count in self.coverage.items() if count}
        return [phase for phase in MUST_SEE if phase not in seen]


def horizon(graph: RoleGraph) -> int:
    """How long the job takes when nothing goes wrong, in ns."""
    return Simulation(graph).run(1000 * HOUR).now


def judge(graph: RoleGraph, plan: Plan, seed: int, rules: Rules, *, quick: bool = False) -> tuple[SimResult, str, str]:
    """The run, and the property that does not hold with what is wrong; two empty strings when all hold.

    A `quick` one computes quiet stretches and checks what has changed: ten times as many in the same time.
    """

    def run(until: int) -> SimResult:
        checks: Checks = "changed" if quick else "all"
        demanded = rules.properties
        simulation = Simulation(
            graph, plan, seed=seed, schedule=seed, checks=checks, fast_forward=quick, properties=demanded
        )
        return simulation.run(until)

    until = end_ns(graph, plan, rules.horizon_ns)
    result = run(until)
    if result.violation is not None:
        return result, result.violation.property, str(result.violation)
    if result.job.outcome == "failed":
        return result, "survives", f"the job has failed: {result.job.ending_reason}"
    stuck = late(result, plan)
    if stuck is not None:
        result = run(stuck[0])  # who waits for what is seen there
        return result, "liveness", f"{stuck[1]}; waiting for {', '.join(result.waiting)}"
    if result.job.outcome is None:
        return result, "liveness", f"not done after {format_duration(until)}; waiting for {', '.join(result.waiting)}"
    broken = rules.bounds.broken(result)
    return result, *(broken[0] if broken else ("", ""))


def try_seed(graph: RoleGraph, seed: int, rules: Rules) -> Verdict:
    """Draw a plan, run it, and make it small if it fails."""
    plan = Nemesis(graph, rules.horizon_ns).plan(seed)
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
    return Verdict(seed, _specs(plan), failure, dict(result.hits), closed, tuple(result.seen))


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
    result, _, text = judge(graph, Plan(tuple(faults)), seed, rules)
    where = _divergence(passing, result.lines) if passing is not None else ""
    specs, last = _specs(Plan(tuple(faults))), _last_lines(result.lines)
    return Failure(seed, property, text, specs, tuple(result.waiting), where, seed, last)


def _last_lines(lines: Sequence[Line]) -> tuple[str, ...]:
    """Of the events before the end: what happened, and what followed from it."""
    return tuple(text for line in lines[max(1, len(lines) - KEPT) :] for text in event_lines(line))[-KEPT:]


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
    properties: Properties = NOTHING_DEMANDED,
    bounds: Bounds = UNBOUNDED,
    tell: Callable[[Verdict], None] = lambda verdict: None,
) -> Report:
    """Try every seed. The report is the same for any number of jobs.

    Args:
        graph: With nodes.
        seeds: Each is a run.
        jobs: Processes to use.
        fail_fast: Stop at the first failure.
        properties: The user's, which hold in every run, and points that some run has to reach.
        bounds: What the faults of a run may cost.
        tell: Hears of each seed, in order.
    """
    seeds = list(seeds)
    nominal = Simulation(graph)
    rules = Rules(nominal.run(1000 * HOUR).now, properties, bounds)
    demanded = tuple(point.name for point in properties.sometimes)
    points = dict.fromkeys([*_reachable(graph, has_spare=nominal.points.has_spare), *demanded], 0)
    failures: list[Failure] = []
    coverage: Counter[tuple[str, str]] = Counter()
    done = recoveries = 0
    for verdict in _verdicts(graph, seeds, rules, jobs):
        done += 1
        coverage.update(verdict.hits)
        recoveries += verdict.recoveries
        for point in verdict.seen:
            points[point] = points.get(point, 0) + 1
        tell(verdict)
        if verdict.failure is not None:
            failures.append(verdict.failure)
            if fail_fast:
                break
    return Report(done, failures, dict(sorted(coverage.items())), recoveries, points, demanded)


def _reachable(graph: RoleGraph, *, has_spare: bool) -> list[str]:
    """Points that plans within the declared tolerance can bring about."""
    tolerance = tolerance_of(graph)
    bears = sum(tolerance.budgets.values()) + tolerance.nodes
    points = reachable(graph, has_spare=has_spare)
    return [point for point in points if bears > (point in (DOUBLE, CONTROLLER))]


def _verdicts(graph: RoleGraph, seeds: list[int], rules: Rules, jobs: int) -> Iterator[Verdict]:
    if jobs <= 1:
        with _rare_collections():
            yield from (try_seed(graph, seed, rules) for seed in seeds)
        return
    # Forked, so that the user's functions need not be importable by name: the processes have them.
    with ProcessPoolExecutor(jobs, get_context("fork"), _take_over, (graph, rules)) as pool:
        chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
        futures = [pool.submit(_try_all, chunk) for chunk in chunks]
        try:
            for future in futures:
                yield from future.result()
        finally:
            for future in futures:
                future.cancel()


_CAMPAIGN: list[tuple[RoleGraph, Rules]] = []  # of this process, which was forked for it


def _take_over(graph: RoleGraph, rules: Rules) -> None:
    _CAMPAIGN[:] = [(graph, rules)]


def _try_all(seeds: list[int]) -> list[Verdict]:
    [(graph, rules)] = _CAMPAIGN
    with _rare_collections():
        return [try_seed(graph, seed, rules) for seed in seeds]


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
    words += ["--live"] if failure.property == "liveness" else []
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
