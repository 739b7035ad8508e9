"""Rates measured in records: faults are counted, the time of nodes and replicas is added up, and the texts are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.advice.measured_rates import measured_rates
from flowdist.dsl.load import load_topology
from flowdist.faults.files import parse_plan
from flowdist.faults.rates import parse_rate
from flowdist.graph import SECOND
from flowdist.graph.units import DAY
from flowdist.record.journal import Header
from flowdist.record.reader import WholeRecord
from flowdist.report.goodput import poisson_95
from flowdist.sim.simulation import Simulation

GANG = str(Path(__file__).parents[2] / "scenarios/topologies/gang.py")
GRAPH = load_topology(GANG, {"max_restarts": "20"}).graph


def record(*faults: str, rates: tuple[str, ...] = (), seed: int = 0) -> WholeRecord:
    result = Simulation(GRAPH, parse_plan(faults, rates=rates), seed=seed).run(3000 * SECOND)
    header = result.lines[0]
    assert isinstance(header, Header)
    return WholeRecord("a run", header, list(result.lines)[1:])


def test_kills_of_nodes_and_replicas_are_counted_with_the_time_of_all_of_them() -> None:
    run = record("node1@2m/1m", "node2@4m/3m", "trainer/0@10m", "trainer/1@7m:oom")
    end_ns = max(line.t_ns for line in run.lines if not isinstance(line, Header))
    found = {rate.text.partition("=")[0]: rate for rate in measured_rates([run], GRAPH)}
    assert list(found) == ["node-kill", "trainer-kill", "trainer-oom"]
    assert [rate.faults for rate in found.values()] == [2, 1, 1]
    assert all(rate.days == pytest.approx(4 * end_ns / DAY) for rate in found.values())
    kills = parse_rate(found["node-kill"].text)
    assert kills.per_ns * DAY == pytest.approx(2 / found["node-kill"].days, rel=0.01)
    assert kills.duration_ns == 120 * SECOND, "the mean of a minute and three"
    assert parse_rate(found["trainer-oom"].text).duration_ns is None


def test_two_records_count_together() -> None:
    one, two = record("node1@2m/1m"), record()
    (alone,), (both,) = measured_rates([one], GRAPH), measured_rates([one, two], GRAPH)
    assert both.faults == alone.faults == 1 and both.days > 1.8 * alone.days


def test_a_record_without_failures_shows_no_rate() -> None:
    assert measured_rates([record()], GRAPH) == []


def test_orders_and_faults_of_other_roles_do_not_count() -> None:
    other = load_topology(GANG.replace("gang.py", "ps.py")).graph
    names = [rate.text.partition("=")[0] for rate in measured_rates([record("trainer/0@3m", "node1@5m/1m")], other)]
    assert names == ["node-kill", "trainer-kill"], "both topologies have a trainer"
    stages = load_topology(GANG.replace("gang.py", "stages.py")).graph
    assert [r.text.partition("=")[0] for r in measured_rates([record("trainer/0@3m")], stages)] == []


@pytest.mark.slow
def test_the_measured_rate_is_the_one_that_was_drawn() -> None:
    runs = [record(rates=("trainer-kill=100/replica-day",), seed=seed) for seed in range(1, 31)]
    (rate,) = measured_rates(runs, GRAPH)
    assert rate.low < 100 < rate.high and rate.faults > 50


@pytest.mark.parametrize(
    ("count", "low", "high"), [(0, 0.0, 3.689), (1, 0.025, 5.572), (10, 4.795, 18.390), (100, 81.364, 121.627)]
)
def test_the_interval_of_a_count_is_that_of_the_tables(count: int, low: float, high: float) -> None:
    assert poisson_95(count) == (pytest.approx(low, abs=0.03, rel=0.01), pytest.approx(high, rel=0.01))
