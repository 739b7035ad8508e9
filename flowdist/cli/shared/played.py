"""Timelines of problems: the scene of a problem, played by the simulator and told in a few lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowdist.dsl.load import Loaded
    from flowdist.dsl.problems.problem import Problem
    from flowdist.dsl.problems.scene import Scene
    from flowdist.faults.grammar import Plan
    from flowdist.graph import RoleGraph

LINES_MAX = 6
EVENTS_MAX = 20_000  # a scene with more is not shown: nobody waits for a note


class _TooLong(Exception):
    """The scene has too many events."""


def with_timelines(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems; those that have a scene have its timeline, too."""
    return [
        problem if problem.scene is None or problem.timeline else problem._replace(timeline=played(problem.scene))
        for problem in problems
    ]


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
    from flowdist.dsl.check.timeouts import find, problem_of  # the DSL: verbs about a run do without
    from flowdist.report.static.plan_timeouts import problems_of_plan  # the grammar of faults, as above

    known = {(found.code, found.role) for found in find(loaded.graph)}
    new = [found for found in find(graph) if (found.code, found.role) not in known]
    return [
        *(problem_of(found, loaded.arguments) for found in new),
        *problems_of_plan(plan, graph, loaded.arguments),
    ]


def played(scene: Scene) -> tuple[str, ...]:
    """Play a scene, and return what happens in it, one line each; empty if it takes too many events."""
    from flowdist.faults.files import parse_plan  # the engine: only when something is played
    from flowdist.report.record.brief import brief_timeline
    from flowdist.sim.simulation import Simulation

    plan = parse_plan(scene.faults)
    simulation = Simulation(
        scene.graph, plan, checks="paced", tell=_limit, fast_forward=True, play_heartbeats=scene.beats
    )
    try:
        result = simulation.run(scene.until_ns)
    except _TooLong:
        return ()
    return tuple(brief_timeline(result.lines, LINES_MAX))


def _limit(now: int, events: int) -> None:
    """Raise `_TooLong` if a simulation has had too many events at the time `now`."""
    if events > EVENTS_MAX:
        raise _TooLong
