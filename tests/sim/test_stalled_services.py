"""A service that runs and does nothing stalls its users, and is detected where `hang_after` says so."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from flowdist.control.job.state import JobState
from flowdist.dsl import Node, Restart, Template, Topology, Workload
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import HOUR, SECOND
from flowdist.record.accounts import Bucket
from flowdist.record.journal import AccountLine, Header, Record
from flowdist.sim.faults.nemesis import Nemesis
from flowdist.sim.result import SimResult
from flowdist.sim.simulation import Simulation
from flowdist.sim.user_code.workload import WorldModel
from flowdist.testing import graph_of, simulate
from tests.record.sheets import sheet_of
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


STILL: dict[str, tuple[tuple[str, ...], dict[str, str], dict[Bucket, int]]] = {
    "paused": (("ps/0@30s:pause/20s",), {}, {"stalled": 20, "detection": 0}),
    "paused and killed": (("ps/0@30s:pause/20s", "ps/0@40s"), {}, {"stalled": 10}),
    "its node is paused": (("node0@30s:pause/2s",), {}, {"stalled": 2}),
    "paused twice": (("ps/0@30s:pause/2s", "ps/0@40s:pause/3s"), {}, {"stalled": 5}),
    "killed, and paused again": (("ps/0@30s:pause/60s", "ps/0@35s", "ps/0@50s:pause/45s"), {}, {"stalled": 50}),
    "hangs, and is found": (("ps/0@30s:hang",), {"hang_after": "10s"}, {"stalled": 0}),
}


@pytest.mark.parametrize("what", STILL)
def test_a_service_that_stands_still_is_not_productive_in_the_accounts_of_the_simulator_and_of_a_run(what: str) -> None:
    faults, service, known = STILL[what]
    result = run(*faults, **service)
    header, *lines = result.lines
    assert isinstance(header, Header)
    of_run = sheet_of(header.graph, [line for line in lines if not isinstance(line, AccountLine)], header.known_nodes)
    both = result.spent["ps"], of_run.spent()["ps"]
    for spent in both:
        assert {name: round(spent[name] / SECOND) for name in known} == known
    assert abs(both[0]["productive"] - both[1]["productive"]) < SECOND
    if what == "hangs, and is found":
        assert all(spent["detection"] >= 10 * SECOND for spent in both)


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


def served(nodes: int, *, room: int = 4, servers: str = "1", backoff: str = "1m") -> Topology:
    """Return a job of one trainer that reconnects to its server, on so many nodes that hold `room` replicas each."""
    t = Topology("served", nodes=nodes * [Node(cpu=room)])
    again = Restart("replica", max_restarts=30, backoff=backoff)
    load = Workload(startup="20s")
    ps = t.role("ps", "true", kind="service", replicas=servers, restart=again, ready_when="call", workload=load)
    needs = [ps.ready(on_restart="reconnect")]
    work = Workload(startup="5s", steps=300, warmup="2s")
    t.role("trainer", "true", depends_on=needs, restart=Restart(max_restarts=30), workload=work)
    return t


def test_a_service_that_moves_while_it_backs_off_is_waited_for_as_one_that_stays() -> None:
    """Its second failure on a node makes it move. It has no seat until the back-off is over."""
    faults = ("ps/0@60s", "ps/0@3m")
    stays, moves = simulate(served(1), *faults), simulate(served(3), *faults)
    assert [one.moved for one in stays.job.incidents] == [{}, {}] and any(one.moved for one in moves.job.incidents)
    assert stays.now == moves.now and stays.spent["trainer"] == moves.spent["trainer"]
    assert moves.spent["trainer"]["stalled"] > 100 * SECOND, "20 s, and 80 s with the back-off"


def test_a_service_that_waits_for_a_node_is_waited_for() -> None:
    """No other node has room for it: it is away from the loss of its node until the node is back and it has started."""
    result = simulate(served(2, room=1), "node0@1m/30s")
    assert list(map(str, result.job.incidents[0].lost)) == ["ps/0"]
    assert round(result.spent["trainer"]["stalled"] / SECOND) == 30 + 20


def test_a_service_that_has_enough_replicas_without_the_lost_one_is_not_waited_for() -> None:
    result = simulate(served(3, room=1, servers="1:2"), "node1@1m")
    assert result.spent["trainer"]["stalled"] < SECOND, "no node has room for the second one"


class Watched(Simulation):
    """A simulation that checks after each decision that nobody steps without its only server."""

    def carried_out(self, job: JobState, line: Record) -> None:
        super().carried_out(job, line)
        serving = self.work.worlds.serving.get("ps", {})
        for model in self.models_that_step:
            assert serving or model.is_stalled, f"{line.t_ns / SECOND} s: the trainer steps, and no server serves"

    @property
    def models_that_step(self) -> list[WorldModel]:
        return [model for model in self.work.models.values() if model.begun_ns is not None]


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("room", [1, 4])
def test_whatever_happens_nobody_steps_without_its_only_server(nodes: int, room: int) -> None:
    if nodes * room < 2:
        return
    graph = graph_of(served(nodes, room=room))
    nemesis = Nemesis(graph, 400 * SECOND)
    for seed in range(1, 40):
        result = Watched(graph, nemesis.plan(seed), seed=seed).run(HOUR)
        assert result.violation is None and result.now, seed


@pytest.mark.parametrize("on_restart", ["reconnect", "restart"])
def test_who_starts_up_before_its_service_waits_for_it(on_restart: Any) -> None:
    """The gate opens when the processes of the service run, and it serves 30 s after that: twice, as it fails once."""
    t = Topology("early", nodes=[Node(cpu=4)])
    slow = Workload(startup="30s")
    ps = t.role("ps", "true", kind="service", restart=Restart("replica", max_restarts=1), workload=slow)
    load = Workload(steps=100, startup="1s")
    t.role("trainer", "true", depends_on=[ps.started(on_restart=on_restart)], restart=Restart(), workload=load)
    spent = simulate(t, "ps/0@60s:exit=1").spent["trainer"]
    assert spent["stalled"] == pytest.approx((29 + (29 if on_restart == "restart" else 30)) * SECOND, abs=0.2 * SECOND)


def test_a_replica_that_is_scaled_down_before_it_serves_is_not_waited_for() -> None:
    t = Topology("early", nodes=[Node(cpu=4)])
    slow = Workload(startup="5m")
    ps = t.role("ps", "true", kind="service", replicas="1:2", restart=Restart("replica", max_restarts=1), workload=slow)
    t.role("trainer", "true", depends_on=[ps.started()], workload=Workload(steps=100, startup="1s"))
    result = simulate(t, "ps/0@10s:exit=1", scale="ps=1@20s")
    assert lasted(result) == 411  # ps/0 serves 300 s after its second start
