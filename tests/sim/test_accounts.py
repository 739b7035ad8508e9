"""Accounts of a simulation: they add up whatever happens, and a replay of the record gives the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.control.protocol.events import NodeSilent
from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.dsl.load import load_topology
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import MS, SECOND, RoleGraph, WorkloadSpec
from flowdist.record.journal import AccountLine, Header, Record
from flowdist.sim.experiment.outcome import of_simulation
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.testing import graph_of
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
            simulation.work.step_waits.append((spec.name, step))
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


@given(st.data())
@settings(max_examples=40)
def test_lost_work_is_one_figure(data: st.DataObject) -> None:
    """The time of the worlds that did it again, and the bucket of their members, have the unfinished step as well."""
    seconds = data.draw(st.integers(1, 40))
    load = WorkloadSpec(steps=20, step_ns=seconds * SECOND, checkpoint_every_ns=60 * SECOND, startup_ns=SECOND)
    one = role("trainer", min_replicas=2, max_replicas=2, restart=restart(times=99), workload=load)
    at_ms = data.draw(st.lists(st.integers(1000, 600_000), min_size=1, max_size=3, unique=True))
    result = simulate(graph(one), *(f"trainer/0@{at}ms:exit=1" for at in sorted(at_ms)))
    (model,) = result.models.values()
    assert result.spent["trainer"]["lost work"] == 2 * model.lost_ns
    assert sum(loss.ns for loss in model.losses) == model.lost_ns


def test_a_silent_node_is_not_taken_to_have_worked_while_its_world_stood_still() -> None:
    """The server is away from 50 s on, and the trainer's node is not heard of from 70 s until it has fenced."""
    t = Topology("still", nodes=[Node("a", cpu=1, labels={"for": "ps"}), Node("b", cpu=1, labels={"for": "work"})])
    ps = t.role("ps", "true", kind="service", where={"for": "ps"}, restart=Restart("replica", max_restarts=9))
    load = Workload(steps=200, startup="1s")
    t.role("tr", "true", where={"for": "work"}, depends_on=[ps.started()], restart=Restart(), workload=load)
    result = simulate(graph_of(t), "a@50s/60s", "b@70s:lost/12s")
    header, *lines, _ = result.lines
    assert isinstance(header, Header) and any(
        isinstance(one, Record) and type(one.event) is NodeSilent for one in lines
    )
    told = sheet_of(header.graph, lines, header.known_nodes).spent()["tr"]
    assert abs(told["lost work"] - result.spent["tr"]["lost work"]) <= 2 * SECOND


def test_all_roles_of_a_joint_world_have_lost_the_work_that_it_does_again() -> None:
    result = simulate(load("core.py"), "trainer/0@100s:exit=1")
    account = result.lines[-1]
    assert isinstance(account, AccountLine) and len(account.lost_ns) == 2 and len(set(account.lost_ns.values())) == 1
    assert of_simulation(result).lost_ns == account.lost_ns


def test_what_survivors_held_in_memory_when_the_run_ended_is_unsaved_and_not_lost() -> None:
    """48 steps of the first generation were kept by the workers that stayed in place, and 10 s of the second came."""
    load = WorkloadSpec(rejoin_ns=SECOND // 2)
    job = graph(role("tr", min_replicas=2, max_replicas=2, restart=restart(), workload=load), nodes=2, cpu=1)
    result = simulate(job, "tr/1@50s:exit=1", until=60 * SECOND)
    model, spent = result.models["tr"], result.spent["tr"]
    assert model.lost_ns < SECOND and spent["lost work"] == 2 * model.lost_ns  # the step that they were in
    assert spent["unsaved at the end"] == pytest.approx(2 * model.unsaved_ns, abs=SECOND)
