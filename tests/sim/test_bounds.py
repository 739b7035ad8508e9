"""What counts as a recovery: bounds.recoveries, `--recovers-within`, and the points of a campaign."""

from __future__ import annotations

from flowdist import Node, Restart, Topology, Workload
from flowdist.graph import RoleGraph
from flowdist.sim.checks.bounds import bounds_of, recoveries
from flowdist.sim.checks.points import REFORMING, STARTING
from flowdist.testing import graph_of, simulate


def growing() -> RoleGraph:
    """The only member starts up, and begins its steps a moment before it stops for the growth."""
    t = Topology("rec", nodes=[Node(cpu=1)])
    load = Workload(steps=60, startup="20s", stop_time="2s")
    t.role("tr", "true", replicas="1:2", restart=Restart("role", max_restarts=1), join_window="1s", workload=load)
    return graph_of(t)


def test_steps_before_a_generation_has_stopped_are_no_recovery() -> None:
    result = simulate(growing(), add="node5@19s")
    assert recoveries(result) == {1: 22_007_700_000}
    [(which, text)] = bounds_of(recovers_within="5s").broken(result)
    assert which == "recovers within" and "incident 1 recovered after 22.008s" in text


def test_a_fault_after_such_steps_hits_a_re_formation() -> None:
    result = simulate(growing(), "tr/0@30s", add="node5@19s")
    assert REFORMING in result.seen and STARTING not in result.seen


def test_a_service_recovers_when_it_runs_again() -> None:
    t = Topology("served", nodes=2 * [Node(cpu=1)])
    t.role("store", "true", kind="service", restart=Restart(max_restarts=3))
    t.role("tr", "true", restart=Restart(max_restarts=3), workload=Workload(steps=60))
    result = simulate(graph_of(t), "store/0@20s")
    [incident] = result.job.incidents
    assert recoveries(result) == {} and incident.took_ns
    assert bounds_of(recovers_within="1ms").broken(result) and not bounds_of(recovers_within="1m").broken(result)
