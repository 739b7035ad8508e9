"""Worlds whose steps depend on their size, restores from the memory of peers, and start-ups without a spread."""

from __future__ import annotations

from typing import Any

import pytest

from flowdist import Node, Restart, Topology, Workload
from flowdist.faults.files import parse_plan
from flowdist.graph import HOUR, MS, SECOND, RoleGraph
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.scope import MacroRefused, scope_of
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.sim.workers.start_ups import with_startup_spread
from flowdist.testing.kit import graph_of
from tests.sim.cross import crossed

TABLE: dict[int, Any] = {1: "2s", 4: "600ms"}
LOADS = {
    "a table": Workload(steps=100_000, step_time=TABLE),
    "all of the speed scales": Workload(steps=100_000, scaling=1),
    "each worker its batch": Workload(steps=100_000, scaling=0.8, batch="worker"),
}
RATES = ["nic:node-kill=10/node-day/exp(15m)", "ecc:node-kill=10/node-day/10m..20m/lemon=0.3,20"]


def gang(load: Workload, replicas: str = "1:4", nodes: int = 4, **more: Any) -> RoleGraph:
    t = Topology("sizes", nodes=nodes * [Node(gpu=1)])
    restart = Restart("role", max_restarts=1000)
    t.role("trainer", "sleep inf", gpu=1, replicas=replicas, restart=restart, workload=load, **more)
    return graph_of(t)


def played(graph: RoleGraph, *faults: str, until: int | None = None, seed: int = 0) -> SimResult:
    return Simulation(graph, parse_plan(faults), seed=seed).run(until)


def spent(result: SimResult, bucket: Any) -> float:
    return result.spent["trainer"][bucket] / SECOND


def test_a_world_that_shrinks_steps_more_slowly_and_is_fast_again_with_its_nodes() -> None:
    load = Workload(steps=1000, step_time=TABLE, checkpoint_every="1m", checkpoint_time=0)
    whole = played(gang(load)).now
    lost = played(gang(load), "node1@3m/5m", "node2@3m/5m", "node3@3m/5m").now
    # Five minutes of one worker are 150 steps of 2 s; four would have done 500 of 600 ms.
    assert lost - whole == pytest.approx((300 - 150 * 0.6) * SECOND, abs=90 * SECOND)
    assert whole == pytest.approx(605 * SECOND, abs=SECOND)


def test_the_work_that_a_small_world_loses_counts_with_its_own_step_time() -> None:
    load = Workload(steps=1000, step_time=TABLE, checkpoint_every="30m", checkpoint_time=0)
    result = played(gang(load, replicas="1:2", nodes=2), "node1@1m/10m", "trainer/0@3m", until=4 * 60 * SECOND)
    (model,) = result.models.values()
    before, after = 55 * SECOND // (1125 * MS), 119 * SECOND // (2 * SECOND)
    assert model.lost_steps == pytest.approx(before + after, abs=6)
    assert model.lost_ns == pytest.approx(before * 1125 * MS + after * 2 * SECOND, abs=12 * SECOND)
    assert model.unsaved_steps and 0 <= model.unsaved_ns - model.unsaved_steps * 2 * SECOND < 2 * SECOND


@pytest.mark.parametrize("name", LOADS)
def test_macro_mode_plays_sizes_causes_and_drawn_repairs_to_the_nanosecond(name: str) -> None:
    graph = gang(LOADS[name], replicas="2:4", pending_timeout="1d")
    plan = parse_plan(rates=[*RATES, "trainer-kill=10/replica-day"])
    for one in crossed(graph, plan, range(1, 4), 3 * HOUR):
        assert one.is_equal, one


def test_each_cause_counts_its_own_faults() -> None:
    graph, plan = (
        gang(Workload(steps=10**6)),
        parse_plan(rates=["nic:node-kill=9/node-day/5m", "ecc:node-kill=3/node-day/5m"]),
    )
    result = Macro(scope_of(graph, plan), plan, seed=1).run(240 * HOUR)
    assert 2 < result.by_rate["nic:node-kill"] / result.by_rate["ecc:node-kill"] < 4
    assert result.by_rate.total() == result.faults


def test_both_modes_count_the_same_faults_of_each_cause() -> None:
    graph, plan = gang(Workload(steps=10**6)), parse_plan(rates=[*RATES, "trainer-kill=10/replica-day"])
    played = Simulation(with_startup_spread(graph, 0), plan, seed=2).run(6 * HOUR)
    computed = Macro(scope_of(with_startup_spread(graph, 0), plan), plan, seed=2).run(6 * HOUR)
    assert played.by_rate == computed.by_rate
    assert set(played.by_rate) == {"nic:node-kill", "ecc:node-kill", "trainer-kill"}


def test_a_node_that_comes_back_bad_is_cordoned() -> None:
    graph = gang(Workload(steps=10**6), replicas="2:3", nodes=4)
    plan = parse_plan(rates=["ecc:node-kill=0.2/node-day/2m/lemon=1,1000"])
    (one,) = crossed(graph, plan, [1], 120 * HOUR)
    assert one.is_equal
    assert Macro(scope_of(graph, plan), plan, seed=1).run(120 * HOUR).cordoned


def test_after_the_loss_of_one_node_the_others_have_its_checkpoint_in_memory() -> None:
    load = Workload(steps=600, checkpoint_every="10s", restore_time="40s", peer_restore="2s")
    graph = gang(load, replicas="2:4", nodes=6)
    assert spent(played(graph), "restore") == 0
    assert spent(played(graph, "node1@1m"), "restore") == 4 * 2
    assert spent(played(graph, "trainer/1@1m"), "restore") == 4 * 2  # its node, and the memory of it, are there
    assert spent(played(graph, "node1@1m", "node2@1m"), "restore") == 4 * 40


def test_a_second_loss_during_the_restore_is_too_much_for_the_copies() -> None:
    load = Workload(steps=600, checkpoint_every="10s", restore_time="40s", peer_restore="20s")
    result = played(gang(load, replicas="2:4", nodes=6), "node1@1m", "node2@1m10s")
    assert spent(result, "restore") == 4 * 40
    later = played(gang(load, replicas="2:4", nodes=6), "node1@1m", "node2@2m")
    assert spent(later, "restore") == 2 * 4 * 20


def test_macro_mode_names_the_field_that_it_cannot_play() -> None:
    with pytest.raises(MacroRefused, match=r"role trainer: workload.import_time='2s'"):
        scope_of(gang(Workload(import_time="2s")), parse_plan())


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_start_ups_have_the_spread_that_is_asked_for(share: float) -> None:
    graph = gang(Workload(steps=10, startup="10s", checkpoint_time=0))
    times = {Simulation(with_startup_spread(graph, share), seed=seed).run().now for seed in range(1, 9)}
    nominal = Simulation(graph).run().now
    assert (times == {nominal}) == (share == 0)
    assert all(abs(time - nominal) <= share * 10 * SECOND for time in times)
    plan = parse_plan(rates=["node-kill=20/node-day/5m"])
    (one,) = crossed(with_startup_spread(graph, share), plan, [3], HOUR)
    assert one.is_equal
    assert with_startup_spread(graph, None) is graph
