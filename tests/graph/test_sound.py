"""Graphs that were read from a file: each contradiction and each number out of its range is refused, with words."""

from __future__ import annotations

import re

import msgspec
import pytest
from msgspec.structs import replace

from flowdist.graph import (
    Cluster,
    Domain,
    Gate,
    JobOptions,
    NodeSpec,
    Placement,
    Readiness,
    Resources,
    RestartPolicy,
    RoleGraph,
    RoleSpec,
    Rule,
    VersionEdge,
    WorkloadSpec,
    decode_graph,
    encode_graph,
)
from flowdist.graph.codec import why_unsound
from flowdist.graph.role_graph import JointWorld

PS = RoleSpec("ps", ("ps",), kind="service", gang=False, ports=("rpc",), ready=Readiness("tcp", "rpc"))
TRAINER = RoleSpec("trainer", ("train",), max_replicas=4, gates=(Gate("ps", "ready"),), restart=RestartPolicy())
EVALUATOR = RoleSpec("evaluator", ("evaluate",), address_edges=("ps",), placement=Placement(near=("ps",)))
GRAPH = RoleGraph(
    "x",
    (PS, TRAINER, EVALUATOR),
    domains=(Domain("core", ("ps", "trainer")),),
    worlds=(JointWorld("both", ("trainer", "evaluator")),),
    cluster=Cluster((NodeSpec("node0"), NodeSpec("node1"))),
)


def with_trainer(**fields: object) -> RoleGraph:
    return replace(GRAPH, roles=(PS, replace(TRAINER, **fields), EVALUATOR))


def with_policy(**fields: object) -> RoleGraph:
    return with_trainer(restart=RestartPolicy(**fields))  # type: ignore[arg-type]


def chain(length: int) -> RestartPolicy:
    return RestartPolicy(then="widen", wider=chain(length - 1)) if length > 1 else RestartPolicy()


def test_a_sound_graph_has_no_contradiction():
    assert why_unsound(GRAPH) == ""
    assert why_unsound(with_trainer(parallel=(("dp", 0), ("tp", 2)), procs=2)) == ""
    assert why_unsound(with_trainer(restart=chain(4))) == ""
    assert decode_graph(encode_graph(GRAPH)) == GRAPH


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (replace(GRAPH, roles=(PS,), worlds=(), domains=()), "there is no primary task"),
        (replace(GRAPH, roles=(*GRAPH.roles, TRAINER)), "role 'trainer' is there more than once"),
        (replace(GRAPH, roles=(*GRAPH.roles, replace(TRAINER, name="a/b"))), "'a/b' cannot be the name of a role"),
        (replace(GRAPH, roles=(TRAINER, PS, EVALUATOR)), "it waits for 'ps', which is not declared before it"),
        (with_trainer(gates=(Gate("trainer"),)), "it waits for 'trainer', which is not declared before it"),
        (with_trainer(min_replicas=5), "min_replicas=5 is more than max_replicas=4"),
        (with_trainer(min_replicas=0), "a gang needs a replica"),
        (with_trainer(parallel=(("dp", 0), ("tp", 0))), "more than one elastic dimension"),
        (with_trainer(parallel=(("tp", 3),)), "its number of replicas is no multiple of 3, which its mesh needs"),
        (with_trainer(resources=Resources(gpu=2, gpu_share=500)), "a share is of one GPU"),
        (with_trainer(workload=WorkloadSpec(checkpoint_ns=1, checkpoint_blocks_ns=2)), "blocks longer than"),
        (with_trainer(address_edges=("nosuch",)), "role 'trainer': there is no role 'nosuch'"),
        (
            with_trainer(versions=VersionEdge("nosuch")),
            "it needs versions of 'nosuch', which is not declared before it",
        ),
        (
            replace(
                GRAPH, roles=(replace(PS, max_replicas=2), replace(TRAINER, versions=VersionEdge("ps")), EVALUATOR)
            ),
            "role 'ps': it publishes versions, and is no gang",
        ),
        (with_trainer(placement=Placement(apart=("nosuch",))), "its placement names 'nosuch', which is no role"),
        (with_trainer(ready=Readiness("http", "web/health")), "its readiness check is of port 'web'"),
        (with_policy(then="widen"), "its restart policy widens to nothing"),
        (with_policy(wider=RestartPolicy()), "or has a wider one that never applies"),
        (with_trainer(restart=chain(5)), "it has more than 4 restart policies"),
        (replace(with_policy(scope="domain"), domains=()), "it restarts its domain, and is in none"),
        (with_policy(scope="replica"), "it restarts replicas by themselves, and is a gang"),
        (with_policy(rules=(Rule("fail", signal="NOSUCH"),)), "names signal 'NOSUCH'"),
        (replace(GRAPH, domains=(Domain("core", ("ps", "nosuch")),)), "domain 'core': there is no role 'nosuch'"),
        (replace(GRAPH, domains=(*GRAPH.domains, *GRAPH.domains)), "domain of role 'ps' is there more than once"),
        (replace(GRAPH, worlds=(JointWorld("ps", ("trainer", "evaluator")),)), "role 'ps' is there more than once"),
        (replace(GRAPH, worlds=(JointWorld("both", ("trainer", "ps")),)), "it is not of several gangs that are tasks"),
        (with_trainer(primary=False), "world 'both': only some of its roles are primary"),
        (
            replace(GRAPH, roles=(PS, TRAINER, replace(EVALUATOR, gates=(Gate("trainer"),)))),
            "roles wait for each other: trainer",
        ),
        (replace(GRAPH, cluster=Cluster((NodeSpec("a"), NodeSpec("a")))), "node 'a' is there more than once"),
        (replace(GRAPH, options=JobOptions(lease_ns=1, heartbeat_ns=1)), "the lease is not longer than its margin"),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused_with_the_reason(graph: RoleGraph, words: str):
    assert words in why_unsound(graph)
    with pytest.raises(msgspec.ValidationError, match=re.escape(words)):
        decode_graph(encode_graph(graph))


@pytest.mark.parametrize(
    ("graph", "place"),
    [
        (with_trainer(max_replicas=0), "roles[1].max_replicas"),
        (with_trainer(max_replicas=100_001), "roles[1].max_replicas"),
        (with_trainer(procs=-1), "roles[1].procs"),
        (with_trainer(command=()), "roles[1].command"),
        (with_trainer(grace_ns=-1), "roles[1].grace_ns"),
        (with_trainer(hang_after_ns=0), "roles[1].hang_after_ns"),
        (with_trainer(resources=Resources(cpu=1e300)), "resources.cpu"),
        (with_trainer(resources=Resources(gpu=2000)), "resources.gpu"),
        (with_trainer(workload=WorkloadSpec(step_ns=0)), "workload.step_ns"),
        (with_policy(max_restarts=-1), "restart.max_restarts"),
        (with_trainer(parallel=(("dp", -2),)), "roles[1].parallel"),
        (replace(GRAPH, options=JobOptions(heartbeat_ns=0)), "options.heartbeat_ns"),
        (replace(GRAPH, cluster=Cluster((NodeSpec("a", memory=-1),))), "cluster.nodes[0].memory"),
        (replace(GRAPH, format=2), "format"),  # type: ignore[arg-type]
    ],
)
def test_a_number_out_of_its_range_is_refused_with_its_place(graph: RoleGraph, place: str):
    with pytest.raises(msgspec.ValidationError, match=re.escape(place)):
        decode_graph(encode_graph(graph))


@pytest.mark.parametrize("data", [b"\xff", b'{"name":"\xff"}', b'{"x":' + b"[" * 100_000])
def test_what_is_no_json_is_a_decode_error(data: bytes):
    with pytest.raises(msgspec.DecodeError):
        decode_graph(data)
