"""Peers of a worker that dies, hangs or is cut off, and the decisions that follow."""

from __future__ import annotations

from typing import Any

import pytest

from flowdist import Node, On, Restart, Topology, Workload
from flowdist.control.protocol.events import NodeGone, ReplicaElastic, ReplicaExited, ReplicaStopped
from flowdist.graph import MINUTE, MS, SECOND, RoleGraph
from flowdist.record.journal import Record
from flowdist.sim.simulation import SimResult
from flowdist.sim.workers.collectives import NOTICES_NS, with_collective
from flowdist.testing import graph_of, simulate

LOAD: dict[str, Any] = {"steps": 300, "checkpoint_every": "30s"}
AT = 100 * SECOND  # when the fault comes, in the middle of a step or two


def gang(
    collective: Any = None,
    *,
    restart: Restart | None = None,
    lease: str = "4s",
    replicas: str = "2:4",
    hang_after: str | None = None,
    **load: Any,
) -> RoleGraph:
    t = Topology("gang", nodes=4 * [Node(cpu=1)], lease=lease)
    restart = restart or Restart(max_restarts=3)
    work = Workload(**LOAD, collective=collective, **load)
    t.role("trainer", "true", replicas=replicas, restart=restart, hang_after=hang_after, workload=work)
    return graph_of(t)


def after_ns(result: SimResult, *kinds: type) -> list[tuple[Any, int]]:
    """Return the events of these kinds, with their time after the fault."""
    lines = [line for line in result.lines if isinstance(line, Record) and isinstance(line.event, kinds)]
    return [(line.event, line.t_ns - AT) for line in lines if line.t_ns >= AT]


def failures(result: SimResult) -> list[tuple[str, str, int]]:
    """Return the failures: the replica, the kind, and the time after the fault."""
    exits = after_ns(result, ReplicaExited)
    return [(str(e.replica), e.signal or f"exit {e.exit_code}", at) for e, at in exits if e.kind is not None]


def test_peers_of_a_dead_worker_exit_with_an_error_a_moment_later() -> None:
    result = simulate(gang("fail"), "node1@100s:delay=1s/10s", "trainer/1@100s")
    assert [(who, how) for who, how, _ in failures(result)] == [
        *((f"trainer/{n}", "exit 1") for n in (0, 2, 3)),
        ("trainer/1", "KILL"),
    ], "the report of the one that died is the last"
    assert all(NOTICES_NS < at < NOTICES_NS + 2 * MS for _, how, at in failures(result) if how == "exit 1")
    assert "its process group has lost trainer/1" in result.job.incidents[0].reason
    assert result.job.outcome == "succeeded" and len(result.job.roles["trainer"].charges) == 1


def test_each_seed_draws_which_is_known_first_the_lost_node_or_the_failed_peer() -> None:
    first = {type(after_ns(simulate(gang("fail"), "node1@100s/1m", seed=seed), NodeGone, ReplicaExited)[0][0])
             for seed in range(1, 13)}  # fmt: skip
    assert first == {NodeGone, ReplicaExited}


def test_peers_that_hang_do_not_hear_sigterm_and_are_killed() -> None:
    took = {}
    for collective in ("wait", "hang"):
        result = simulate(gang(collective), "node1@100s/1m")
        took[collective] = max(at for _, at in after_ns(result, ReplicaStopped) if at < 10 * SECOND)
        assert not failures(result) and result.job.outcome == "succeeded"
    assert took["wait"] < 200 * MS < 2 * SECOND < took["hang"] < 2100 * MS


@pytest.mark.parametrize(("collective", "minutes", "how"), [("fail", 30, "exit 1"), ("hang", 10, "ABRT")])
def test_a_hanging_worker_makes_its_peers_hang_until_their_process_group_gives_up(
    collective: str, minutes: int, how: str
) -> None:
    result = simulate(gang(collective), "trainer/1@100s:hang")
    assert {(who, what) for who, what, _ in failures(result)} == {(f"trainer/{n}", how) for n in (0, 2, 3)}
    assert all(at // MINUTE == minutes for *_, at in failures(result))
    (incident,) = result.job.incidents
    assert (incident.kind, incident.root) == ("hang", "trainer/1") and result.job.outcome == "succeeded"
    assert "a collective of trainer/0 timed out after step 92, and trainer/1 is furthest behind" in incident.reason


def test_where_nothing_is_said_they_wait_for_good() -> None:
    result = simulate(gang(), "trainer/1@100s:hang")
    assert result.violation is not None and result.violation.property == "liveness"
    lines = [simulate(gang(how), "node1@100s/1m", "trainer/2@3m", seed=3).digest for how in (None, "wait")]
    assert lines[0] == lines[1]


def test_a_worker_that_stands_still_for_less_than_the_timeout_is_waited_for() -> None:
    for fault in ("trainer/1@100s:pause/20s", "node0@100s:partition=node1/20s"):
        assert not failures(simulate(gang("fail", collective_timeout="30s"), fault))
        result = simulate(gang("fail", collective_timeout="10s"), fault)
        assert {at // SECOND for *_, at in failures(result)} == {10}
        assert result.job.outcome == "succeeded"
    twice = ("trainer/1@100s:pause/8s", "trainer/1@109s:pause/8s")  # each of them is waited for by itself
    assert not failures(simulate(gang("fail", collective_timeout="10s"), *twice))


def test_the_timeout_counts_from_when_the_first_of_them_stood_still() -> None:
    result = simulate(gang("fail", collective_timeout="15s"), "trainer/1@100s:pause/20s", "trainer/2@105s:pause/20s")
    assert {(who, at // SECOND) for who, _, at in failures(result)} == {("trainer/0", 15), ("trainer/3", 15)}


def test_a_generation_after_one_that_hung_obeys_again() -> None:
    result = simulate(gang("hang", hang_after="2m"), "trainer/1@100s:hang", "trainer@6m:scale=3")
    stopped = [at for _, at in after_ns(result, ReplicaStopped) if at > 260 * SECOND]
    assert len(stopped) == 4 and max(stopped) < 260 * SECOND + 200 * MS


def test_a_timeout_of_a_generation_before_ends_nobody() -> None:
    graph = gang("hang", collective_timeout="1m")
    result = simulate(graph, "trainer/1@100s:hang", "trainer/1@101s")
    assert [(who, how) for who, how, _ in failures(result)] == [("trainer/1", "KILL")]


def test_who_is_at_the_end_of_its_work_leaves_no_collective_behind() -> None:
    nominal = simulate(gang())
    for collective in ("fail", "hang"):
        result = simulate(gang(collective))
        assert (result.digest, result.handled) == (nominal.digest, nominal.handled)

    def two(collective: Any) -> SimResult:
        t = Topology("two", nodes=1)
        for name, steps in (("short", 50), ("long", 90)):
            t.role(name, "true", replicas=2, workload=Workload(steps=steps, collective=collective))
        return simulate(t)

    assert two("fail").handled == two("hang").handled == two("wait").handled, "nor where the job goes on"


def test_workers_that_start_up_or_wait_for_a_service_are_in_no_collective() -> None:
    early = simulate(gang("fail"), "node2@2s:delay=500ms/10s", "trainer/1@3s").lines
    assert not [line for line in early if isinstance(line, Record) and "exit_code=1" in str(line.event)]
    t = Topology("ps", nodes=4 * [Node(cpu=1)])
    ps = t.role(
        "ps", "true", kind="service", restart=Restart("replica", max_restarts=3), workload=Workload(startup="30s")
    )
    load = Workload(**LOAD, collective="fail")
    t.role("trainer", "true", replicas=2, depends_on=[ps.started()], restart=Restart(max_restarts=3), workload=load)
    slow = "node2@99s:delay=500ms/10s"
    alone = simulate(t, slow, "trainer/1@101s")
    waiting = simulate(t, slow, "ps/0@100s", "trainer/1@101s")
    assert [who for who, how, _ in failures(alone) if how == "exit 1"] == ["trainer/0"]
    assert [who for who, how, _ in failures(waiting) if how == "exit 1"] == []


def test_suspended_workers_hold_their_error_back_and_leave_when_ordered() -> None:
    for collective in ("fail", "hang"):
        result = simulate(gang(collective, rejoin_time="50ms"), "node1@100s/1m")
        stopped = [(e, at) for e, at in after_ns(result, ReplicaStopped) if at < 10 * SECOND]
        assert all(e.suspended and at < 100 * MS for e, at in stopped) and len(stopped) == 3
        assert not failures(result) and result.job.outcome == "succeeded"
    patient = simulate(gang("fail", rejoin_time="50ms", replicas="4"), "node1@100s/1m")
    again = [str(e.replica) for e, at in after_ns(patient, ReplicaElastic) if at < 61 * SECOND]
    assert again == ["trainer/0", "trainer/2", "trainer/3"], "those who have left wait for as long as it takes"


def test_an_error_that_is_held_back_is_raised_after_half_a_minute_of_silence() -> None:
    """A worker dies on a node that is cut off, so its death is unknown until the lease is over."""
    faults = ("node1@99s:lost", "trainer/1@100s")
    for lease, fail in (("10s", []), ("1m", ["trainer/0", "trainer/2", "trainer/3"])):
        result = simulate(gang("fail", rejoin_time="50ms", lease=lease), *faults)
        early = [(who, at) for who, how, at in failures(result) if how == "exit 1"]
        assert [who for who, _ in early] == fail and all(at // SECOND == 30 for _, at in early)
        assert result.job.outcome == "succeeded"


def test_roles_of_one_world_each_do_what_their_backend_does() -> None:
    t = Topology("joint", nodes=2 * [Node(cpu=4)])
    roles = [
        t.role(
            name, "true", replicas=2, cpu=1, restart=Restart(max_restarts=3), workload=Workload(**LOAD, collective=how)
        )
        for name, how in (("a", "fail"), ("b", "wait"))
    ]
    t.world("both", *roles)
    result = simulate(t, "node0@100s:delay=1s/5s", "node1@100s:delay=1s/5s", "b/0@100s")
    assert {who for who, how, _ in failures(result) if how == "exit 1"} == {"a/0", "a/1"}


def test_only_tasks_that_do_not_say_are_given_another() -> None:
    t = Topology("three", nodes=[Node(cpu=8)])
    t.role("server", "true", kind="service")
    t.role("a", "true")
    t.role("b", "true", workload=Workload(collective="wait"))
    graph = graph_of(t)
    assert [role.workload.collective for role in with_collective(graph, "hang").roles] == ["", "hang", "wait"]
    assert with_collective(graph, "") is graph


def test_a_rule_about_the_exit_code_hears_of_the_peers_too() -> None:
    rules = Restart(max_restarts=3, rules=[On(exit=1, do="fail")])
    result = simulate(gang("fail", restart=rules), "node1@100s:delay=1s/10s", "trainer/1@100s")
    assert result.job.outcome == "failed" and "rule On(exit=1) says fail" in (result.job.ending_reason or "")


def test_r8_peers_that_fail_before_the_death_of_their_node_is_proven_cost_nothing() -> None:
    result = simulate(gang("fail"), "node1@100s/1m")
    assert result.job.outcome == "succeeded" and not result.job.roles["trainer"].charges
    assert simulate(without_policy(), "node1@100s/1m").job.outcome == "succeeded"


def test_r8_a_peer_whose_failure_arrives_after_the_proof_costs_nothing_either() -> None:
    result = simulate(without_policy(), "node3@99s:delay=300ms/10s", "node1@100s/1m")
    assert result.job.outcome == "succeeded"


def test_r16_a_peer_that_fails_before_its_order_to_stop_arrives_has_been_stopped() -> None:
    result = simulate(without_policy(), "node0@100s:delay=300ms/10s", "trainer@101s:scale=2")
    assert [(who, how) for who, how, _ in failures(result)] == [("trainer/0", "exit 1")], "before the order arrives"
    assert result.job.outcome == "succeeded"


def without_policy() -> RoleGraph:
    t = Topology("gang", nodes=4 * [Node(cpu=1)])
    t.role("trainer", "true", replicas="2:4", workload=Workload(**LOAD, collective="fail"))
    return graph_of(t)


def test_r8_peers_of_a_silent_node_whose_server_fails_besides_are_excused_once() -> None:
    t = Topology("ps", nodes=4 * [Node(cpu=4)])
    ps = t.role("ps", "true", kind="service", replicas=2, restart=Restart("replica", max_restarts=3))
    load = Workload(**LOAD, collective="fail")
    t.role(
        "t", "true", replicas="2:4", cpu=2, depends_on=[ps.started()], restart=Restart(max_restarts=1), workload=load
    )
    result = simulate(t, "node3@100s:lost/50s", "ps/1@103.3s")
    assert result.job.outcome == "succeeded" and not result.job.roles["t"].charges
