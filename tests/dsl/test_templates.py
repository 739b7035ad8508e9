"""Templates: arguments that roles share, written once; and plain functions that do the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.dsl.load import load_topology
from flowdist.graph import SECOND, Resources, RoleGraph, RoleSpec
from tests.dsl.test_problems import problems, underlined

HEAD = "from flowdist import *\n"
T = 't = Topology("x", nodes=[Node(cpu=32, gpu=8)], resources={"small": Resources(cpu=2)})\n'


def compiled(folder: Path, body: str, *sets: str) -> RoleGraph:
    (folder / "topology.py").write_text(HEAD + T + body)
    return load_topology(str(folder / "topology.py"), sets=sets).graph


def role(folder: Path, body: str, *sets: str) -> RoleSpec:
    return compiled(folder, body, *sets).roles[0]


def test_a_role_has_what_its_template_gives_and_its_own_fields_win(tmp_path: Path) -> None:
    body = 'base = Template(cpu=4, replicas=3, primary=False, restart=Restart("role", max_restarts=2), grace="1s")\n'
    body += 't.role("a", "true", like=base, gpu=1, replicas=1, primary=True)\nt.role("b", "true", like=base)'
    a, b = compiled(tmp_path, body).roles
    assert (a.resources, b.resources) == (Resources(4, 1), Resources(4))
    assert (a.max_replicas, b.max_replicas, a.primary, b.primary) == (1, 3, True, False)
    assert a.restart == b.restart and a.restart is not None and a.grace_ns == b.grace_ns == SECOND


def test_none_at_the_role_wins_too(tmp_path: Path) -> None:
    body = 'base = Template(restart=Restart("role"), ready_when="call")\n'
    a = role(tmp_path, body + 't.role("a", "true", like=base, restart=None, ready_when=None)')
    assert a.restart is None and a.ready is None


def test_variables_are_merged_through_all_templates(tmp_path: Path) -> None:
    body = (
        'base = Template(env={"A": "base", "B": "base", "C": "base"})\nmore = Template(like=base, env={"B": "more"})\n'
    )
    body += 't.role("a", "true", like=more, env={"C": "role", "D": "role"})\nt.role("b", "true", like=more, env=None)'
    a, b = compiled(tmp_path, body, "a.env.A=cli").roles
    assert dict(a.env) == {"A": "cli", "B": "more", "C": "role", "D": "role"}
    assert dict(b.env) == {"A": "base", "B": "more", "C": "base"}


def test_a_template_extends_another_and_gates_may_be_in_it(tmp_path: Path) -> None:
    body = 'up = t.role("up", "true")\nbase = Template("true", cpu=4, depends_on=[up])\n'
    body += 't.role("a", like=Template(like=base, gpu=1, cpu=2))'
    a = compiled(tmp_path, body).role("a")
    assert a.resources == Resources(2, 1) and a.command == ("true",) and a.gates[0].role == "up"


def test_a_role_has_one_command_and_one_size(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    base = 'base = Template(script="x.py", args="--deep", cpu=9, memory="1GiB")\n'
    assert role(tmp_path, base + 't.role("a", "true", like=base)').command == ("true",)
    assert role(tmp_path, base + 't.role("a", like=base)').command == ("python", "x.py", "--deep")
    module = role(tmp_path, base + 't.role("a", module="json", like=base)')
    assert module.command == ("python", "-m", "json", "--deep")
    assert role(tmp_path, base + 't.role("a", like=base, resources="small")').resources == Resources(2)
    named = 'base = Template("true", resources="small")\n'
    assert role(tmp_path, named + 't.role("a", like=base, cpu=3)').resources == Resources(3)


def test_an_override_of_one_role_leaves_the_others_of_its_template(tmp_path: Path) -> None:
    body = 'base = Template("true", restart=Restart("role", max_restarts=1), workload=Workload(steps=1))\n'
    body += 't.role("a", like=base)\nt.role("b", like=base)'
    a, b = compiled(tmp_path, body, "a.restart.max_restarts=5", "a.workload.steps=5").roles
    assert a.restart is not None and b.restart is not None
    assert (a.restart.max_restarts, b.restart.max_restarts, a.workload.steps, b.workload.steps) == (5, 1, 5, 1)


@pytest.mark.parametrize(
    ("given", "code", "argument"),
    [
        ('grace="soon"', "FD106", '"soon"'),
        ('replicas="4:2"', "FD103", '"4:2"'),
        ('command="nope"', "FD109", '"nope"'),
        ('env={"A": "x", "B": "${rnak}"}', "FD120", '"${rnak}"'),
        ('restart=Restart("domain")', "FD128", 'Restart("domain")'),
        ('restart=Restart(rules=[On("oomm")])', "FD121", '"oomm"'),
        ("workload=Workload(steps=0)", "FD105", "0"),
        ('ready_when="tcp:rpc"', "FD119", '"tcp:rpc"'),
        ("depends_on=[3]", "FD135", "3"),
        ("cpu=99", "FD112", "99"),
        ("cpus=3", "FD132", "cpus=3"),
        ('name="x"', "FD132", 'name="x"'),
        ("like=3", "FD134", "3"),
    ],
)
def test_a_problem_of_a_template_is_told_at_the_template_once(
    tmp_path: Path, given: str, code: str, argument: str
) -> None:
    body = T + f'base = Template(gang=True, {given})\nwider = Template(like=base, env={{"OTHER": "1"}})\n'
    command = "" if "command" in given else '"true", '
    body += f't.role("a", {command}like=base, kind="task")\nt.role("b", {command}like=wider)\n'
    found = [
        problem for problem in problems(tmp_path, "from flowdist import Template\n" + body) if problem.code == code
    ]
    assert len(found) == 1 and found[0].message.startswith("roles 'a' and 'b': ")
    assert underlined(found[0]) == argument and "Template(" in line_of(found[0].place)


def line_of(place: tuple) -> str:  # type: ignore[type-arg]
    return Path(place[0]).read_text().splitlines()[place[1] - 1]


def test_what_the_role_gives_is_told_at_the_role(tmp_path: Path) -> None:
    body = 'from flowdist import Template\nt = Topology("x")\nbase = Template(grace="1s", env={"A": "1"})\n'
    body += 't.role("a", "true", like=base, grace="soon", env={"B": "${rnak}"})'
    found = problems(tmp_path, body)
    assert [underlined(problem) for problem in found] == ['"soon"', '"${rnak}"']
    assert all("t.role" in line_of(problem.place) for problem in found)


def test_functions_reuse_roles_as_well(tmp_path: Path) -> None:
    body = 'def shard(number):\n    return t.role(f"shard-{number}", "true", cpu=2, ports=["rpc"])\n'
    body += 'shards = [shard(number) for number in range(3)]\nt.role("main", "true", depends_on=shards)'
    graph = compiled(tmp_path, body)
    assert [spec.name for spec in graph.roles] == ["shard-0", "shard-1", "shard-2", "main"]
    assert [gate.role for gate in graph.role("main").gates] == ["shard-0", "shard-1", "shard-2"]


def test_a_problem_in_a_function_is_told_once_with_the_roles_that_have_it(tmp_path: Path) -> None:
    body = 't = Topology("x")\nfor i in range(6):\n    t.role(f"shard-{i}", "true", grace="soon")\n'
    (found,) = problems(tmp_path, body)
    assert found.message.startswith("roles 'shard-0', 'shard-1', 'shard-2', 'shard-3' and 2 more: grace='soon'")
    assert underlined(found) == '"soon"'
