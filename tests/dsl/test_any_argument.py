"""The compiler returns a graph or problems for any argument, and never raises another exception."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowdist.dsl.compile import compile_topology
from flowdist.dsl.problems.problem import Problems
from flowdist.dsl.topology import Role, RoleFields, Template, Topology
from flowdist.dsl.words import Node, On, Resources, Restart, Secret, Snapshots, Workload
from flowdist.graph import decode_graph, encode_graph

ODD: list[Any] = [
    None, True, False, 0, 3, -1, 10**30, 10**400, 1.5, math.inf, math.nan,
    "", " ", "x", "3", "--3", "\u00b2", "9" * 5000, "9" * 400 + ".5d", "1e999", "a\0b", "\n", "\u00e9" * 300, "-", ".",
    "/", "./", "1:2:3", "0:0", "${", "${}", "${self.port:}", "${addresses:}", "${addresses:main}", "tcp:", "tcp:/",
    "log:(", b"x",
    [], [1], [None], [""], ["a\0b"], ["python", "-m"], ["python", "-m", "a..b"], ["python", ""], [[1]], (1,),
    {}, {"a": 1}, {"": "x"}, {"a=b": "x"}, {"a": None}, {1, 2}, range(3), Path("x"), object(), print, Node, lambda: 1,
    Restart(), [On()], [3, On("exit"), On(exit=3)], Resources(), Workload(), Topology("other").role("alien", "true"),
    Template(), Template("true", like=Template(env={"A": 3})), Secret(),
    {"A": Secret(env="HOME"), "B": Secret(file=".")},
]  # fmt: skip


def topology_with(**given: Any) -> Topology:
    t = Topology(**{"name": "x", "nodes": 2, **given})
    t.role("main", "true")
    return t


def role_with(topology: Topology | None = None, **given: Any) -> Topology:
    t = topology or topology_with()
    if not {"command", "script", "module", "run"} & set(given):
        given["script" if "args" in given else "command"] = "true"
    t.role(**{"name": "a", **given})
    return t


def template_with(**given: Any) -> Topology:
    t = topology_with()
    t.role("a", like=Template(**{"command": "true", **given}))
    return t


def gate_with(**given: Any) -> Topology:
    t = topology_with()
    t.role("a", "true", depends_on=[t.roles[0].started(**given)])
    return t


def address_with(port: Any) -> Topology:
    t = topology_with()
    t.role("a", ["echo", t.roles[0].addresses(port)], depends_on=t.roles[0])
    return t


def domain_with(name: Any = "core", member: Any = None) -> Topology:
    t = role_with()
    t.restart_together(name, t.roles[0], t.roles[1] if member is None else member)
    return t


def world_with(name: Any = "core", member: Any = None) -> Topology:
    t = role_with()
    t.world(name, t.roles[0], t.roles[1] if member is None else member)
    return t


# Each word of the DSL, and a topology in which it was called with that argument.
CALLS: dict[Callable[..., Any], Callable[..., Topology]] = {
    Topology: topology_with,
    Topology.role: role_with,
    Template: template_with,
    Secret: lambda **given: role_with(env={"KEY": Secret(**given)}),
    Node: lambda **given: topology_with(nodes=[Node(**given)]),
    Resources: lambda **given: role_with(topology_with(resources={"small": Resources(**given)}), resources="small"),
    Restart: lambda **given: role_with(restart=Restart(**given)),
    On: lambda **given: role_with(restart=Restart(rules=[On(**given)])),
    Snapshots: lambda **given: role_with(snapshots=Snapshots(**given)),
    Workload: lambda **given: role_with(workload=Workload(**given)),
    Role.started: gate_with,
    address_with: address_with,
    domain_with: domain_with,
    world_with: world_with,
}


def arguments_of(word: Callable[..., Any]) -> list[str]:
    names = [name for name in inspect.signature(word).parameters if name != "self"]
    return [*names[:-1], *RoleFields.__annotations__] if names[-1] == "fields" else names


ARGUMENTS = [(word, name) for word in CALLS for name in arguments_of(word)]


@pytest.mark.parametrize(("word", "name"), ARGUMENTS, ids=[f"{word.__name__}-{name}" for word, name in ARGUMENTS])
def test_an_odd_value_gives_a_graph_or_problems_with_the_users_place(word: Callable[..., Any], name: str) -> None:
    for value in ODD:
        problems = Problems()
        try:
            topology = CALLS[word](**{name: value})
        except AttributeError as error:  # t.world(a, b): the call itself is wrong
            assert "() has no argument 'name'" in str(error) and isinstance(value, Role)
            continue
        graph = compile_topology(topology, problems)
        if any(problem.severity == "error" for problem in problems.sorted()):
            assert {problem.place.file for problem in problems.sorted()} <= {__file__}, value
            assert all(problem.format() for problem in problems.sorted())
        else:
            assert decode_graph(encode_graph(graph)) == graph, value
