"""Placement: the meaning of each argument, and placements that no node can satisfy."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.dsl.load import load_topology
from flowdist.dsl.problems.problem import TopologyProblems
from flowdist.graph import Placement
from tests.dsl.test_load import loaded, refused, underlined

ZONES = """
from flowdist import Node, Topology
t = Topology("x", nodes=[Node("n0", labels={"zone": "east", "rack": 7}), Node("n1", labels={"zone": "west"}), Node()])
a = t.role("a", "true")
b = t.role("b", "true")
"""


def placement_of(tmp_path: Path, arguments: str) -> Placement:
    return loaded(tmp_path, ZONES + f't.role("c", "true", {arguments})').graph.roles[2].placement


@pytest.mark.parametrize(
    ("arguments", "placement"),
    [
        ("placement='pack'", Placement("pack")),
        ("near=a", Placement(near=("a",))),
        ("near=[a, a], apart=None", Placement(near=("a",))),
        ("apart=b", Placement(apart=("b",))),
        ("apart=[a, b]", Placement(apart=("a", "b"))),
        ("apart=True", Placement(apart=("c",))),
        ("apart=False", Placement()),
        ("where={'zone': 'east', 'rack': 7}", Placement(where=(("zone", "east"), ("rack", "7")))),
    ],
)
def test_a_placement_is_read(tmp_path: Path, arguments: str, placement: Placement) -> None:
    assert placement_of(tmp_path, arguments) == placement


@pytest.mark.parametrize(
    ("arguments", "code", "message", "help", "argument"),
    [
        ("placement='spraed'", "FD131", "placement='spraed' is unknown", 'did you mean "spread"?', "'spraed'"),
        ("near='a'", "FD135", "near= takes roles of this topology, not 'a'", "write near=ROLE", "'a'"),
        ("near=['alpha', b]", "FD135", "not 'alpha'", "write near=ROLE", "'alpha'"),
        ("apart=['bb']", "FD135", "not 'bb'", 'did you mean "b"? write apart=ROLE', "'bb'"),
        ("near=[b, a.started()]", "FD135", "not a.started()", "write near=ROLE", "a.started()"),
        ("near=True", "FD134", "near=True must be a list", "write near=ROLE", "True"),
        ("near=False", "FD134", "near=False must be a list", "write near=ROLE", "False"),
        ("near=Topology('y').role('a', 'true')", "FD135", "not role 'a'", "role() returned", None),
        ("near=[a, b], apart=b", "FD146", "near 'b' and apart from it", "leave one of them out", "[a, b]"),
        ("where={'zone': 'easst'}", "FD146", "no node has the label zone=easst", 'did you mean "east"?', None),
        ("where={'zoen': 'east'}", "FD146", "the label zoen=east", 'did you mean "zone"? Or write Node(', None),
        ("where={'zone': 'west', 'rack': 7}", "FD146", "both zone=west and rack=7", "leave one of them out", None),
        ("where='zone=east'", "FD134", "where= must be a dict", "where=", "'zone=east'"),
        ("where={'zone': None}", "FD134", "where['zone'] is None", "leave it out", None),
        ("where={'zone': 'east'}, apart=True, replicas=2", "FD146", "it may use 1 node", "lower the", "True"),
    ],
)  # fmt: skip
def test_what_no_node_can_give(
    tmp_path: Path, arguments: str, code: str, message: str, help: str, argument: str | None
) -> None:
    problem = refused(tmp_path, ZONES + f't.role("c", "true", {arguments})')
    assert problem.code == code and message in problem.message and help in problem.help
    assert underlined(problem) == (argument or arguments.partition("=")[2].partition(", apart")[0])


def test_without_labels_the_line_to_write_is_told(tmp_path: Path) -> None:
    text = 'from flowdist import Topology\nt = Topology("x", nodes=2)\nt.role("a", "true", where={"zone": "a"})'
    assert refused(tmp_path, text).help == 'write Node(..., labels={"zone": "a"})'


def test_without_nodes_nothing_is_known_of_labels(tmp_path: Path) -> None:
    text = 'from flowdist import Topology\nt = Topology("x")\nt.role("a", "true", where={"zone": "a"}, apart=True)'
    assert loaded(tmp_path, text).graph.roles[0].placement.where == (("zone", "a"),)


def with_sets(tmp_path: Path, *sets: str) -> dict[str, Placement]:
    (tmp_path / "topology.py").write_text(ZONES)
    graph = load_topology(str(tmp_path / "topology.py"), sets=sets).graph
    return {role.name: role.placement for role in graph.roles}


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("b.near=a", Placement(near=("a",))),
        ("b.apart=a", Placement(apart=("a",))),
        ("b.apart=TRUE", Placement(apart=("b",))),
        ("b.apart=false", Placement()),
        ("b.where=zone=west", Placement(where=(("zone", "west"),))),
        ("b.where=zone=east, rack=7,", Placement(where=(("zone", "east"), ("rack", "7")))),
        ("b.placement=pack", Placement("pack")),
    ],
)
def test_the_command_line_places_too(tmp_path: Path, text: str, placement: Placement) -> None:
    assert with_sets(tmp_path, text)["b"] == placement
    assert with_sets(tmp_path, text, f"{text.partition('=')[0]}=none")["b"] == Placement()


@pytest.mark.parametrize(
    ("text", "code", "message", "help"),
    [
        ("b.near=aa", "FD133", "no role 'aa'", 'did you mean "a"?'),
        ("b.apart=yes", "FD133", "no role 'yes'", "known: a, b"),
        ("b.where=zone", "FD133", "a label is NAME=VALUE", "write --set b.where=zone=a"),
        ("b.where=zone=easst", "FD146", "no node has the label zone=easst", 'did you mean "east"?'),
        ("b.near=b", "FD146", "near 'b', which is not declared before it", "leave it out"),
        ("a.near=b", "FD146", "near 'b', which is not declared before it", "leave it out"),
    ],
)
def test_a_mistake_on_the_command_line_is_shown_there(
    tmp_path: Path, text: str, code: str, message: str, help: str
) -> None:
    with pytest.raises(TopologyProblems) as caught:
        with_sets(tmp_path, text)
    (problem,) = caught.value.problems
    assert problem.code == code and message in problem.message and help in problem.help
    assert problem.place.file == "<command line>"
