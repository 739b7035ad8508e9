"""The strategies and Hypothesis: a test that fails is made small soon, and Hypothesis traces no simulation."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, find, given, seed, settings

from flowdist.control.job.state import JobState
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.testing import graph_of, simulate
from flowdist.testing.strategies import Schedule, fault_plans, schedules
from flowdist.testing.tracing import TOOL, TOOL_ID

GANG = graph_of(Path(__file__).parents[2] / "scenarios/topologies/gang.py")
QUIET = settings(database=None, deadline=None, max_examples=200)


def is_traced() -> bool:
    """Return whether Hypothesis traces. In Python 3.12 and 3.13, a tool that has gone may leave its events."""
    if sys.version_info >= (3, 12):
        return sys.monitoring.get_tool(TOOL_ID) == TOOL and sys.monitoring.get_events(TOOL_ID) != 0
    return type(getattr(sys.gettrace(), "__self__", None)).__name__ == "Tracer"


@pytest.mark.skipif(sys.gettrace() is not None, reason="who measures coverage is traced by nobody else")
def test_hypothesis_traces_the_test_and_not_the_simulation() -> None:
    seen: Counter[tuple[str, bool]] = Counter()

    def look(job: JobState) -> bool:
        seen["in the simulation", is_traced()] += 1
        return True

    @seed(0)
    @settings(QUIET)
    @given(fault_plans(GANG, most=1))
    def no_fault_is_survived(plan: Plan) -> None:
        simulate(GANG, plan, until="20s", always=[look])
        seen["after it", is_traced()] += 1
        assert not plan.faults

    with pytest.raises(AssertionError):
        no_fault_is_survived()
    assert seen["after it", True] and seen["in the simulation", False] and not seen["in the simulation", True]


def test_what_does_not_matter_is_not_tried_part_by_part() -> None:
    """Of what `builds` and `tuples` have put together each part is tried a hundred times."""
    runs: list[Schedule] = []

    @seed(0)
    @settings(QUIET)
    @given(fault_plans(GANG), schedules(GANG))
    def nothing_happens(plan: Plan, schedule: Schedule) -> None:
        runs.append(schedule)
        assert not plan.faults

    with pytest.raises(AssertionError):
        nothing_happens()
    assert len(runs) < 200


def test_plans_shrink_to_the_fewest_faults_and_the_first_times() -> None:
    some = settings(QUIET, phases=[Phase.generate, Phase.shrink])
    plan = find(fault_plans(GANG), lambda plan: any(fault.kind == "oom" for fault in plan.faults), settings=some)
    assert plan == Plan((parse_fault("trainer@1s:oom"),))
    drained = find(fault_plans(GANG), lambda plan: bool(plan.drains), settings=some)
    assert drained == Plan(drains=drained.drains) and drained.drains[0].node == "node0"
    schedule = find(schedules(GANG), lambda schedule: len(schedule.drain) == 2, settings=some)
    assert schedule == Schedule(drain=("node1@1s", "node2@1s"))
