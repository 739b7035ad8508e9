"""Cross-check of macro mode: a job with the same faults in macro mode and in protocol mode, and the difference.

Protocol mode plays each message (`Simulation`). Both modes draw the same faults from a seed (common random numbers).
Start-up times are nominal in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan
from flowdist.faults.rates import Arrivals
from flowdist.graph import RoleGraph
from flowdist.record.accounts import BUCKETS, Bucket
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.result import MacroResult
from flowdist.sim.macro.scope import scope_of
from flowdist.sim.simulation import SimResult, Simulation


class Sums(NamedTuple):
    """Numbers of one run that both modes have to agree on."""

    outcome: str | None  # of the job; None: the run was stopped before its end
    lasted: int  # virtual time of the run, in ns
    generations: int
    causes: dict[str, int]  # number of incidents, by kind
    step: int  # the step that was reached
    lost: int  # work of each worker that had to be done again, in ns
    spent: dict[Bucket, int]  # time by bucket in ns, summed over the replicas


class Comparison(NamedTuple):
    """Results of one seed in both modes."""

    seed: int
    faults: int  # faults of the plan and drawn ones, whether they hit or not
    macro: Sums
    protocol: Sums

    @property
    def is_equal(self) -> bool:
        """Return whether the results are the same to the nanosecond."""
        return self.macro == self.protocol

    @property
    def is_alike(self) -> bool:
        """Return whether outcome, numbers of generations, and number of incidents of each kind are the same."""
        a, b = self.macro, self.protocol
        return (a.outcome, a.generations, a.causes) == (b.outcome, b.generations, b.causes)

    def difference(self, bucket: Bucket) -> float:
        """Return the share of all time that macro mode has in the bucket, less the share in protocol mode: -1 to 1."""
        return _share(self.macro.spent, bucket) - _share(self.protocol.spent, bucket)

    @property
    def worst(self) -> float:
        """Largest absolute `difference` of any bucket: 0 to 1."""
        return max(abs(self.difference(bucket)) for bucket in BUCKETS)


def compare(
    graph: RoleGraph, plan: Plan, seeds: Iterable[int], until: int, tell: Callable[[int, int], None] | None = None
) -> Iterator[Comparison]:
    """Run the job in both modes for each seed, and yield the comparison.

    Args:
        graph: The job.
        plan: Its faults and rates.
        seeds: Each draws other faults from the rates.
        until: The virtual time in ns at which both modes stop. Faults are drawn up to it.
        tell: Called with the progress of protocol mode: see `Simulation`.

    Raises:
        MacroRefused: for a job that macro mode does not play.
        FlowdistError: if protocol mode finds a violation.
    """
    scope = scope_of(graph, plan)
    for seed in seeds:
        drawn = tuple(Arrivals(plan.rates, graph, scope.nodes, seed, plan.starts).until(until))
        fixed = plan._replace(faults=plan.faults + drawn, rates=())
        macro = Macro(scope, plan, fault_seed=seed).run(until)
        protocol = Simulation(graph, fixed, checks="paced", tell=tell).run(until)
        if protocol.violation is not None:
            raise FlowdistError(f"seed {seed}: protocol mode has found a violation: {protocol.violation}")
        yield Comparison(seed, len(fixed.faults), _of_macro(macro), _of_protocol(protocol, scope.role.name))


def _share(spent: dict[Bucket, int], bucket: Bucket) -> float:
    """Return the share of the bucket in all time, from 0 to 1."""
    return spent[bucket] / max(1, sum(spent.values()))


def _of_macro(result: MacroResult) -> Sums:
    return Sums(
        result.outcome,
        result.now,
        result.generations,
        dict(sorted(result.causes.items())),
        result.step,
        result.lost_ns,
        dict(result.spent),
    )


def _of_protocol(result: SimResult, gang: str) -> Sums:
    """Return the sums of a run in protocol mode. `gang` is the name of the only role."""
    causes = dict(sorted(Counter(incident.kind for incident in result.job.incidents).items()))
    world, model = result.job.worlds[gang], result.models.get(gang)
    step = max(world.step, model.step_at(result.now)) if model is not None else 0
    lost = model.lost_ns if model is not None else 0
    return Sums(result.job.outcome, result.now, world.generation, causes, step, lost, dict(result.spent[gang]))
