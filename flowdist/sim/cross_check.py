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
from flowdist.sim.macro.scope import Scope, scope_of
from flowdist.sim.simulation import SimResult, Simulation


class GangSums(NamedTuple):
    """Numbers of one gang, as in `Sums`."""

    generations: int
    step: int
    lost: int
    spent: dict[Bucket, int]


class Sums(NamedTuple):
    """Numbers of one run that both modes have to agree on.

    Generations, steps, lost work and time are those of the first gang of macro mode.
    """

    outcome: str | None  # of the job; None: the run was stopped before its end
    lasted: int  # virtual time of the run, in ns
    generations: int
    causes: dict[str, int]  # number of incidents, by kind
    step: int  # the step that was reached
    lost: int  # work of each worker that had to be done again, in ns
    spent: dict[Bucket, int]  # time by bucket in ns, summed over the replicas
    beside: dict[str, tuple[int, int]]  # generation and saved step of each auxiliary replica, by name
    others: dict[str, GangSums]  # of the other gangs, by name


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
        generations = [[gang.generations for gang in sums.others.values()] for sums in (a, b)]
        alike = (a.outcome, a.generations, a.causes) == (b.outcome, b.generations, b.causes)
        return alike and generations[0] == generations[1]

    def difference(self, bucket: Bucket) -> float:
        """Return the share of all time that macro mode has in the bucket, less the share in protocol mode: -1 to 1.

        Of several gangs, the difference of the one that differs most is returned.
        """
        pairs = [(self.macro.spent, self.protocol.spent)]
        pairs += [(self.macro.others[name].spent, gang.spent) for name, gang in self.protocol.others.items()]
        return max((_share(macro, bucket) - _share(protocol, bucket) for macro, protocol in pairs), key=abs)

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
        # Macro mode draws the faults from its rates, to check the steady-state path too.
        macro = Macro(scope, plan, fault_seed=seed).run(until)
        protocol = Simulation(graph, fixed, checks="paced", tell=tell).run(until)
        if protocol.violation is not None:
            raise FlowdistError(f"seed {seed}: protocol mode has found a violation: {protocol.violation}")
        yield Comparison(seed, len(fixed.faults), _of_macro(macro), _of_protocol(protocol, [scope, *scope.others]))


def _share(spent: dict[Bucket, int], bucket: Bucket) -> float:
    """Return the share of the bucket in all time, from 0 to 1."""
    return spent[bucket] / max(1, sum(spent.values()))


def _of_macro(result: MacroResult) -> Sums:
    others = {
        name: GangSums(gang.generations, gang.step, gang.lost_ns, dict(gang.spent))
        for name, gang in result.others.items()
    }
    return Sums(
        result.outcome,
        result.now,
        result.generations,
        dict(sorted(result.causes.items())),
        result.step,
        result.lost_ns,
        dict(result.spent),
        result.beside,
        others,
    )


def _of_protocol(result: SimResult, scopes: list[Scope]) -> Sums:
    """Return the sums of a run in protocol mode. `scopes` are those of the gangs, the first one first."""
    gangs = [scope.role.name for scope in scopes]
    causes = dict(sorted(Counter(incident.kind for incident in result.job.incidents).items()))
    saved = {name: other.durable for name, other in result.models.items()}
    worlds = ((name, other.generation) for name, other in result.job.worlds.items() if name not in gangs)
    beside = {name: (generation, saved.get(name, 0)) for name, generation in worlds}
    first, *others = (_of_gang(result, scope) for scope in scopes)
    by_name = dict(zip(gangs[1:], others, strict=True))
    return Sums(result.job.outcome, result.now, first.generations, causes, *first[1:], beside, by_name)


def _of_gang(result: SimResult, scope: Scope) -> GangSums:
    """Return the sums of one gang: of all roles of its world."""
    world, model = result.job.worlds[scope.role.name], result.models.get(scope.role.name)
    step = max(world.step, model.step_at(result.now)) if model is not None else 0
    lost = model.lost_ns if model is not None else 0
    names = [part.name for part in scope.parts or (scope.role,)]
    spent = {bucket: sum(result.spent[name][bucket] for name in names) for bucket in BUCKETS}
    return GangSums(world.generation, step, lost, spent)
