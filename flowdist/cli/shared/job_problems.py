"""Problems that the command line adds to those of a topology: its faults, and options that change the graph."""

from __future__ import annotations

from flowdist.dsl.check.timeouts import find, problem_of
from flowdist.dsl.load import Loaded
from flowdist.dsl.problems.problem import Problem
from flowdist.faults.grammar import Plan
from flowdist.graph import RoleGraph
from flowdist.report.static.plan_timeouts import problems_of_plan


def problems_of_job(loaded: Loaded, graph: RoleGraph, plan: Plan) -> list[Problem]:
    """Return the problems of timeouts that the command line adds to those of the topology: those of its faults.

    An option that changes the graph, such as --collective, may add some as well.

    Args:
        loaded: The topology, of which the problems are known.
        graph: The graph that is run or simulated, with nodes.
        plan: The faults of the command line, or of a scenario.
    """
    if graph is loaded.graph and not any(plan):
        return []
    known = {(found.code, found.role) for found in find(loaded.graph)}
    new = [found for found in find(graph) if (found.code, found.role) not in known]
    return [
        *(problem_of(found, loaded.arguments) for found in new),
        *problems_of_plan(plan, graph, loaded.arguments),
    ]
