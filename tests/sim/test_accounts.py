"""Accounts of a simulation: they add up whatever happens, and a replay of the record gives the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.dsl.load import load_topology
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import MS, SECOND, RoleGraph
from flowdist.record.journal import AccountLine, Header
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.testing.strategies import fault_plans, topologies
from tests.control.harness import graph, restart, role
from tests.record.sheets import sheet_of
from tests.report.records import TOPOLOGIES

CLOSE = {"start-up": 5 * MS, "back-off": 0, "waiting": 0, "done": 1 * MS, "re-formation": 1 * MS}


def load(name: str, **params: str) -> RoleGraph:
    return load_topology(str(TOPOLOGIES / name), params).graph


def simulate(topology: RoleGraph, *faults: str, until: int | None = None) -> SimResult:
    """Run with a report of every step of a task, as real workers make it."""
    simulation = Simulation(topology, Plan(tuple(parse_fault(text) for text in faults)))
    for spec in topology.roles:
        for step in range(1, spec.workload.steps + 1) if spec.kind == "task" else ():
            simulation.work.wait_for_step(spec.name, step)
    return simulation.run(until)


def assert_adds_up(result: SimResult) -> None:
    for spec in result.job.graph.roles:
        spent = result.spent[spec.name]
        assert sum(spent.values()) == result.now * spec.max_replicas and min(spent.values()) >= 0, (spec.name, spent)


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("gang.py", ()),
        ("gang.py", ("node1@2m/3m",)),
        ("gang.py", ("trainer/0@70s:exit=1", "trainer/1@95s:exit=3", "trainer/0@250s")),
        ("gang.py", ("node1@170s:leave/20s", "node2@251s", "controller@150s")),
        ("core.py", ("trainer/1@2m:hang",)),
        ("core.py", ("node2@251s", "trainer/1@300s:hang", "node3@303s/5s")),
        ("core.py", ("trainer/0@70s:exit=1", "trainer/1@95s:exit=3", "node0@130s/60s", "trainer/1@300s:hang")),
        ("ps.py", ("ps/0@100s", "trainer/1@200s:oom")),
    ],
)
def test_the_record_of_a_simulation_tells_where_its_time_went(name: str, faults: tuple[str, ...]) -> None:
    """Except what no event tells: saving counts as work, restoring as start-up; and messages take time."""
    result = simulate(load(name), *faults)
    header, *lines, account = result.lines
    assert isinstance(header, Header) and isinstance(account, AccountLine)
    sheet = sheet_of(header.graph, lines, header.known_nodes)
    assert sheet.lasted() == result.now
    generations = sum(world.generation for world in result.job.worlds.values())
    for spec in header.graph.roles:
        if spec.kind == "service":
            continue
        told, known = dict(sheet.spent()[spec.name]), dict(result.spent[spec.name])
        known["start-up"] += known.pop("restore")
        known["productive"] += known.pop("checkpoint")
        for bucket, ns in known.items():
            limit = CLOSE.get(bucket, spec.workload.step_ns + spec.workload.checkpoint_ns)
            limit *= generations * spec.max_replicas
            assert abs(told[bucket] - ns) <= limit, (spec.name, bucket, told, known)  # type: ignore[index]


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_whatever_befalls_a_job_each_nanosecond_is_in_one_bucket(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    result = Simulation(topology, data.draw(fault_plans(topology))).run(3600 * SECOND)
    assert_adds_up(result)
    header, *lines = result.lines
    assert isinstance(header, Header)
    sheet_of(topology, lines, header.known_nodes)


def test_who_lost_a_checkpoint_of_another_size_has_not_lost_more_than_was_done() -> None:
    """One trainer works for four minutes, then four do; all checkpoints are torn, and the work begins anew."""
    away = [f"node{number}@2s/200s" for number in (1, 2, 3)]
    torn = [f"trainer@{at}s:torn-checkpoint" for at in (279, 280, 283, 288, 287)]
    result = simulate(load("gang.py", replicas="1:4"), *away, *torn, "trainer/1@301s:exit=1", until=350 * SECOND)
    assert result.models["trainer"].durable == 0 and result.models["trainer"].begins[-1] > 301 * SECOND
    assert_adds_up(result)
    assert result.spent["trainer"]["productive"] == 0


def test_no_time_is_lost_from_the_books_when_a_world_of_one_leaves_a_paused_node() -> None:
    loose = graph(
        role("t", min_replicas=1, max_replicas=3, gang=False, restart=restart("replica", 9)), nodes=4, cpu=1.0
    )
    result = simulate(loose, "node0@1m:pause/1m")
    assert result.job.replicas[result.job.roles["t"].replicas[0]].attempt == 2
    assert_adds_up(result)
