"""A campaign: many seeds, each with a plan of faults that the topology has to survive; what fails is made small.

Safety is checked after every moment of every run: split brain always, the invariants where something has changed, and
all of them now and then and at the end. Quiet stretches are computed. Liveness: the faults end, what they broke heals,
and the job has to succeed. A seed that fails is run again, every step played and everything checked after every event,
and its plan is shrunk by leaving faults out for as long as it goes on failing.
"""

from __future__ import annotations

import gc
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from flowdist.control.history import Line, Record
from flowdist.faults import Plan
from flowdist.graph import HOUR, RoleGraph, format_duration
from flowdist.report.trace import trace_lines
from flowdist.sim.nemesis import Nemesis
from flowdist.sim.simulation import Checks, SimResult, Simulation

PATIENCE = 50  # times as long as without faults: whoever takes longer has not recovered
MUST_SEE = ("steady", "starting", "in recovery")
CHUNK = 20
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

    @property
    def unseen(self) -> list[str]:
        """Phases that no fault ever hit: a campaign that never saw them has not tested them."""
        seen = {phase for (_, phase), count in self.coverage.items() if count}
        return [phase for phase in MUST_SEE if phase not in seen]


def horizon(graph: RoleGraph) -> int:
    """How long the job takes when nothing goes wrong, in ns."""
    return Simulation(graph).run(1000 * HOUR).now


def judge(graph: RoleGraph, plan: Plan, seed: int, until: int, *, quick: bool = False) -> tuple[SimResult, str, str]:
    """The run, and the property that does not hold with what is wrong; two empty strings when all hold.

    A `quick` one computes quiet stretches and checks what has changed: ten times as many in the same time.
    """
    checks: Checks = "changed" if quick else "all"
    result = Simulation(graph, plan, seed=seed, schedule=seed, checks=checks, fast_forward=quick).run(until)
    if result.violation is not None:
        return result, result.violation.property, str(result.violation)
    if result.job.outcome == "succeeded":
        return result, "", ""
    if result.job.outcome is None:
        return result, "liveness", f"not done after {format_duration(until)}; waiting for {', '.join(result.waiting)}"
    return result, "survives", f"the job has {result.job.outcome}: {result.job.ending_reason}"


def try_seed(graph: RoleGraph, seed: int, horizon_ns: int) -> Verdict:
    """Draw a plan, run it, and make it small if it fails."""
    plan = Nemesis(graph, horizon_ns).plan(seed)
    until = PATIENCE * horizon_ns
    result, property, text = judge(graph, plan, seed, until, quick=True)
    failure = None
    if property:
        _, played, said = judge(graph, plan, seed, until)  # what is wrong may be seen earlier
        if played:
            failure = _shrink(graph, plan, seed, until, played, said)
        else:
            failure = Failure(
                seed, property, f"{text}; only when quiet stretches are computed", _specs(plan), schedule=seed
            )
    closed = sum(incident.result == "recovered" for incident in result.job.incidents)
    return Verdict(seed, _specs(plan), failure, dict(result.hits), closed)


def _specs(plan: Plan) -> tuple[str, ...]:
    return tuple(fault.spec for fault in plan.faults)


def _shrink(graph: RoleGraph, plan: Plan, seed: int, until: int, property: str, text: str) -> Failure:
    """Leave out what is not needed for a failure of the same property, one fault after the other, from the last."""
    faults = list(plan.faults)
    passing: Sequence[Line] | None = None
    for fault in reversed(plan.faults):
        fewer = [other for other in faults if other is not fault]
        result, found, words = judge(graph, Plan(tuple(fewer)), seed, until)
        if found == property:
            faults, text = fewer, words
        elif not found:
            passing = result.lines
    result, _, text = judge(graph, Plan(tuple(faults)), seed, until)
    where = _divergence(passing, result.lines) if passing is not None else ""
    return Failure(seed, property, text, tuple(fault.spec for fault in faults), tuple(result.waiting), where, seed)


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
    tell: Callable[[Verdict], None] = lambda verdict: None,
) -> Report:
    """Try every seed. The report is the same for any number of jobs.

    Args:
        graph: With nodes.
        seeds: Each is a run.
        jobs: Processes to use.
        fail_fast: Stop at the first failure.
        tell: Hears of each seed, in order.
    """
    horizon_ns = horizon(graph)
    failures: list[Failure] = []
    coverage: Counter[tuple[str, str]] = Counter()
    done = recoveries = 0
    for verdict in _verdicts(graph, list(seeds), horizon_ns, jobs):
        done += 1
        coverage.update(verdict.hits)
        recoveries += verdict.recoveries
        tell(verdict)
        if verdict.failure is not None:
            failures.append(verdict.failure)
            if fail_fast:
                break
    return Report(done, failures, dict(sorted(coverage.items())), recoveries)


def _verdicts(graph: RoleGraph, seeds: list[int], horizon_ns: int, jobs: int) -> Iterator[Verdict]:
    if jobs <= 1:
        with _rare_collections():
            yield from (try_seed(graph, seed, horizon_ns) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
        futures = [pool.submit(_try_all, graph, chunk, horizon_ns) for chunk in chunks]
        try:
            for future in futures:
                yield from future.result()
        finally:
            for future in futures:
                future.cancel()


def _try_all(graph: RoleGraph, seeds: list[int], horizon_ns: int) -> list[Verdict]:
    with _rare_collections():
        return [try_seed(graph, seed, horizon_ns) for seed in seeds]


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
