"""Conversations that once broke an invariant, as they were found."""

from __future__ import annotations

from flowdist.graph import Cluster, Gate, NodeSpec, Resources, RestartPolicy, RoleGraph, RoleSpec
from flowdist.testing.conversation import Move, Talk, judge_talk


def test_who_waits_for_an_ignored_role_fails_the_job_which_then_restarts_nobody_for_an_address() -> None:
    """b/0 has lost its node when a server is ignored for good; b/1 runs, with both addresses in its command."""
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
    assert judge_talk(Talk(graph, 0, moves)) == []
