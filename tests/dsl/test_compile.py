"""Compiled topologies: values, defaults, parameters and overrides."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowdist.dsl.load import load_topology, looks_like_topology
from flowdist.dsl.oneline import one_role_graph
from flowdist.dsl.read.fields import parse_sizes
from flowdist.graph import (
    HOUR,
    MINUTE,
    MS,
    SECOND,
    Gate,
    Readiness,
    RoleGraph,
    Rule,
    decode_graph,
    encode_graph,
    format_duration,
    format_memory,
    parse_duration,
    parse_memory,
)

DESIGN = """
from flowdist import Node, On, Restart, Topology, Workload

t = Topology("ps-train", nodes=4 * [Node(cpu=16, gpu=2)])
ps = t.role(
    "ps", ["python", "ps.py", "--port", "${self.port:rpc}"],
    kind="service", replicas=2, cpu=1, ports=["rpc"], ready_when="tcp:rpc", state="checkpoint",
    restart=Restart("replica", max_restarts=3, within="1h"),
)
trainer = t.role(
    "trainer", ["python", "train.py", "--ps", ps.addresses("rpc")],
    replicas="2:4x2", gpu=2, depends_on=[ps.ready(on_restart="restart")],
    restart=Restart("role", max_restarts=10, within="1h", rules=[
        On("oom", do="fail"),
        On(exit=2, do="fail"),
    ]),
    workload=Workload(steps=10_000, step_time="400ms", startup="20s", checkpoint_every="5m", checkpoint_time="10s"),
)
evaluator = t.role(
    "evaluator", ["python", "evaluate.py", "--ckpt", "${checkpoint_dir}"], cpu=1,
    depends_on=[trainer.started()], primary=False, restart=Restart("replica", max_restarts=5, then="ignore"),
)
"""


def compiled(tmp_path: Path, body: str, **options: object) -> RoleGraph:
    (tmp_path / "topology.py").write_text(body)
    for script in ("ps.py", "train.py", "evaluate.py"):
        (tmp_path / script).touch()
    return load_topology(str(tmp_path / "topology.py"), **options).graph  # type: ignore[arg-type]


def test_the_example_of_the_design_compiles_to_what_it_says(tmp_path: Path) -> None:
    graph = compiled(tmp_path, DESIGN)
    ps, trainer, evaluator = graph.roles
    assert [node.name for node in graph.cluster.nodes] == ["node0", "node1", "node2", "node3"]
    assert (ps.kind, ps.gang, ps.procs, ps.ready, ps.ports) == ("service", False, 1, Readiness("tcp", "rpc"), ("rpc",))
    assert (trainer.min_replicas, trainer.max_replicas, trainer.procs, trainer.gang) == (2, 4, 2, True)
    assert trainer.gates == (Gate("ps", "ready", "restart"),)
    assert trainer.command[-1] == "${addresses:ps:rpc}" and trainer.address_edges == ("ps",)
    assert trainer.restart is not None and trainer.restart.within_ns == HOUR
    assert trainer.restart.rules == (Rule("fail", "oom"), Rule("fail", None, 2))
    assert (trainer.workload.step_ns, trainer.workload.startup_ns) == (400 * MS, 20 * SECOND)
    assert evaluator.restart is not None and evaluator.restart.then == "ignore" and not evaluator.primary


def test_the_graph_round_trips_through_json(tmp_path: Path) -> None:
    graph = compiled(tmp_path, DESIGN)
    assert decode_graph(encode_graph(graph)) == graph
    assert encode_graph(decode_graph(encode_graph(graph))) == encode_graph(graph)


def test_defaults(tmp_path: Path) -> None:
    graph = compiled(tmp_path, 'from flowdist import Topology\nt = Topology("x")\nt.role("a", "true")')
    (a,) = graph.roles
    assert not graph.cluster.given and a.restart is None and a.gang and a.primary and a.procs == 1
    assert (a.grace_ns, a.stop_grace_ns, a.drain_ns) == (10 * SECOND, 2 * SECOND, 30 * SECOND)
    assert (a.ready_timeout_ns, a.pending_timeout_ns, a.join_window_ns) == (5 * MINUTE, 10 * MINUTE, 10 * SECOND)
    assert (graph.options.heartbeat_ns, graph.options.lease_ns) == (500 * MS, 4 * SECOND)
    assert a.workload.steps == 600 and a.workdir == str(tmp_path)


def test_simulated_workers_stay_in_place_if_their_workload_says_how_long_it_takes(tmp_path: Path) -> None:
    body = "from flowdist import Topology, Workload\nt = Topology('x')\nt.role('a', 'true', workload=Workload())\n"
    body += "t.role('b', 'true', workload=Workload(rejoin_time='50ms'))"
    assert [role.workload.rejoin_ns for role in compiled(tmp_path, body).roles] == [None, 50 * MS]


def test_only_the_workload_says_what_becomes_of_the_peers_of_a_dead_worker(tmp_path: Path) -> None:
    body = "from flowdist import Topology, Workload\nt = Topology('x')\nt.role('a', 'true', workload=Workload())\n"
    body += "t.role('b', 'true', workload=Workload(collective='hang', collective_timeout='30s'))"
    loads = [role.workload for role in compiled(tmp_path, body).roles]
    assert [load.collective for load in loads] == ["", "hang"]
    assert [load.collective_timeout_ns for load in loads] == [None, 30 * SECOND]


def test_the_topology_gives_defaults_that_roles_may_change(tmp_path: Path) -> None:
    body = 'from flowdist import Topology\nt = Topology("x", grace="1m")\n'
    body += 't.role("a", "true")\nt.role("b", "true", grace="2s")'
    graph = compiled(tmp_path, body)
    assert [role.grace_ns for role in graph.roles] == [MINUTE, 2 * SECOND]


def test_procs_default_to_the_gpus_of_the_replica(tmp_path: Path) -> None:
    body = 'from flowdist import Node, Topology\nt = Topology("x", nodes=[Node(gpu=4)])\nt.role("a", "true", gpu=4)'
    assert compiled(tmp_path, body).roles[0].procs == 4


def test_workers_may_be_bound_to_the_node_of_their_gpu_and_have_virtual_local_ranks(tmp_path: Path) -> None:
    body = 'from flowdist import Node, Topology\nt = Topology("x", nodes=[Node(gpu=4)])\n'
    body += 't.role("a", "true", gpu=2, numa="node", virtual_local_rank=True)\nt.role("b", "true")'
    a, b = compiled(tmp_path, body).roles
    assert (a.numa, a.virtual_local_rank, b.numa, b.virtual_local_rank) == ("node", True, "", False)


def test_steps_are_counted_unless_the_role_says_no(tmp_path: Path) -> None:
    body = (
        'from flowdist import Topology\nt = Topology("x")\nt.role("a", "true")\nt.role("b", "true", count_steps=False)'
    )
    assert [role.count_steps for role in compiled(tmp_path, body).roles] == [True, False]


def test_parameters_and_overrides_win_over_the_file(tmp_path: Path) -> None:
    body = (
        "from flowdist import Topology\n"
        "def topology(trainers: str = '2', deep: bool = False, n: int = 1) -> Topology:\n"
        "    t = Topology('x', nodes=n)\n"
        "    t.role('a', 'true', replicas=trainers, primary=not deep)\n"
        "    t.role('main', 'true')\n"
        "    return t\n"
    )
    graph = compiled(tmp_path, body, params={"trainers": "1:3", "deep": "true", "n": "2"}, sets=["a.grace=7s"])
    a = graph.roles[0]
    assert (a.min_replicas, a.max_replicas, a.primary, a.grace_ns) == (1, 3, False, 7 * SECOND)
    assert len(graph.cluster.nodes) == 2
    graph = compiled(tmp_path, body, nodes="5", sets=["a.restart.max_restarts=4", "main.gang=false"])
    assert len(graph.cluster.nodes) == 5 and not graph.roles[1].gang
    assert graph.roles[0].restart is not None and graph.roles[0].restart.max_restarts == 4


def test_nodes_on_the_command_line_are_like_those_of_the_file(tmp_path: Path) -> None:
    body = "from flowdist import Node, Topology\n"
    body += "t = Topology('x', nodes=[Node('big', cpu=32, gpu=4)])\nt.role('a', 'true')"
    nodes = compiled(tmp_path, body, nodes="3").cluster.nodes
    assert [(node.name, node.cpu, node.gpu) for node in nodes] == [("big", 32, 4), ("node1", 32, 4), ("node2", 32, 4)]


def test_a_hook_is_a_command_of_the_job(tmp_path: Path) -> None:
    body = "from flowdist import Topology\nt = Topology('x', on_incident='python train.py \"a b\" ${run_id}')\n"
    body += "t.role('a', 'true')"
    assert compiled(tmp_path, body).on_incident == ("python", "train.py", "a b", "${run_id}")
    assert compiled(tmp_path, body, sets=["on_incident=true --x"]).on_incident == ("true", "--x")
    assert compiled(tmp_path, body, sets=["on_incident=none"]).on_incident == ()


def test_one_of_several_topologies_is_named(tmp_path: Path) -> None:
    body = (
        "from flowdist import Topology\na, b = Topology('a'), Topology('b')\na.role('x', 'true')\nb.role('y', 'true')\n"
    )
    (tmp_path / "many.py").write_text(body)
    assert load_topology(f"{tmp_path / 'many.py'}:b").graph.name == "b"


def test_a_script_becomes_a_topology_of_one_role(tmp_path: Path) -> None:
    script = tmp_path / "My Train.py"
    script.touch()
    graph = one_role_graph(str(script), ["--lr", "1"], replicas="1:4x2", max_restarts=3).graph
    (trainer,) = graph.roles
    assert graph.name == "my-train" and trainer.command == ("python", str(script), "--lr", "1")
    assert (trainer.min_replicas, trainer.max_replicas, trainer.procs) == (1, 4, 2)
    assert trainer.restart is not None and trainer.restart.max_restarts == 3


@pytest.mark.parametrize(
    ("text", "is_topology"),
    [
        ("from flowdist import Topology\nt = Topology('x')", True),
        ("import flowdist\ndef topology(): ...", True),
        ("from flowdist import worker\nworker.ready()", False),
        ("import torch", False),
        ("this is no python", False),
    ],
)
def test_a_topology_is_told_from_a_script_without_importing_it(tmp_path: Path, text: str, is_topology: bool) -> None:
    (tmp_path / "x.py").write_text(text)
    assert looks_like_topology(tmp_path / "x.py") is is_topology


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("30s", 30 * SECOND),
        ("1m30s", 90 * SECOND),
        ("400ms", 400 * MS),
        ("1.5h", 90 * MINUTE),
        ("0.5s", 500 * MS),
    ],
)
def test_durations(text: str | int, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "s", "30 s", "3x", "1m 30s", "-3s", "1h2", "30", 2, None, True])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        parse_duration(text)  # type: ignore[arg-type]


@given(st.integers(0, 10**6).map(lambda ms: ms * MS))
def test_a_duration_that_is_written_is_read_back(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns


@given(st.integers(1, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_a_size_of_memory_that_is_written_is_read_back(number: int, unit: str) -> None:
    assert format_memory(parse_memory(f"{number}{unit}")) == f"{number}{unit}"


@given(st.integers(1, 99), st.integers(1, 99), st.one_of(st.none(), st.integers(1, 9)))
def test_sizes(low: int, high: int, procs: int | None) -> None:
    tail = "" if procs is None else f"x{procs}"
    assert parse_sizes(f"{low}:{high}{tail}") == (low, high, procs)
    assert parse_sizes(f"{high}{tail}") == (high, high, procs)
