"""Regression tests: conversations that once broke an invariant."""

from __future__ import annotations

from flowdist.graph import Cluster, Gate, NodeSpec, Readiness, Resources, RestartPolicy, RoleGraph, RoleSpec
from tests.proofs.conversation import Conversation, Move, judge_conversation


def test_a_failing_job_restarts_no_replica_for_a_changed_address() -> None:
    """Lose the node of b/0 before a server is ignored for good, while b/1 runs with both addresses in its command."""
    once = RestartPolicy(scope="role", max_restarts=0)
    same = {"command": ("true",), "resources": Resources(cpu=1.0, gpu=1), "gang": False}
    servers = RoleSpec(
        "a",
        kind="service",
        min_replicas=2,
        max_replicas=2,
        ports=("rpc",),
        restart=RestartPolicy(scope="role", max_restarts=0, then="ignore"),
        **same,  # type: ignore[arg-type]
    )
    clients = RoleSpec("b", max_replicas=2, gates=(Gate("a"),), restart=once, address_edges=("a",), **same)  # type: ignore[arg-type]
    aside = RoleSpec("c", primary=False, restart=once, **same)  # type: ignore[arg-type]
    nodes = tuple(NodeSpec(f"node{i}", cpu=2.0, gpu=2) for i in range(3))
    graph = RoleGraph("test", (servers, clients, aside), cluster=Cluster(nodes))
    moves = (Move("stall", 0, 0), Move("lose", 2, 0), Move("wait", 0, 0))
    assert judge_conversation(Conversation(graph, 0, moves)) == []


def test_a_worker_that_fails_before_its_ordered_end_is_not_suspended() -> None:
    """Let a worker of b/0 fail while an order to stop b/0 is in flight and its other worker is suspended."""
    servers = RoleSpec(
        *("a", ("true",)),
        kind="service",
        min_replicas=2,
        max_replicas=2,
        gang=False,
        restart=RestartPolicy("replica", max_restarts=2),
    )
    gates = (Gate("a"),)
    pair = RoleSpec("b", command=("true",), procs=2, gang=False, gates=gates, restart=RestartPolicy())
    clients = RoleSpec(
        *("c", ("true",)),
        max_replicas=2,
        gang=False,
        primary=False,
        gates=gates,
        restart=RestartPolicy(),
        ready=Readiness("tcp", "rpc"),
        address_edges=("a",),
    )
    graph = RoleGraph("test", (servers, pair, clients), cluster=Cluster(tuple(NodeSpec(f"node{i}") for i in range(3))))
    moves = (Move("elastic", 7), Move("exit"), Move("unkillable", 6), Move("exit", 7), Move("wait"))
    assert judge_conversation(Conversation(graph, 1, moves)) == []
