"""Play experiments: exactly, with each message of the job, or fast, from one change of membership to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from flowdist.errors import FlowdistError
from flowdist.faults.rates import Arrivals
from flowdist.sim.checks.properties import Properties
from flowdist.sim.experiment.compare import Comparison, compare
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.outcome import Outcome, of_macro, of_simulation
from flowdist.sim.macro.job import Tell
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.scope import Scope, scope_of
from flowdist.sim.simulation import NOTHING_DEMANDED

Mode = Literal["exact", "fast"]
Progress = Callable[[int, int], None]  # called with the virtual time in ns and the number of events


def play(
    experiment: Experiment,
    mode: Mode = "exact",
    *,
    tell: Progress | None = None,
    fast_forward: bool = False,
    properties: Properties = NOTHING_DEMANDED,
) -> Outcome:
    """Simulate an experiment, and return what came of it.

    In fast mode only changes of membership are played, not each message: weeks of a large gang in seconds; MacroRefused
    or FaultError if it does not play this job. The other arguments are of exact simulations: `tell` is called with
    their progress, and with `fast_forward` quiet times are computed instead of played.
    """
    if mode == "fast":
        return _fast(scope_of(experiment.graph, experiment.plan), experiment)
    simulation = experiment.simulation(tell=tell, fast_forward=fast_forward, properties=properties)
    outcome = of_simulation(simulation.run(experiment.until_ns))
    simulation.take_apart()
    return outcome


def play_seeds(
    experiment: Experiment, mode: Mode, seeds: Iterable[int], scope: Scope | None = None, tell: Tell | None = None
) -> Iterator[Outcome]:
    """Simulate an experiment once with each seed, and yield the outcomes in the order of the seeds.

    Their `hits` have each rate of the plan. `scope` is the job as fast mode knows it; None: made here. In fast mode
    `tell` is called at each change. Raises MacroRefused or FaultError if fast mode does not play this job, and
    FlowdistError if a simulation has found a violation.
    """
    if mode == "fast" and scope is None:
        scope = scope_of(experiment.graph, experiment.plan)
    never = {rate.name: 0 for rate in experiment.plan.rates}
    for seed in seeds:
        one = experiment._replace(seed=seed)
        outcome = _fast(scope, one, tell) if scope is not None else checked(play(one, fast_forward=True))
        yield outcome._replace(hits={**never, **outcome.hits})


def _fast(scope: Scope, experiment: Experiment, tell: Tell | None = None) -> Outcome:
    macro = Macro(scope, experiment.plan, seed=experiment.seed, tell=tell)
    return of_macro(macro.run(experiment.until_ns), scope.role, experiment.seed)


def checked(outcome: Outcome, *, may_stand_still: bool = False) -> Outcome:
    """Return an outcome whose figures may be used; FlowdistError if a check has failed, or the job stands still."""
    found = outcome.exact.violation
    if found is not None and not (may_stand_still and found.property == "liveness"):
        raise FlowdistError(f"seed {outcome.seed}: the simulation has found a violation: {found}")
    return outcome


def cross_check(
    experiment: Experiment, seeds: Sequence[int], tell: Progress | None = None
) -> Iterator[tuple[Experiment, Comparison]]:
    """Play an experiment in both modes, fast and exact, with the faults that each seed draws from its rates.

    Yields the experiment with these faults, up to its end, and the comparison. All but the faults is nominal. Raises
    MacroRefused or FaultError if fast mode does not play this job, and FlowdistError if exact mode has found a
    violation.
    """
    plan, until_ns = experiment.plan, experiment.until_ns
    assert until_ns is not None
    scope = scope_of(experiment.graph, plan)
    for seed in seeds:
        drawn = Arrivals(plan.rates, experiment.graph, scope.nodes, seed, plan.starts).until(until_ns)
        one = experiment._replace(plan=plan._replace(faults=(*plan.faults, *drawn), rates=()), seed=0)
        yield one, compare(_fast(scope, one), checked(play(one, tell=tell)))
