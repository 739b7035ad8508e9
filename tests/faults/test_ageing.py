"""Rates that change with age: infant mortality and wear, from the start of a node or from its last repair."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import FaultError
from flowdist.faults.rates import Arrivals, parse_rate
from flowdist.graph import HOUR, MS, Cluster, NodeSpec, RoleGraph, RoleSpec
from flowdist.graph.units import DAY
from flowdist.record.journal import FaultLine
from flowdist.sim.simulation import Simulation
from flowdist.testing import graph_of
from tests.sim.cross import crossed, faults_of

GRAPH = RoleGraph("a", (RoleSpec("trainer", ("true",)),), cluster=Cluster((NodeSpec("node0"),)))
MANY = [f"node{number}" for number in range(3000)]
DAILY = "node-kill=1/node-day"


def firsts(text: str) -> list[float]:
    """Return when each of many nodes fails first, in days, in order of time."""
    arrivals = Arrivals([parse_rate(text)], GRAPH, MANY, 5)
    return sorted(entity.at / DAY for entity in arrivals.entities)


def times_of(text: str, until_ns: int, seed: int = 1) -> list[int]:
    arrivals = Arrivals([parse_rate(text)], GRAPH, ["node0"], seed)
    return [fault.when.at_ns or 0 for fault in arrivals.until(until_ns)]


def test_a_shape_of_one_is_what_no_shape_is() -> None:
    assert times_of(f"{DAILY}/weibull=1", 90 * DAY) == times_of(DAILY, 90 * DAY)


@pytest.mark.parametrize("shape", [0.5, 0.7, 1, 3])
def test_the_times_have_the_mean_of_the_rate_and_the_distribution_of_weibull(shape: float) -> None:
    days = firsts(f"{DAILY}/weibull={shape}")
    assert math.fsum(days) / len(days) == pytest.approx(1, rel=0.09)
    scale = 1 / math.gamma(1 + 1 / shape)
    expected = [1 - math.exp(-((day / scale) ** shape)) for day in days]
    worst = max(abs(share - number / len(days)) for number, share in enumerate(expected))
    assert worst < 1.63 / math.sqrt(len(days)), "Kolmogorov and Smirnov, 1 in 100"


def test_infant_mortality_and_wear() -> None:
    young = {shape: sum(day < 0.05 for day in firsts(f"{DAILY}/weibull={shape}")) for shape in (0.5, 1, 3)}
    assert young[0.5] > 4 * young[1] > 0 and young[3] < 3


@pytest.mark.parametrize("shape", [0.5, 3])
def test_the_clock_begins_anew_with_each_repair(shape: float) -> None:
    """The times from a repair to the next failure are those without repairs, one by one."""
    away, at_once = times_of(f"{DAILY}/4h/weibull={shape}", 600 * DAY), times_of(f"{DAILY}/weibull={shape}", 600 * DAY)
    gaps = [later - before - 4 * HOUR for before, later in pairwise(away)]
    assert len(gaps) > 300
    for gap, (before, later) in zip(gaps, pairwise(at_once), strict=False):
        assert gap == pytest.approx(later - before, abs=2 * MS)
    drawn = times_of(f"{DAILY}/2h..6h/weibull={shape}", 600 * DAY)
    assert all(later - before >= 2 * HOUR for before, later in pairwise(drawn))


def test_a_node_that_is_added_is_young_when_it_starts() -> None:
    plan = parse_plan(adds=["node1@2d"], rates=[f"{DAILY}/weibull=0.5"])
    early, late = (
        {one.target: one.at for one in Arrivals(plan.rates, GRAPH, ["node0", "node1"], 3, starts).entities}
        for starts in ({}, plan.starts)
    )
    assert plan.starts == {"node1": 2 * DAY} and parse_plan(["node1@2d:add"]).starts == plan.starts
    assert late == {"node0": early["node0"], "node1": early["node1"] + 2 * DAY}


@pytest.mark.parametrize(
    ("text", "marked", "says"),
    [
        (f"{DAILY}/4h/weibull", "weibull", "'weibull' cannot be read"),
        (f"{DAILY}/weibull=soon", "weibull=soon", "'weibull=soon' cannot be read"),
        (f"{DAILY}/weibull=0.1", "weibull=0.1", "a shape is from 0.2 to 10"),
        (f"{DAILY}/4h/lemon=0.1,2/weibull=nan", "weibull=nan", "a shape is from 0.2 to 10"),
        ("node-kill=1/job-day/4h/weibull=2", "weibull=2", "a job does not age: its entities do"),
        (f"{DAILY}/4/weibull=2", "4", "'4' is no duration"),
    ],
)
def test_what_cannot_be_read_is_underlined(text: str, marked: str, says: str) -> None:
    with pytest.raises(FaultError) as error:
        parse_rate(text)
    message, spec, line = error.value.message.split("\n")
    assert message.startswith(says) and spec.strip()[line.index("^") - 2 : line.rindex("^") - 1] == marked


def test_a_shape_stands_beside_lemons_in_any_order() -> None:
    one, other = (parse_rate(f"{DAILY}/4h/{extras}") for extras in ("lemon=0.1,50/weibull=2", "weibull=2/lemon=0.1,50"))
    assert one._replace(spec="") == other._replace(spec="") and one.shape == 2 and one.lemon is not None


def gang() -> RoleGraph:
    t = Topology("gang", nodes=[Node(f"node{number}", cpu=1) for number in range(5)])
    load = Workload(steps=20_000, step_time="1s", startup="20s", checkpoint_every="5m", checkpoint_time="2s")
    restart = Restart("role", max_restarts=1000)
    t.role("trainer", "true", replicas="2:4", cpu=1, restart=restart, pending_timeout="1d", workload=load)
    return graph_of(t)


@pytest.mark.parametrize("extras", ["weibull=0.5", "weibull=3", "lemon=0.3,20/weibull=0.7"])
def test_both_modes_play_ageing_exactly(extras: str) -> None:
    graph, rates = gang(), [f"node-kill=30/node-day/10m/{extras}", "trainer-kill=5/replica-day/weibull=0.5"]
    for one in crossed(graph, parse_plan(rates=rates), [1, 2, 3], 6 * HOUR):
        assert one.is_equal and faults_of(one) > 10


def test_a_simulation_plays_each_fault_at_the_time_that_was_drawn() -> None:
    plan = parse_plan(rates=["node-kill=30/node-day/10m/weibull=0.5"])
    result = Simulation(gang(), plan, seed=4).run(2 * HOUR)
    hits = [line.t_ns for line in result.lines if isinstance(line, FaultLine)]
    arrivals = Arrivals(plan.rates, gang(), [f"node{number}" for number in range(5)], 4)
    assert hits == [fault.when.at_ns for fault in arrivals.until(2 * HOUR)] and len(hits) > 5
