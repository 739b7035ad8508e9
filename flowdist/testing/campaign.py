"""A campaign: many seeds, each with a plan of faults that the topology has to survive; what fails is made small.

Safety is checked after every moment of every run: split brain always, the invariants where something has changed, and
all of them now and then and at the end; the user's properties after every event. Quiet stretches are computed, where no
property of the user's looks on. A seed that fails is run again, every step played and everything checked after every
event, and its plan is shrunk by leaving faults out for as long as it goes on failing. How a run is judged: `judging`.
"""

from __future__ import annotations

import gc
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from flowdist.faults import NOTHING, Plan
from flowdist.graph import HOUR, RoleGraph
from flowdist.sim.bounds import Bounds
from flowdist.sim.collectives import with_collective
from flowdist.sim.nemesis import Nemesis, tolerance_of
from flowdist.sim.points import CONTROLLER, DOUBLE, reachable
from flowdist.sim.properties import Properties
from flowdist.sim.simulation import Simulation
from flowdist.testing.judging import Failure, Rules, judge, shrink, specs
from flowdist.testing.sameness import has_models, unlike

__all__ = ["Corpus", "Failure", "Report", "Rules", "Verdict", "campaign", "horizon", "judge", "replay_command"]

MUST_SEE = ("steady", "starting", "in recovery")
SAVING = "saving"  # only where roles have models
CHUNK = 20
COLLECT_AFTER = 50_000  # objects
NOTHING_DEMANDED, UNBOUNDED = Properties(), Bounds()


class Verdict(NamedTuple):
    """What one seed came to. `hits` counts the faults that hit, by kind and by the phase of the job."""

    seed: int
    faults: tuple[str, ...]
    failure: Failure | None
    hits: dict[tuple[str, str], int]
    recoveries: int
    seen: tuple[str, ...] = ()  # points, built in or the user's
    collective: str = ""  # what became of the peers of dead workers, where the topology does not say


class Report(NamedTuple):
    """Of a whole campaign. `points` says in how many runs each was seen that can be, built in or the user's."""

    seeds: int
    failures: list[Failure]
    coverage: dict[tuple[str, str], int]
    recoveries: int
    has_models: bool = False
    points: Mapping[str, int] = MappingProxyType({})
    demanded: tuple[str, ...] = ()  # the user's
    collectives: Mapping[str, int] = MappingProxyType({})  # in how many runs peers were made to fail, or to hang

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
        must = (*MUST_SEE, SAVING) if self.has_models else MUST_SEE
        return [phase for phase in must if phase not in seen]


def horizon(graph: RoleGraph) -> int:
    """How long the job takes when nothing goes wrong, in ns."""
    return _undisturbed(graph).run(1000 * HOUR).now


def _undisturbed(graph: RoleGraph) -> Simulation:
    """The job when nothing goes wrong, as the seeds are run: quiet stretches computed, what has changed checked."""
    return Simulation(graph, checks="changed", fast_forward=True)


def try_seed(graph: RoleGraph, seed: int, rules: Rules) -> Verdict:
    """Draw a plan, run it, and make it small if it fails."""
    if has_models(graph):
        truth, property, text = judge(graph, NOTHING, seed, rules)
        if property:
            return Verdict(seed, (), Failure(seed, property, f"without any fault: {text}", (), schedule=seed), {}, 0)
        rules = rules._replace(truth=truth)
    nemesis = Nemesis(graph, rules.horizon_ns, rules.truth.played.saves if rules.truth is not None else ())
    plan, collective = nemesis.plan(seed), nemesis.collective(seed)
    result, property, text = judge(with_collective(graph, collective), plan, seed, rules, quick=True)
    failure = _made_small(graph, plan, seed, rules, collective, (property, text)) if property else None
    closed = sum(incident.result == "recovered" for incident in result.job.incidents)
    return Verdict(seed, specs(plan), failure, dict(result.hits), closed, tuple(result.seen), collective)


def _made_small(
    graph: RoleGraph, plan: Plan, seed: int, rules: Rules, collective: str, broken: tuple[str, str]
) -> Failure:
    """With the plan, what becomes of peers goes, too, when it is not needed."""
    drawn = with_collective(graph, collective)
    _, played, _ = judge(drawn, plan, seed, rules)  # what is wrong may be seen earlier
    if not played:
        text = f"{broken[1]}; only when quiet stretches are computed"
        return Failure(seed, broken[0], text, specs(plan), schedule=seed, collective=collective)
    if collective and judge(graph, plan, seed, rules)[1] == played:
        drawn, collective = graph, ""
    return shrink(drawn, plan, seed, rules, played)._replace(collective=collective)


def campaign(
    graph: RoleGraph,
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    fail_fast: bool = False,
    strict: bool = False,
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
        strict: An exception of user code is a failure, whatever the topology makes of it.
        properties: The user's, which hold in every run, and points that some run has to reach.
        bounds: What the faults of a run may cost.
        tell: Hears of each seed, in order.
    """
    seeds = list(seeds)
    unsteady = _unsteady(graph, seeds[0]) if seeds and has_models(graph) else None
    if unsteady is not None:
        return Report(1, [unsteady], {}, 0)
    nominal = _undisturbed(graph)
    rules = Rules(nominal.run(1000 * HOUR).now, properties, bounds, strict)
    demanded = tuple(point.name for point in properties.sometimes)
    points = dict.fromkeys([*_reachable(graph, has_spare=nominal.points.has_spare), *demanded], 0)
    failures: list[Failure] = []
    coverage: Counter[tuple[str, str]] = Counter()
    collectives: Counter[str] = Counter()
    done = recoveries = 0
    for verdict in _verdicts(graph, seeds, rules, jobs):
        done += 1
        coverage.update(verdict.hits)
        recoveries += verdict.recoveries
        collectives.update([verdict.collective] if verdict.collective else [])
        for point in verdict.seen:
            points[point] = points.get(point, 0) + 1
        tell(verdict)
        if verdict.failure is not None:
            failures.append(verdict.failure)
            if fail_fast:
                break
    kinds = dict(sorted(coverage.items()))
    return Report(
        done, failures, kinds, recoveries, has_models(graph), points, demanded, dict(sorted(collectives.items()))
    )


def _reachable(graph: RoleGraph, *, has_spare: bool) -> list[str]:
    """Points that plans within the declared tolerance can bring about."""
    tolerance = tolerance_of(graph)
    bears = sum(tolerance.budgets.values()) + tolerance.nodes
    points = reachable(graph, has_spare=has_spare)
    return [point for point in points if bears > (point in (DOUBLE, CONTROLLER))]


def _unsteady(graph: RoleGraph, seed: int) -> Failure | None:
    """User code that does not do the same twice: nothing that is found with it could be seen again."""
    text = unlike(*(Simulation(graph, seed=seed).run(1000 * HOUR) for _ in range(2)))
    return Failure(seed, "determinism", text, ()) if text else None


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
    words += ["--collective", failure.collective] if failure.collective else []
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
