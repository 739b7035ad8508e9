"""A service that runs and does nothing stalls its users, and is detected where `hang_after` says so."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from flowdist.dsl import Node, Restart, Template, Topology, Workload
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import SECOND
from flowdist.sim.result import SimResult
from flowdist.testing import graph_of, simulate
from tests.sim.test_fast_forward import differences


def run(*faults: str, on_restart: Literal["reconnect", "restart"] = "reconnect", **service: Any) -> SimResult:
    return simulate(job(on_restart, **service), *faults)


def job(on_restart: Literal["reconnect", "restart"] = "reconnect", **service: Any) -> Topology:
    """Return a job with its service on node0, or on node1 after a loss."""
    pools = [Node(f"node{i}", cpu=1, labels={"pool": "ps" if i < 2 else "work"}) for i in range(5)]
    t = Topology("job", nodes=pools)
    restart = Restart("replica", max_restarts=3)
    where = {"pool": "ps"}
    ps = t.role("ps", "true", kind="service", ready_when="call", restart=restart, where=where, **service)
    needs = [ps.ready(on_restart=on_restart)]
    load = Workload(steps=100, startup="5s")
    work = Template(where={"pool": "work"}, restart=Restart(max_restarts=3))
    t.role("trainer", "true", like=work, replicas=2, depends_on=needs, workload=load)
    t.role("side", "true", like=work, gang=False, primary=False, workload=Workload(steps=50))
    return t


def lasted(result: SimResult) -> float:
    assert result.violation is None and result.job.outcome == "succeeded"
    return round(result.now / SECOND)


@pytest.mark.parametrize("on_restart", ["reconnect", "restart"])
def test_who_needs_a_service_that_stands_still_waits_in_its_work(on_restart: Any) -> None:
    whole, paused = run(on_restart=on_restart), run("ps/0@30s:pause/20s", on_restart=on_restart)
    assert lasted(paused) - lasted(whole) == 20
    assert paused.spent["trainer"]["stalled"] == 2 * 20 * SECOND
    assert paused.spent["side"]["stalled"] == 0, "it needs no service"
    assert paused.job.worlds["trainer"].generation == 1


def test_so_it_is_when_the_node_of_the_service_stands_still() -> None:
    assert run("node0@30s:pause/2s").spent["trainer"]["stalled"] == 2 * 2 * SECOND


def test_a_service_that_hangs_is_found_by_its_silence_and_its_users_go_on() -> None:
    result = run("ps/0@30s:hang", hang_after="10s")
    [incident] = result.job.incidents
    assert incident.kind == "hang" and 40 <= incident.opened_ns / SECOND < 52
    assert lasted(result) - lasted(run()) >= 10 and result.job.worlds["trainer"].generation == 1


@pytest.mark.parametrize("fault", ["ps/0@30s:hang", "ps/0@30s:pause/8s", "node0@30s:pause/2s", "ps/0@1s:hang"])
def test_computed_quiet_stretches_and_heartbeats_that_are_played_change_nothing(fault: str) -> None:
    graph = graph_of(job(hang_after="10s", ready_timeout="1m"))
    for seed in (0, 1):
        for play in (False, True):
            assert differences(graph, Plan((parse_fault(fault),)), seed, None, play_heartbeats=play)[0] == []


def test_a_service_that_is_well_says_something_all_the_time() -> None:
    assert not run(hang_after="10s").job.incidents


def test_a_service_that_hangs_unseen_is_the_end_and_is_named() -> None:
    found = run("ps/0@30s:hang").violation
    assert str(found).endswith("; ps/0 hangs, which only hang_after= of ps would detect")


def test_a_service_that_hangs_as_it_starts_up_does_not_get_ready() -> None:
    result = run("ps/0@1s:hang", ready_timeout="20s")
    assert [incident.kind for incident in result.job.incidents] == ["unready"]
    assert 20 <= lasted(result) - lasted(run()) < 25


def test_another_one_that_serves_in_its_place_ends_the_standstill() -> None:
    result = run("node0@30s:pause/1m")
    assert lasted(result) - lasted(run()) < 15, "the lease, and a start"


def test_a_worker_that_hangs_as_it_starts_up_hangs_at_its_first_step() -> None:
    assert "trainer/0 hangs" in str(simulate_gang("trainer/0@2s:hang", hang_after=None).violation)
    result = simulate_gang("trainer/0@2s:hang", hang_after="20s")
    [incident] = result.job.incidents
    assert incident.kind == "hang" and incident.root == "trainer/0"
    assert result.job.outcome == "succeeded"


def simulate_gang(*faults: str, hang_after: str | None) -> SimResult:
    t = Topology("gang", nodes=2)
    load = Workload(steps=100, startup="5s")
    t.role("trainer", "true", replicas=2, restart=Restart(max_restarts=3), hang_after=hang_after, workload=load)
    return simulate(t, *faults)
