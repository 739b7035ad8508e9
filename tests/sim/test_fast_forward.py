"""Fast-forward and partial checks change no decision: whole runs are compared with and without them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flowdist.control.job.state import JobState
from flowdist.control.protocol.events import CheckpointOffered, ReplicaProgressed
from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.faults.grammar import NOTHING, Plan, When, parse_fault
from flowdist.graph import MINUTE, SECOND, RoleGraph
from flowdist.record.journal import Line, Record
from flowdist.sim.checks.liveness import end_ns
from flowdist.sim.checks.properties import properties_of
from flowdist.sim.faults.nemesis import Nemesis
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.sim.workers.collectives import with_collective
from flowdist.testing.campaign import horizon
from flowdist.testing.kit import graph_of
from tests.choosing import slow
from tests.sim.test_simulation import load

LONG = {"steps": 3000}


def decisions(result: SimResult) -> list[Line]:
    """Return the lines of the trace that are decisions, without reports of progress."""
    news = (ReplicaProgressed, CheckpointOffered)
    told = [line for line in result.lines[1:] if not (isinstance(line, Record) and isinstance(line.event, news))]
    return [msgspec.structs.replace(line, n=0) if isinstance(line, Record) else line for line in told]


def end(result: SimResult) -> Any:
    """Return the accounts, what was saved and lost, and the end."""
    worlds = {name: (model.saved, model.offered, model.lost_ns, model.begins) for name, model in result.models.items()}
    return result.now, result.job.outcome, result.violation, result.spent, result.hits, result.unfired, worlds


def differences(
    graph: RoleGraph, plan: Plan, seed: int, until: int | None, *, play_heartbeats: bool = False
) -> tuple[list[str], int]:
    """Return what differs under fast-forward, and how many lines it has saved."""
    played = Simulation(graph, plan, seed=seed, play_heartbeats=play_heartbeats).run(until)
    computed = Simulation(graph, plan, seed=seed, fast_forward=True, checks="changed").run(until)
    wrong = []
    if decisions(played) != decisions(computed):
        a, b = decisions(played), decisions(computed)
        wrong.append(next((f"{x} is now {y}" for x, y in zip(a, b, strict=False) if x != y), "one goes on"))
    if end(played) != end(computed):
        wrong.append(f"{end(played)} is now {end(computed)}")
    return wrong, len(played.lines) - len(computed.lines)


@pytest.mark.parametrize(
    ("name", "params"),
    [("ps.py", LONG), ("ps.py", {}), ("gang.py", {}), ("actors.py", {}), ("core.py", {}), ("rivals.py", {})],
)
def test_quiet_stretches_that_are_computed_change_no_decision(name: str, params: dict[str, Any]) -> None:
    graph = load(name, **params)
    usual = horizon(graph)
    nemesis, saved = Nemesis(graph, usual), 0
    for seed in range(1, 13):
        plan = nemesis.plan(seed)
        drawn = with_collective(graph, nemesis.collective(seed))
        wrong, fewer = differences(drawn, plan, seed, end_ns(graph, plan, usual))
        assert not wrong, (seed, wrong)
        saved += fewer
    assert saved > 0 or name == "core.py"  # there each checkpoint is the only one


def hanging() -> RoleGraph:
    t = Topology("hanging", nodes=[Node(f"node{i}", cpu=2) for i in range(8)])
    load = Workload(steps=3600, step_time="1s", startup="5s", checkpoint_every="1m", checkpoint_time="1s")
    restart = Restart("role", max_restarts=9)
    t.role("trainer", "sleep inf", replicas="4:8", cpu=2, hang_after="3m", restart=restart, workload=load)
    return graph_of(t)


def test_where_it_has_to_be_found_who_hangs_every_member_tells_how_far_it_is() -> None:
    graph = hanging()
    usual = horizon(graph)
    nemesis = Nemesis(graph, usual)
    for seed in (8, 10, 14, 37):
        plan, drawn = nemesis.plan(seed), with_collective(graph, nemesis.collective(seed))
        wrong, _ = differences(drawn, plan, seed, end_ns(graph, plan, usual))
        assert not wrong, (seed, wrong)


BEAT_NS = 100 * SECOND  # one is sent then: every node has joined at 0
WRONGS = ("cut-to=controller/3s", "partition=node2,controller/3s", "lost/3s", "pause/4s", "drop=0.5/3s", "delay=1s/3s")


@pytest.mark.parametrize("wrong", WRONGS)
@pytest.mark.parametrize("after_ns", [1, 500_000, 700_000, *slow([0, 300_000, 1_000_000, 1_000_001, 123_456_789])])
def test_what_befalls_a_heartbeat_on_its_way_befalls_one_that_is_computed(wrong: str, after_ns: int) -> None:
    """The fault hits when a heartbeat is sent, heard or just answered; the next one is sent at its usual time."""
    t = Topology("beats", nodes=4)
    t.role("trainer", "sleep inf", replicas="2:3", workload=Workload(steps=200, checkpoint_time="0s"))
    graph, fault = graph_of(t), parse_fault(f"node1@100s:{wrong}")
    times = (BEAT_NS + after_ns, BEAT_NS + 40 * SECOND + after_ns // 2)
    plan = Plan(tuple(fault._replace(when=When(at_ns=time)) for time in times))
    for seed in range(0, 400, 50):
        assert differences(graph, plan, seed, None, play_heartbeats=True)[0] == [], seed


FAULTS = ("trainer/0@9m", "node1@8m30s/1m", "trainer@10m:slow=3x/2m", "trainer/1@7m:hang", "node0@9m:lost/20s")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("until", [8 * MINUTE + 1, 20 * MINUTE, None])
def test_whatever_comes_into_a_stretch_finds_what_it_would_have_found(fault: str, until: int | None) -> None:
    plan = Plan((parse_fault(fault), parse_fault("trainer@12m:torn-checkpoint"), parse_fault("ps/0@12m1s")))
    wrong, saved = differences(load("ps.py", **LONG), plan, 0, until)
    assert not wrong
    assert saved > 20


def test_a_stretch_ends_where_the_clock_stops_and_where_another_world_is_done() -> None:
    """Later checkpoints could be counted in both cases: those after the clock, and the evaluator's after the job."""
    graph, ends = load("ps.py", **LONG), (20 * MINUTE + 1, None)
    for until in ends:
        wrong, saved = differences(graph, NOTHING, 0, until)
        assert not wrong and saved > 0
    stopped, done = (Simulation(graph, fast_forward=True).run(until).models for until in ends)
    assert 0 < stopped["trainer"].offered < done["trainer"].offered
    evaluator = done["evaluator/0"]
    assert 0 < evaluator.durable < evaluator.steps.load.steps


@pytest.mark.parametrize("fault", ["trainer/0@checkpoint=trainer,5", "trainer/0@step=trainer,700+10s"])
def test_while_somebody_waits_for_a_step_or_a_checkpoint_each_is_played(fault: str) -> None:
    plan = Plan((parse_fault(fault),))
    wrong, _ = differences(load("ps.py", **LONG), plan, 0, None)
    assert not wrong
    assert not Simulation(load("ps.py", **LONG), plan, fast_forward=True).run().unfired


def test_after_a_fast_forward_the_next_controller_learns_the_progress() -> None:
    """Each message on a lossy link draws a number, so a missing one would change the fate of all that follow."""
    plan, said = Plan((parse_fault("controller@35m"),)), []
    for fast_forward in (False, True):
        lines = Simulation(load("ps.py", **LONG), plan, fast_forward=fast_forward).run().lines
        after = [line.event for line in lines if isinstance(line, Record) and 0 <= line.t_ns - 35 * MINUTE < 10**9]
        said.append([event for event in after if isinstance(event, ReplicaProgressed)])
    assert said[0] == said[1] and len(said[1]) > 2


def test_with_a_property_of_the_users_each_event_is_played() -> None:
    seen: list[int] = []

    def look(job: JobState) -> None:
        seen.append(max(world.step for world in job.worlds.values()))

    Simulation(load("gang.py"), fast_forward=True, properties=properties_of([look])).run()
    assert len(set(seen)) > 5  # step after step, checkpoint after checkpoint


def test_a_job_of_days_needs_no_more_events_than_one_of_hours() -> None:
    """The number of events is what counts; benchmarks/simulator.py has the times."""
    few, many = (Simulation(load("ps.py", steps=steps), fast_forward=True).run().handled for steps in (3_000, 6_000))
    assert many < few + 50
