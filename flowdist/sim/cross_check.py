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
    """Numbers of one run that both modes have to agree on. All but `beside` are about the gang of macro mode."""

    outcome: str | None  # of the job; None: the run was stopped before its end
    lasted: int  # virtual time of the run, in ns
    generations: int
    causes: dict[str, int]  # number of incidents, by kind
    step: int  # the step that was reached
    lost: int  # work of each worker that had to be done again, in ns
    spent: dict[Bucket, int]  # time by bucket in ns, summed over the replicas
    beside: dict[str, tuple[int, int]]  # generation and saved step of each auxiliary replica, by name


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
        """Return whether outcome, number of generations, and number of incidents of each kind are the same."""
        a, b = self.macro, self.protocol
        return (a.outcome, a.generations, a.causes) == (b.outcome, b.generations, b.causes)

    def difference(self, bucket: Bucket) -> float:
        """Return the share of all time that macro mode has in the bucket, less the share in protocol mode: -1 to 1."""
        total = max(1, sum(self.protocol.spent.values()))
        return self.macro.spent[bucket] / max(1, sum(self.macro.spent.values())) - self.protocol.spent[bucket] / total

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
        drawn = tuple(Arrivals(plan.rates, graph, scope.nodes, seed).until(until))
        fixed = plan._replace(faults=plan.faults + drawn, rates=())
        # Macro mode draws the faults from its rates, to check the steady-state path too.
        macro = Macro(scope, plan, fault_seed=seed).run(until)
        protocol = Simulation(graph, fixed, checks="paced", tell=tell).run(until)
        if protocol.violation is not None:
            raise FlowdistError(f"seed {seed}: protocol mode has found a violation: {protocol.violation}")
        yield Comparison(seed, len(fixed.faults), _of_macro(macro), _of_protocol(protocol, scope.role.name))


def _of_macro(result: MacroResult) -> Sums:
    return Sums(
        result.outcome,
        result.now,
        result.generations,
        dict(sorted(result.causes.items())),
        result.step,
        result.lost_ns,
        dict(result.spent),
        result.beside,
    )


def _of_protocol(result: SimResult, role: str) -> Sums:
    world, model = result.job.worlds[role], result.models.get(role)
    causes = dict(sorted(Counter(incident.kind for incident in result.job.incidents).items()))
    step = max(world.step, model.step_at(result.now)) if model is not None else 0
    lost = model.lost_ns if model is not None else 0
    saved = {name: other.durable for name, other in result.models.items()}
    others = ((name, other.generation) for name, other in result.job.worlds.items() if name != role)
    beside = {name: (generation, saved.get(name, 0)) for name, generation in others}
    return Sums(result.job.outcome, result.now, world.generation, causes, step, lost, dict(result.spent[role]), beside)
