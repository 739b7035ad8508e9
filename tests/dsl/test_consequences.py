"""A wrong value is one problem: nothing that follows from it is reported as well."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.dsl.test_load import problems_of

# A topology whose parts depend on each other in all ways: by gates, addresses, ports, sizes, labels, a domain, a world.
TOPOLOGY = """\
from flowdist import Node, On, Resources, Restart, Secret, Template, Topology, Workload
t = Topology(
    "x",
    nodes=[*8 * [Node(cpu=64, gpu=16, memory="512GiB", labels={"zone": "a"})], Node("spare")],
    resources={"large": Resources(cpu=12, gpu=2, memory="96GiB")},
    heartbeat="1s",
    lease="5s",
    on_incident="true",
)
base = Template(cpu=9, ports=["rpc"], env={"PORT": "${self.port:rpc}", "KEY": Secret(env="HOME")})
ps = t.role("ps", "true", like=base, kind="service", ready_when="tcp:rpc", state="memory", placement="pack")
in_domain = Restart("domain", max_restarts=3, within="1h", backoff="5s", backoff_max="20s")
data = t.role("data", "true", ports=["web"], restart=in_domain)
t.restart_together("core", ps, data)
trainer = t.role(
    "trainer",
    ["echo", ps.addresses("rpc")],
    depends_on=[ps.ready(on_restart="restart"), data.succeeded()],
    resources="large",
    replicas="2:4x2",
    numa="node",
    near=ps,
    where={"zone": "a"},
    parallel={"dp": "elastic", "tp": 2},
    hang_after="5m",
    workload=Workload(step_time="2s", checkpoint_every="1m", checkpoint_time="9s", checkpoint_blocks="3s"),
    restart=Restart("role", max_restarts=2, rules=[On("oom", do="fail")], then=Restart("job", max_restarts=2)),
)
ignored = Restart("replica", then="ignore")
evaluator = t.role("evaluator", "true", gang=False, primary=False, restart=ignored, apart=trainer)
learner = t.role("learner", "true", primary=True, gpu=1)
actor = t.role("actor", "true", primary=True, workdir=".", env={"A": "b"})
t.world("both", learner, actor)
t.role("last", "true", depends_on=[evaluator, learner], memory="120GiB", gpu=4, replicas="1x4", apart=True)
"""
VALUES = "object()", "Node().frobnicate()"  # a value that no argument takes, and one of which nothing is known
ACCEPTED = {("Topology", "name"), ("role", "name"), ("restart_together", "name"), ("world", "name")}  # text of anything


def calls() -> list[tuple[str, str, ast.expr]]:
    """Return each argument of each call of TOPOLOGY: the call's name, the argument's name, and its value."""
    found = []
    for node in ast.walk(ast.parse(TOPOLOGY)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = {"On": "kind", "Restart": "scope", "addresses": "port"}.get(name, "name")
            given = [
                (first if i == 0 else "command" if name == "role" else "role", arg) for i, arg in enumerate(node.args)
            ]
            given += [(keyword.arg or "", keyword.value) for keyword in node.keywords]
            found += [(name, argument, value) for argument, value in given]
    return found


def replaced(value: ast.expr, text: str) -> str:
    """Return TOPOLOGY with another text in the place of a value; the number of lines stays the same."""
    lines = TOPOLOGY.splitlines(keepends=True)
    assert value.end_lineno == value.lineno and value.end_col_offset is not None
    line = lines[value.lineno - 1]
    lines[value.lineno - 1] = line[: value.col_offset] + text + line[value.end_col_offset :]
    return "".join(lines)


def test_the_topology_is_right(tmp_path: Path) -> None:
    assert [problem.code for problem in problems_of(tmp_path, TOPOLOGY)] == []


@pytest.mark.parametrize("wrong", VALUES)
def test_a_wrong_value_is_one_problem_wherever_it_stands(tmp_path: Path, wrong: str) -> None:
    several = []
    for call, argument, value in calls():
        if wrong == "object()" and (call, argument) in ACCEPTED:
            continue
        found = problems_of(tmp_path, replaced(value, wrong))
        line = value.lineno
        if [problem.place.line for problem in found] != [line] or found[0].severity != "error":
            several.append((call, argument, line, [(each.code, each.place.line, each.message) for each in found]))
    assert several == []


SMALL = 'from flowdist import Node, Resources, Topology\nt = Topology("x"{})\nt.role("a", "true", resources="small")\n'


@pytest.mark.parametrize(
    ("shared", "given", "code", "message"),
    [
        ('[resources.small]\ncpu = "x"', "", "FD134", "cpu='x' must be a number"),
        ("[resources.small]\nmemory = 64", "", "FD164", "memory=64 has no unit"),
        ("[resources]\nsmall = 3", "", "FD134", "it must be a table"),
        ("resources = 3", "", "FD134", "it must be a table"),
        ("= 3", "", "FD142", "cannot be read"),
        ("", ", resources=3", "FD134", "resources= must be a dict"),
        ("", ', resources={"small": Resources(cpu="x")}', "FD134", "cpu='x' must be a number"),
    ],
)
def test_a_wrong_size_is_one_problem_although_a_role_has_it(
    tmp_path: Path, shared: str, given: str, code: str, message: str
) -> None:
    (tmp_path / "flowdist.toml").write_text(shared)
    (problem,) = problems_of(tmp_path, SMALL.format(given))
    assert problem.code == code and message in problem.message


def test_gpus_without_nodes_are_one_problem_whose_help_has_room_for_every_replica(tmp_path: Path) -> None:
    text = """from flowdist import Node, Topology
t = Topology("x")
t.role("a", "true", gpu=2, cpu=12, memory="64GiB", replicas=4)
t.role("b", "true", gpu=1)
"""
    (problem,) = problems_of(tmp_path, text)
    nodes = '5 * [Node(gpu=2, cpu=12, memory="64GiB")]'
    assert problem.code == "FD114" and problem.help == f"write Topology(..., nodes={nodes})"
    assert problems_of(tmp_path, text.replace('"x"', f'"x", nodes={nodes}')) == []
    (problem,) = problems_of(tmp_path, text.replace('"x"', '"x", nodes=8'))
    assert problem.help == f"write Topology(..., nodes={nodes.replace('5', '8')})"
