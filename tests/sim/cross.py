"""Jobs that both modes of the simulator play: the fast one first, then the exact one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowdist.faults.grammar import Plan
from flowdist.graph import RoleGraph
from flowdist.sim.experiment.compare import Comparison
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.play import cross_check
from flowdist.sim.macro.result import MacroResult


def crossed(
    graph: RoleGraph,
    plan: Plan,
    seeds: Sequence[int],
    until_ns: int,
    tell: Callable[[int, int], None] | None = None,
) -> list[Comparison]:
    """Return the comparison of each seed."""
    return [found for _, found in cross_check(Experiment(graph, plan, until_ns), seeds, tell)]


def faults_of(one: Comparison) -> int:
    """Return how many faults hit something."""
    assert isinstance(one.a.result, MacroResult)
    return one.a.result.faults


def spent_of(one: Comparison) -> dict[str, int]:
    """Return the time by bucket of the only role."""
    (spent,) = one.a.spent.values()
    return {**spent}
