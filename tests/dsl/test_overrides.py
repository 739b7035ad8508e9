"""`--set`: every field of the topology and of its roles, and the problems of wrong overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.dsl.load import load_topology
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.graph import HOUR, MINUTE, MS, SECOND, Gate, RoleGraph

BODY = """
from flowdist import Node, Restart, Resources, Topology, Workload
policy = Restart("role", max_restarts=1)
t = Topology("x", nodes=[Node(cpu=32)], resources={"small": Resources(cpu=2)})
data = t.role("data", "true", restart=policy, env={"A": "a", "B": "b"}, workload=Workload(steps=7), cpu=4)
main = t.role("main", "true", restart=policy, depends_on=[data.succeeded(on_restart="restart")], args=())
"""


def compiled(folder: Path, *sets: str, body: str = BODY) -> RoleGraph:
    (folder / "topology.py").write_text(body)
    return load_topology(str(folder / "topology.py"), sets=sets).graph


def problems(folder: Path, *sets: str, body: str = BODY) -> list[Problem]:
    with pytest.raises(TopologyProblems) as caught:
        compiled(folder, *sets, body=body)
    return list(caught.value.problems)


def test_fields_of_the_topology(tmp_path: Path) -> None:
    sets = ("lease=6s", "grace=5s", "checkpoint_dir=/x", "name=other", "nodes=3", "heartbeat=100ms")
    graph = compiled(tmp_path, *sets)
    assert (graph.name, graph.options.lease_ns, graph.options.heartbeat_ns) == ("other", 6 * SECOND, 100 * MS)
    assert [role.grace_ns for role in graph.roles] == [5 * SECOND] * 2 and graph.checkpoint_dir == "/x"
    assert [node.cpu for node in graph.cluster.nodes] == [32, 32, 32]


def test_how_much_may_fail_on_a_node_and_how_long_nobody_may_listen(tmp_path: Path) -> None:
    options = compiled(tmp_path, "move_after=5", "cordon_after=6", "controller_outage=1m").options
    assert (options.move_after, options.cordon_after, options.controller_outage_ns) == (5, 6, MINUTE)
    options = compiled(tmp_path, "move_after=none", "cordon_after=none", "controller_outage=none").options
    assert (options.move_after, options.cordon_after, options.controller_outage_ns) == (2, 3, 10 * MINUTE)


def test_none_is_as_if_the_field_were_not_given(tmp_path: Path) -> None:
    body = BODY.replace('"x", ', '"x", lease="9s", checkpoint_dir="/x", ').replace("args=()", 'state="checkpoint"')
    graph = compiled(tmp_path, "lease=none", "checkpoint_dir=none", "main.state=none", "data.restart=none", body=body)
    assert graph.options.lease_ns == 4 * SECOND and graph.checkpoint_dir == ""
    assert graph.role("main").state == "none" and graph.role("data").restart is None
    assert not compiled(tmp_path, "nodes=none").cluster.given


def test_the_workload_and_the_restart_policy_of_one_role_alone(tmp_path: Path) -> None:
    graph = compiled(tmp_path, "data.workload.step_time=2s", "main.workload.steps=9", "main.restart.within=1h")
    data, main = graph.roles
    assert (data.workload.steps, data.workload.step_ns, main.workload.steps) == (7, 2 * SECOND, 9)
    assert main.restart is not None and main.restart.within_ns == HOUR
    assert data.restart is not None and data.restart.within_ns is None  # it has the same Restart in the file


def test_a_workload_that_the_command_line_makes_starts_as_the_kind_of_its_role_does(tmp_path: Path) -> None:
    graph = compiled(tmp_path, "main.workload.steps=9", "data.workload=none", "data.workload.steps=2")
    assert [role.workload.startup_ns for role in graph.roles] == [5 * SECOND, 5 * SECOND]
    body = BODY + 't.role("s", "true", kind="service")'
    assert compiled(tmp_path, "s.workload.steps=1", body=body).role("s").workload.startup_ns == 2 * SECOND


def test_variables_are_added_and_replaced_and_keep_every_character(tmp_path: Path) -> None:
    graph = compiled(tmp_path, "data.env.A=x=y, z", "data.env.C.d=none", "main.env.NEW=")
    assert dict(graph.role("data").env) == {"A": "x=y, z", "B": "b", "C.d": "none"}
    assert graph.role("main").env == (("NEW", ""),)


def test_lists_are_split_at_commas(tmp_path: Path) -> None:
    graph = compiled(tmp_path, "data.ports=rpc, web", "data.ready_when=tcp:rpc", "main.depends_on=data.ready:restart")
    assert graph.role("data").ports == ("rpc", "web")
    assert graph.role("main").gates == (Gate("data", "ready", "restart"),)
    assert compiled(tmp_path, "main.depends_on=data").role("main").gates == (Gate("data"),)
    assert compiled(tmp_path, "main.depends_on=none").role("main").gates == ()


def test_one_way_to_give_a_command_replaces_the_other_and_a_named_size_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    graph = compiled(tmp_path, "main.args=--lr 1", "main.script=x.py", "data.resources=small")
    assert graph.role("main").command == ("python", "x.py", "--lr", "1")
    assert graph.role("data").resources.cpu == 2
    assert compiled(tmp_path, "data.cpu=3", "data.resources=small").role("data").resources.cpu == 3


@pytest.mark.parametrize(
    ("text", "code", "message", "help"),
    [
        ("lese=6s", "FD132", "the topology has no 'lese' to set", 'did you mean "lease"?'),
        ("lease=1s", "FD156", "lease=1s and heartbeat=500ms", 'write lease="3s" or more'),
        ("heartbeat=3s", "FD156", "lease=4s and heartbeat=3s", 'heartbeat="1.4s" or less'),
        ("mian=6s", "FD132", "the topology has no 'mian' to set", 'did you mean "main"?'),
        ("main=6s", "FD133", "'main' is a role", "write --set main.FIELD=6s"),
        ("mian.cpu=6", "FD133", "no role 'mian'", 'did you mean "main"?'),
        ("lease.cpu=6", "FD133", "no role 'lease'", "known: data, main"),
        ("main", "FD133", "cannot be read", "--set ROLE.FIELD=VALUE"),
        ("=3", "FD133", "cannot be read", "--set ROLE.FIELD=VALUE"),
        ("main.=3", "FD133", "cannot be read", "--set ROLE.FIELD=VALUE"),
        ("resources=3", "FD132", "has no spelling here", "flowdist.toml"),
        ("main.workload.step=3", "FD132", "a workload has no 'step'", 'did you mean "steps"?'),
        ("main.restart=role", "FD132", "restart is set part by part", "main.restart.FIELD"),
        ("main.env=3", "FD132", "env is set part by part", "main.env.NAME"),
        ("main.env.=3", "FD133", "the variable has no name", "main.env.NAME=VALUE"),
        ("main.name=x", "FD132", "a role has no 'name' to set", "known: "),
        ("main.run=x", "FD147", "run='x' cannot be read", 'run="module:function"'),
        ("main.like=none", "FD132", "a role has no 'like' to set", "known: "),
        ("main.restart.rules=none", "FD132", "a restart has no 'rules'", "known: scope, max_restarts"),
        ("main.restart.site=x", "FD132", "a restart has no 'site'", "known: scope, max_restarts"),
        ("main.grace.x=3", "FD132", "a role has no 'grace.x' to set", 'did you mean "grace"?'),
        ("main.depends_on=", "FD133", "no role ''", "known: data"),
        ("main.evn.X=3", "FD132", "a role has no 'evn.X' to set", 'did you mean "env"?'),
        ("main.depends_on=date.ready", "FD133", "no role 'date'", 'did you mean "data"?'),
        ("main.depends_on=main", "FD133", "role 'main' cannot wait for itself", "starts before it"),
        ("main.depends_on=data.redy", "FD131", "condition 'redy' is unknown", 'did you mean "ready"?'),
        ("main.depends_on=data.started:again", "FD131", "on_restart='again' is unknown", "reconnect"),
        ("main.depends_on=data,data", "FD136", "two gates on role 'data'", "keep one gate"),
        ("data.depends_on=main", "FD117", "it waits for 'main'", "declare it before"),
        ("name=Other", "FD102", "cannot name a folder", "lower case"),
        ("lease=soon", "FD106", "lease='soon' cannot be read", "30s"),
        ("main.workload.collective=fial", "FD131", "collective='fial' is unknown", 'did you mean "fail"?'),
        ("main.workload.collective_timeout=0", "FD105", "collective_timeout='0' must be more than zero", "30s"),
        ("main.workload.steps=0", "FD105", "steps=0 is less than 1", "steps=1"),
        ("main.restart.scope=domain", "FD128", 'restarts its "domain"', "restart_together"),
        ("main.gang=true", "FD129", "a gang restarts as one", "gang=False"),
        ("main.env.X=${rnak}", "FD120", "macro ${rnak} is unknown", 'did you mean "rank"?'),
        ("main.args=${rnak}", "FD108", "args= goes with script=", "put the arguments"),
    ],
)
def test_a_mistake_points_at_the_command_line(tmp_path: Path, text: str, code: str, message: str, help: str) -> None:
    body = BODY.replace("restart=policy, depends_on", 'restart=Restart("replica"), depends_on')
    found = [problem for problem in problems(tmp_path, text, body=body) if problem.code == code]
    assert len(found) == 1 and message in found[0].message and help in found[0].help
    assert found[0].place.file == "<command line>"


@pytest.mark.parametrize(
    ("given", "text", "message"),
    [
        ("restart=3", "a.restart.max_restarts=2", "restart= must be a Restart"),
        ("workload=3", "a.workload.steps=2", "workload= must be a Workload"),
        ("env=3", "a.env.X=2", "env= must be a dict"),
    ],
)
def test_a_part_of_what_the_file_gets_wrong_is_not_set_and_the_file_is_told(
    tmp_path: Path, given: str, text: str, message: str
) -> None:
    body = f'from flowdist import Topology\nt = Topology("x")\nt.role("a", "true", {given})\n'
    (found,) = problems(tmp_path, text, body=body)
    assert found.code == "FD134" and message in found.message
    assert found.place.file == str(tmp_path / "topology.py")


def test_a_role_is_not_shadowed_by_a_field_of_the_topology(tmp_path: Path) -> None:
    body = BODY + 't.role("lease", "true")'
    assert compiled(tmp_path, "lease.grace=1m", body=body).role("lease").grace_ns == MINUTE
    (found,) = problems(tmp_path, "lease=6s", body=body)
    assert found.code == "FD133" and "'lease' is a role" in found.message


def test_an_unknown_argument_of_the_file_cannot_be_set_either(tmp_path: Path) -> None:
    for value in ("3", "none"):
        found = problems(tmp_path, f"main.replica={value}", body=BODY.replace("args=()", "replica=3"))
        assert [problem.code for problem in found] == ["FD132", "FD132"]
        assert [problem.help for problem in found] == ['did you mean "replicas"?'] * 2


def test_of_two_roles_of_one_name_the_first_is_set(tmp_path: Path) -> None:
    body = BODY.replace("cpu=4", 'grace="first"') + 't.role("data", "true", grace="second")'
    found = [problem.message for problem in problems(tmp_path, "data.grace=set", body=body) if problem.code == "FD106"]
    assert found == ["role 'data': grace='second' cannot be read", "role 'data': grace='set' cannot be read"]


def test_a_gate_may_be_set_with_spaces_around_it(tmp_path: Path) -> None:
    body = BODY + 't.role("last", "true", depends_on=main)'
    gates = compiled(tmp_path, "last.depends_on=data.succeeded , main", body=body).role("last").gates
    assert gates == (Gate("data", "succeeded"), Gate("main"))


def test_part_by_part_a_policy_is_made_where_there_is_none(tmp_path: Path) -> None:
    body = BODY.replace("restart=policy, depends_on", "depends_on")
    sets = (
        "main.restart.scope=job",
        "main.restart.max_restarts=2",
        "main.restart.backoff=9s",
        "main.restart.backoff=none",
    )
    policy = compiled(tmp_path, *sets, body=body).role("main").restart
    assert policy is not None and (policy.scope, policy.max_restarts, policy.backoff_ns) == ("job", 2, SECOND)


def test_the_nodes_of_a_single_node_are_like_it(tmp_path: Path) -> None:
    body = BODY.replace("nodes=[Node(cpu=32)]", 'nodes=Node("big", cpu=64)')
    for options in ({"sets": ["nodes=3"]}, {"nodes": "3"}):
        (tmp_path / "topology.py").write_text(body)
        nodes = load_topology(str(tmp_path / "topology.py"), **options).graph.cluster.nodes  # type: ignore[arg-type]
        assert [(node.name, node.cpu) for node in nodes] == [("big", 64), ("node1", 64), ("node2", 64)]


def test_nodes_that_are_not_alike_are_told_in_the_words_of_the_command_line(tmp_path: Path) -> None:
    body = BODY.replace("[Node(cpu=32)]", "[Node(cpu=32), Node(cpu=8)]")
    (found,) = problems(tmp_path, "nodes=3", body=body)
    assert found.message == "--set nodes=3: the nodes of the topology have different sizes" and found.code == "FD104"


def test_a_scenario_may_set_lists_and_fields_of_the_topology(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from flowdist.cli.simulate.simulate import command

    (tmp_path / "topology.py").write_text(BODY)
    scenario = 'title = "x"\ntopology = "topology.py"\n[set]\nlease = "soon"\ndata.ports = ["a", "b"]\n'
    (tmp_path / "x.toml").write_text(scenario + 'data.ready_when = "tcp:b"\n')
    result = CliRunner().invoke(command, [str(tmp_path / "x.toml")])
    assert result.exit_code == 2 and "lease='soon' cannot be read" in result.output
    assert result.output.count("error[") == 1


def test_a_heartbeat_of_the_command_line_that_is_too_slow_for_the_lease_of_the_file(tmp_path: Path) -> None:
    body = BODY.replace('"x", ', '"x", lease="3s", ')
    (found,) = problems(tmp_path, "heartbeat=2s", body=body)
    assert (found.code, found.place.file) == ("FD156", "<command line>")
    (found,) = problems(tmp_path, "lease=2s", body=body.replace('lease="3s"', 'heartbeat="1s"'))
    assert (found.code, found.place.file) == ("FD156", "<command line>")
