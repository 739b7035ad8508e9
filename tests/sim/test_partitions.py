"""Partitions between nodes: which worlds wait, and for how long."""

from __future__ import annotations

import pytest

from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.graph import SECOND
from flowdist.sim.simulation import SimResult
from flowdist.testing import simulate


def job(on_restart: str = "reconnect", *, depends: bool = True) -> Topology:
    """A server on node0, two trainers on nodes 1 and 2, and a node to spare for either."""
    nodes = [Node("node0", cpu=2, labels={"of": "ps"}), Node("node3", cpu=2, labels={"of": "ps"})]
    nodes += [Node("node1", cpu=1, labels={"of": "trainer"}), Node("node2", cpu=1, labels={"of": "trainer"})]
    t = Topology("job", nodes=nodes)
    again = Restart("replica", max_restarts=3)
    ps = t.role("ps", "true", kind="service", cpu=2, restart=again, where={"of": "ps"}, workload=Workload(startup="2s"))
    load = Workload(steps=100, startup="5s", checkpoint_time="0s")
    gates = [ps.started(on_restart=on_restart)] if depends else []
    trainer = {"replicas": 2, "cpu": 1, "where": {"of": "trainer"}, "restart": Restart(max_restarts=3)}
    t.role("trainer", "true", depends_on=gates, workload=load, **trainer)
    return t


def stalled_s(result: SimResult) -> float:
    return result.spent["trainer"]["stalled"] / SECOND


@pytest.mark.parametrize("fault", ["node0@40s:partition=node1/20s", "node2@40s:partition=node0/20s"])
@pytest.mark.parametrize("on_restart", ["reconnect", "restart"])
def test_who_does_not_hear_its_service_waits_for_it(fault: str, on_restart: str) -> None:
    calm, parted = simulate(job(on_restart)), simulate(job(on_restart), fault)
    assert parted.job.outcome == "succeeded" and parted.now == calm.now + 20 * SECOND
    assert stalled_s(calm) == 0 and stalled_s(parted) == 2 * 20, "both: they are one gang"


def test_members_on_both_sides_wait_for_each_other() -> None:
    assert stalled_s(simulate(job(depends=False), "node1@40s:partition=node2/20s")) == 2 * 20


@pytest.mark.parametrize("fault", ["node3@40s:partition=node1,node2/20s", "node0@40s:partition=node3/20s"])
def test_a_partition_from_whom_nobody_talks_to_costs_nothing(fault: str) -> None:
    assert stalled_s(simulate(job(), fault)) == 0


def test_who_does_not_depend_on_the_service_goes_on_without_it() -> None:
    assert stalled_s(simulate(job(depends=False), "node0@40s:partition=node1,node2/20s")) == 0


def test_a_service_that_comes_back_on_another_node_is_heard_again() -> None:
    """A service that comes back on the other side of a partition does not help."""
    moves = simulate(job(), "node0@40s:partition=node1/1m", "node0@50s")
    assert moves.now < simulate(job(), "node0@40s:partition=node1/1m").now - 30 * SECOND
    away = simulate(job(), "node3@40s:partition=node1/1m", "node0@50s")
    assert 2 * 45 < stalled_s(away) <= 2 * 50, "from the death of the server, at 50 s, to the end of the partition"
