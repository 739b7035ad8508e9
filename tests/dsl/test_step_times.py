"""Workloads whose steps depend on the size of the world, as the graph has them."""

from __future__ import annotations

from typing import Any

import pytest

from flowdist import Topology, Workload
from flowdist.dsl.load import compile_loaded
from flowdist.dsl.problems.problem import TopologyProblems
from flowdist.graph import MS, SECOND, WorkloadSpec


def workload(replicas: str = "1:4", **fields: Any) -> WorkloadSpec:
    t = Topology("sizes", nodes=4)
    t.role("trainer", "true", replicas=replicas, workload=Workload(**fields))
    return compile_loaded(t).graph.role("trainer").workload


def test_a_table_has_the_time_of_each_size_and_the_largest_is_that_of_the_workload() -> None:
    load = workload(step_time={4: "600ms", 1: "2s"})
    assert load.step_times == ((1, 2 * SECOND), (4, 600 * MS))
    assert load.step_ns == 600 * MS
    assert workload(replicas="1:2", step_time={1: "2s", 4: "600ms"}).step_ns == 1125 * MS


def test_a_table_is_by_the_number_of_workers_not_of_replicas() -> None:
    assert workload(replicas="1:4x4", step_time={4: "2s", 16: "1s"}).step_ns == SECOND
    with pytest.raises(TopologyProblems, match="no entry for 16 workers, and the role has 4 to 16"):
        workload(replicas="1:4x4", step_time={4: "2s", 8: "1s"})


def test_scaling_makes_a_table_of_the_smallest_and_the_largest_size() -> None:
    assert workload(step_time="600ms", scaling=1).step_times == ((1, 2400 * MS), (4, 600 * MS))
    assert workload(replicas="1:2x2", step_time="600ms", scaling=1).step_times[-1] == (4, 600 * MS)
    assert workload(step_time="600ms").step_times == ()
    assert workload(replicas="1", scaling=1).step_times == ()


def test_workers_may_keep_batches_of_their_own() -> None:
    assert workload(batch="worker").batch_workers == 4
    assert workload(batch="global").batch_workers == 0


def test_start_ups_and_restores_have_fields_of_their_own() -> None:
    load = workload(startup_spread=0, peer_restore="2s")
    assert (load.startup_spread, load.peer_restore_ns) == (0, 2 * SECOND)
    assert (workload().startup_spread, workload().peer_restore_ns) == (0.2, None)
