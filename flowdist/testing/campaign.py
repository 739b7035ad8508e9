"""Campaign: many seeds, each with a plan of faults that the topology has to survive. Failures are shrunk.

Quiet times are fast-forwarded unless a property of the user's has to see them, and what has changed is checked. A seed
that fails is run again with every step played and everything checked. `verdicts` judges a run.
"""

from __future__ import annotations

import gc
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

from flowdist.faults.grammar import NOTHING, FaultError, Plan, parse_fault
from flowdist.graph import HOUR, RoleGraph
from flowdist.sim.checks.bounds import Bounds
from flowdist.sim.checks.points import CONTROLLER, DOUBLE, reachable
from flowdist.sim.checks.properties import Properties
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.faults.nemesis import Nemesis, tolerance_of
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.sim.workers.collectives import with_collective
from flowdist.testing.corpus import Known, likeness
from flowdist.testing.sameness import errors_text, has_models, unlike
from flowdist.testing.verdicts import Failure, Rules, judge, shrink, specs

__all__ = ["Failure", "Report", "Rules", "Verdict", "campaign", "horizon", "judge", "replay_command"]

MUST_SEE = ("steady", "starting", "in recovery")
SAVING = "saving"  # must be seen only if roles have models
CHUNK = 20
COLLECT_AFTER = 50_000  # number of new objects between two garbage collections
NOTHING_DEMANDED, UNBOUNDED = Properties(), Bounds()


class Verdict(NamedTuple):
    """Result of one seed of a campaign."""

    seed: int
    faults: tuple[str, ...]  # the plan that was drawn for it, in the fault grammar
    failure: Failure | None  # the broken promise, with a shrunk plan; None: the topology survived
    hits: dict[tuple[str, str], int]  # number of faults that hit something, by kind and by the phase of the job
    recoveries: int  # number of incidents that ended in a recovery
    seen: tuple[str, ...] = ()  # names of the points that were reached, built-in ones and the user's
    collective: str = ""  # what the peers of dead workers did, where the topology does not say; empty: they waited
    raised: str = ""  # the first exception that a user's model raised, in words; empty: none did


@dataclass(slots=True)
class Report:
    """Result of a campaign so far; `count` adds the verdict of one more seed.

    `collectives`: runs in which peers of dead workers "fail" or "hang". `raised`: seeds that hold although a model
    raised an exception, which the topology survived as an exit, with the last one in words.
    """

    seeds: int = 0  # number of seeds that were tried
    failures: list[Failure] = field(default_factory=list)  # one for each seed that failed
    coverage: dict[tuple[str, str], int] = field(default_factory=dict)  # faults that hit, by kind and phase of the job
    recoveries: int = 0  # number of incidents that ended in a recovery
    has_models: bool = False  # a role has a user's model (`simulate=`)
    points: dict[str, int] = field(default_factory=dict)  # number of runs that reached it, of each point
    demanded: tuple[str, ...] = ()  # names of the user's points
    collectives: dict[str, int] = field(default_factory=dict)
    stopped: str = ""  # why the campaign ended early, so that points may be unreached; empty: it did not
    raised: dict[int, str] = field(default_factory=dict)
    outdated: list[Known] = field(default_factory=list)  # of the corpus, with what this topology does not have

    def count(self, verdict: Verdict) -> None:
        """Add the verdict of one more seed to the counts."""
        self.seeds += 1
        self.recoveries += verdict.recoveries
        self.coverage = _sums(self.coverage, verdict.hits)
        self.collectives = _sums(self.collectives, {verdict.collective: 1} if verdict.collective else {})
        self.points |= {point: self.points.get(point, 0) + 1 for point in verdict.seen}
        self.failures += [verdict.failure] if verdict.failure is not None else []
        if verdict.raised and verdict.failure is None:
            self.raised[verdict.seed] = verdict.raised

    @property
    def never_seen(self) -> list[str]:
        """The user's points that no run reached: the campaign has not tested what the user wanted."""
        return [point for point in self.demanded if not self.points.get(point)]

    @property
    def never_reached(self) -> list[str]:
        """Built-in points that faults can reach in this topology, but no run did."""
        return [point for point, runs in self.points.items() if not runs and point not in self.demanded]

    @property
    def unseen(self) -> list[str]:
        """Phases of the job in which no fault hit anything: the campaign has not tested them."""
        seen = {phase for (_, phase), count in self.coverage.items() if count}
        must = (*MUST_SEE, SAVING) if self.has_models else MUST_SEE
        return [phase for phase in must if phase not in seen]


def horizon(graph: RoleGraph) -> int:
    """Simulate the job without faults, and return the virtual time that it takes, in ns."""
    return _undisturbed(graph).run(1000 * HOUR).now


def _undisturbed(graph: RoleGraph) -> Simulation:
    """Return a simulation of the job without faults, which makes the same checks as those of the seeds."""
    return Simulation(graph, checks="changed", fast_forward=True)


def try_seed(graph: RoleGraph, seed: int, rules: Rules) -> Verdict:
    """Draw the plan of the seed, simulate it, and shrink the plan if the run breaks a demand."""
    rules, failure = _with_truth(graph, seed, rules)
    if failure is not None:
        return Verdict(seed, (), failure, {}, 0)
    nemesis = Nemesis(graph, rules.horizon_ns, rules.truth.played.saves if rules.truth is not None else ())
    plan, collective = nemesis.plan(seed), nemesis.collective(seed)
    result, property, text = judge(with_collective(graph, collective), plan, seed, rules, quick=True)
    failure = _made_small(graph, plan, seed, rules, collective, (property, text)) if property else None
    closed = sum(incident.result in ("re-formed", "recovered") for incident in result.job.incidents)
    seen, raised = tuple(result.seen), errors_text(result.played)
    return Verdict(seed, specs(plan), failure, dict(result.hits), closed, seen, collective, raised)


def try_known(graph: RoleGraph, known: Known, rules: Rules) -> Verdict:
    """Simulate a known failure's plan again, and shrink it if it fails; FaultError if it names what is gone."""
    plan = Plan(tuple(map(parse_fault, known.faults)))
    check_faults(plan, graph)
    rules, failure = _with_truth(graph, known.seed, rules)
    drawn = with_collective(graph, known.collective)
    if failure is None and (property := judge(drawn, plan, known.seed, rules)[1]):
        failure = shrink(drawn, plan, known.seed, rules, property)._replace(collective=known.collective)
    return Verdict(known.seed, known.faults, failure, {}, 0)


def _with_truth(graph: RoleGraph, seed: int, rules: Rules) -> tuple[Rules, Failure | None]:
    """Return the rules with the run without faults, and its failure or None; only models of roles need it."""
    if not has_models(graph):
        return rules, None
    truth, property, text = judge(graph, NOTHING, seed, rules)
    if property:
        return rules, Failure(seed, property, f"without any fault: {text}", (), schedule=seed)
    return rules._replace(truth=truth), None


def _made_small(
    graph: RoleGraph, plan: Plan, seed: int, rules: Rules, collective: str, broken: tuple[str, str]
) -> Failure:
    """Return the failure of a seed, whose quick run has `broken` a property (name, text), with a shrunk plan.

    If only the fast-forwarded run fails, not one with every step played, the failure says so, and nothing is shrunk.
    """
    drawn = with_collective(graph, collective)
    _, played, _ = judge(drawn, plan, seed, rules)  # with all checks, another property may be found broken first
    if not played:
        text = f"{broken[1]}; only when quiet stretches are computed"
        return Failure(seed, broken[0], text, specs(plan), schedule=seed, collective=collective)
    if collective and judge(graph, plan, seed, rules)[1] == played:
        drawn, collective = graph, ""
    return shrink(drawn, plan, seed, rules, played)._replace(collective=collective)


ALIKE_MAX = 10  # failures that are alike, after which a campaign stops


def campaign(
    graph: RoleGraph,
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    fail_fast: bool = False,
    alike_max: int | None = ALIKE_MAX,
    strict: bool = False,
    properties: Properties = NOTHING_DEMANDED,
    bounds: Bounds = UNBOUNDED,
    known: Sequence[Known] = (),
    tell: Callable[[Verdict], None] = lambda verdict: None,
) -> Report:
    """Try every seed, and return the report, which is the same for any number of processes, `jobs`.

    A KeyboardInterrupt ends it early. So does a job that fails without faults, or a model that does not do the same
    twice. With `fail_fast` it stops at the first failure; else after `alike_max` alike, as one bug makes most seeds
    fail (None: never). `strict`: an exception in a model is a failure. The plans of `known` failures are tried first;
    the seed of one that fails again is not tried. `tell` gets each verdict in order.
    """
    seeds = list(seeds)
    unsteady = _unsteady(graph, seeds[0]) if seeds and has_models(graph) else None
    if unsteady is not None:
        return Report(1, [unsteady], stopped="a model that does not do the same twice proves nothing")
    nominal = _undisturbed(graph)
    undisturbed = nominal.run(1000 * HOUR)
    if (failure := _without_faults(undisturbed)) is not None:
        return Report(1, [failure], stopped="there is nothing to survive where the job fails by itself")
    rules = Rules(undisturbed.now, properties, bounds, strict)
    demanded = tuple(point.name for point in properties.sometimes)
    points = dict.fromkeys([*_reachable(graph, has_spare=nominal.points.has_spare), *demanded], 0)
    report = Report(has_models=has_models(graph), points=points, demanded=demanded)
    alike: Counter[tuple[str, str]] = Counter()
    try:
        for verdict in _from_corpus_on(graph, known, seeds, rules, jobs, report.outdated):
            report.count(verdict)
            tell(verdict)
            if verdict.failure is None:
                continue
            if fail_fast:
                report.stopped = "at the first failure"
                break
            alike[likeness(verdict.failure)] += 1
            if alike_max is not None and max(alike.values()) >= alike_max:
                report.stopped = f"after {alike_max} failures that are alike"
                break
    except KeyboardInterrupt:
        report.stopped = "interrupted"
    return report


Key = TypeVar("Key", str, tuple[str, str])


def _sums(counts: Mapping[Key, int], more: Mapping[Key, int]) -> dict[Key, int]:
    """Return the sums of two counts by key, in the order of the keys: a report is the same for any order of seeds."""
    return {key: counts.get(key, 0) + more.get(key, 0) for key in sorted({**counts, **more})}


def _from_corpus_on(
    graph: RoleGraph, known: Sequence[Known], seeds: Sequence[int], rules: Rules, jobs: int, outdated: list[Known]
) -> Iterator[Verdict]:
    """Yield the verdicts of known plans that fail again, then those of the other seeds; fill `outdated`."""
    failed: set[int] = set()
    for one in known:
        try:
            verdict = try_known(graph, one, rules)
        except FaultError:
            outdated.append(one)
            continue
        if verdict.failure is not None:
            failed.add(one.seed)
            yield verdict
    yield from _verdicts(graph, [seed for seed in seeds if seed not in failed], rules, jobs)


def _without_faults(result: SimResult) -> Failure | None:
    if result.violation is not None:
        return Failure(0, result.violation.property, f"without any fault: {result.violation}", ())
    if result.job.outcome == "succeeded":
        return None
    raised = errors_text(result.played)
    why = result.job.ending_reason or f"waiting for {', '.join(result.waiting)}"
    end = f"the job has {result.job.outcome or 'not ended'}: {why}{f'; {raised}' if raised else ''}"
    return Failure(0, "survives", f"without any fault: {end}", ())


def _reachable(graph: RoleGraph, *, has_spare: bool) -> list[str]:
    """Return the names of the built-in points that plans within the topology's tolerance can reach."""
    tolerance = tolerance_of(graph)
    bears = sum(tolerance.budgets.values()) + tolerance.nodes
    points = reachable(graph, has_spare=has_spare)
    return [point for point in points if bears > (point in (DOUBLE, CONTROLLER))]


def _unsteady(graph: RoleGraph, seed: int) -> Failure | None:
    """Simulate the seed twice without faults; return a failure if users' models do not do the same both times."""
    text = unlike(*(Simulation(graph, seed=seed).run(1000 * HOUR) for _ in range(2)))
    return Failure(seed, "determinism", text, ()) if text else None


def _verdicts(graph: RoleGraph, seeds: list[int], rules: Rules, jobs: int) -> Iterator[Verdict]:
    """Try the seeds, in `jobs` processes if that is more than one, and yield their verdicts in order."""
    if jobs <= 1:
        with _rare_collections():
            yield from (try_seed(graph, seed, rules) for seed in seeds)
        return
    # Forked processes have the user's functions already. Others would have to import them by name.
    context = get_context("fork")
    enough = context.Event()
    with ProcessPoolExecutor(jobs, context, _take_over, (graph, rules, enough)) as pool:
        chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
        futures = [pool.submit(_try_all, chunk) for chunk in chunks]
        try:
            for future in futures:
                yield from future.result()
        finally:
            enough.set()
            for future in futures:
                future.cancel()


_CAMPAIGN: list[tuple[RoleGraph, Rules, Any]] = []  # what a process that is forked for a campaign works on


def _take_over(graph: RoleGraph, rules: Rules, enough: Any) -> None:
    """Prepare a forked process for the campaign: it ignores Ctrl-C, and stops trying seeds once `enough` is set."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent sets `enough`
    _CAMPAIGN[:] = [(graph, rules, enough)]


def _try_all(seeds: list[int]) -> list[Verdict]:
    """Return the verdicts of the seeds, in a forked process; of those before `enough` was set only."""
    [(graph, rules, enough)] = _CAMPAIGN
    with _rare_collections():
        return [try_seed(graph, seed, rules) for seed in seeds if not enough.is_set()]


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage rarely within the block: nearly all objects of a run live until its end."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def replay_command(target: str, options: Iterable[str], failure: Failure) -> str:
    """Return the command line that replays a failure, on the topology file, if there is one, with further options."""
    words = ["flowdist", "simulate", *([target] if target else []), *options]
    if failure.property == "determinism":  # a campaign runs a seed twice and compares; a single run would show nothing
        return shlex.join([*words, "--seeds", str(failure.seed)])
    words += ["--seed", str(failure.seed)]
    words += ["--schedule", str(failure.schedule)] if failure.schedule else []
    words += ["--collective", failure.collective] if failure.collective else []
    for fault in failure.faults:
        words += ["--fail", fault]
    words += ["--live"] if failure.property == "liveness" else []
    return shlex.join(words)
