"""Targets of the nemesis: checkpoints that are being written or read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from flowdist import Node, Restart, Topology, Workload
from flowdist.control.job.state import JobState
from flowdist.faults.grammar import Fault, Plan, parse_fault
from flowdist.graph import SECOND, RoleGraph, format_duration
from flowdist.sim.checks.properties import properties_of
from flowdist.sim.faults import nemesis as drawing
from flowdist.sim.faults.aiming import Aim
from flowdist.sim.faults.nemesis import Nemesis
from flowdist.sim.simulation import Simulation
from flowdist.sim.workers.collectives import with_collective
from flowdist.testing import always, graph_of
from flowdist.testing.campaign import campaign, horizon
from flowdist.testing.verdicts import Rules, judge
from tests.choosing import slow

SEEDS = range(1, 41)
LOAD: dict[str, Any] = {"steps": 900, "startup": "20s", "checkpoint_every": "2m", "checkpoint_time": "4s"}


def hour(*, restore_time: str = "10s", hang_after: str | None = None) -> RoleGraph:
    t = Topology("hour", nodes=4 * [Node(cpu=1)])
    load = Workload(**LOAD, restore_time=restore_time)
    t.role("trainer", "true", replicas="2:4", hang_after=hang_after, restart=Restart(max_restarts=6), workload=load)
    return graph_of(t)


def share(graph: RoleGraph, phase: str, aim: Callable[[int], tuple[Fault | None, int | None]]) -> float:
    """Return in how many of 40 seeds a fault hits that phase. `aim` returns the fault before it, and its time."""
    hits = 0
    for seed in SEEDS:
        before, at = aim(seed)
        assert at is not None
        probe = parse_fault(f"node0@{format_duration(at)}:duplicate=0.1/1s")  # hits a node, and disturbs nobody
        plan = Plan((probe,) if before is None else (before, probe))
        hits += Simulation(graph, plan, seed=seed).run().hits["duplicate", phase]
    return hits / len(SEEDS)


def test_the_first_generation_is_hit_while_it_saves_with_every_seed() -> None:
    graph = hour()
    assert share(graph, "saving", lambda seed: (None, Aim(graph).saving(seed, 0, None))) == 1


def test_gates_and_roles_of_one_world_are_reckoned_with() -> None:
    t = Topology("gated", nodes=[Node(cpu=9)])
    data = t.role("data", "true", workload=Workload(steps=30))
    server = t.role(
        "server", "true", kind="service", ports=["p"], ready_when="tcp:p", depends_on=[data.succeeded()],
        workload=Workload(startup="30s"),
    )  # fmt: skip
    a = t.role("a", "true", replicas=2, depends_on=[server.ready()], workload=Workload(**LOAD))
    b = t.role("b", "true", replicas=2, depends_on=[data.started()], workload=Workload(**LOAD | {"startup": "50s"}))
    t.world("both", a, b)
    graph = graph_of(t)
    assert share(graph, "saving", lambda seed: (None, Aim(graph).saving(seed, 0, None))) == 1


@pytest.mark.parametrize(
    "fault",
    ["trainer/1@5m", "node2@5m:lost/20m", *slow(["node1@5m/20m", "node2@5m:pause/20m", "trainer/1@5m:hang"])],
)
def test_after_a_fault_both_are_hit_mostly(fault: str) -> None:
    graph, before = hour(hang_after="3m"), parse_fault(fault)
    assert share(graph, "restoring", lambda seed: (before, Aim(graph).restoring(seed, 0, before))) > 0.75
    assert share(graph, "saving", lambda seed: (before, Aim(graph).saving(seed, 0, before))) > 0.5


@pytest.mark.parametrize(
    "fault", ["node1@5m:pause/2s", "node1@5m:delay=10ms/1m", "controller@5m", "trainer@5m:scale=3", "trainer/1@30s"]
)
def test_what_restarts_nothing_or_before_anything_was_saved_makes_nobody_read(fault: str) -> None:
    before = parse_fault(fault)
    assert Aim(hour()).restoring(1, 0, before) is None


def test_a_fault_of_another_role_makes_nobody_read_and_aiming_needs_checkpoints() -> None:
    t = Topology("two", nodes=[Node(cpu=9)])
    t.role("a", "true", replicas=2, workload=Workload(**LOAD, restore_time="5s"))
    t.role("b", "true", replicas=2, workload=Workload(steps=20))
    assert Aim(graph_of(t)).restoring(1, 0, parse_fault("b/0@5m")) is None
    assert Aim(graph_of(t)).restoring(1, 0, parse_fault("a/0@5m")) is not None
    short = Topology("short", nodes=1)
    short.role("b", "true", replicas=2, workload=Workload(steps=20))
    aim = Aim(graph_of(short))
    assert aim.saving(1, 0, None) is None and aim.restoring(1, 0, parse_fault("b/0@5m")) is None


def points_without_aim(graph: RoleGraph) -> Counter[str]:
    """Return how many of 40 seeds reach each point if no fault is aimed, and all else is as in a campaign."""
    rules = Rules(horizon(graph))
    nemesis = Nemesis(graph, rules.horizon_ns)
    points: Counter[str] = Counter()
    for seed in SEEDS:
        drawn = with_collective(graph, nemesis.collective(seed))
        result, *_ = judge(drawn, nemesis.plan(seed), seed, rules, quick=True)
        points.update(list(result.seen))
    return points


def test_a_small_campaign_gets_to_checkpoints_and_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = campaign(hour(), SEEDS).points
    assert seen["failure during a checkpoint"] >= 4 and seen["failure during restore"] >= 3
    monkeypatch.setattr(drawing, "AIMED", 0.0)
    monkeypatch.setattr(drawing, "READS", 0.0)
    blind = points_without_aim(hour())
    assert blind["failure during a checkpoint"] < 4 and blind["failure during restore"] < 3


def test_some_plans_begin_before_the_first_checkpoint_of_user_code() -> None:
    """The first checkpoint begins after a hundredth of the job: one plan in a hundred begins before it by chance."""
    job, first = horizon(hour()), horizon(hour()) // 100
    plans = [Nemesis(hour(), job, [(first, first + SECOND)]).plan(seed).faults for seed in range(400)]
    early = [plan for plan in plans if plan and (plan[0].when.at_ns or 0) < first]
    assert 30 < len(early) < 90
    assert any(fault.replica for plan in early for fault in plan[:1])


def test_plans_are_lists_of_times_as_ever() -> None:
    nemesis = Nemesis(hour(), horizon(hour()))
    faults = [fault for seed in range(100) for fault in nemesis.plan(seed).faults]
    assert all(fault.when.at_ns is not None and 0 <= fault.when.at_ns < 3600 * SECOND for fault in faults)


def test_what_is_found_by_aiming_is_made_as_small_as_ever() -> None:
    """Demand that no replica is lost while its world restores."""

    @always
    def nobody_fails_while_checkpoints_are_read(job: JobState) -> bool:
        opened = [incident.opened_ns for incident in job.incidents if incident.kind == "signal"]
        return not any(20 * SECOND < later - first < 34 * SECOND for first, later in pairwise(opened))

    demanded = properties_of([nobody_fails_while_checkpoints_are_read])
    found = campaign(hour(), range(1, 81), properties=demanded).failures
    assert len(found) >= 2 and all(len(failure.faults) == 2 for failure in found)
