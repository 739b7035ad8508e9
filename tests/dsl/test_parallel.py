"""`parallel=`: a mesh is checked against every size that its role may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.dsl.load import load_topology
from tests.dsl.test_load import loaded, refused, underlined

HEAD = 'from flowdist import Restart, Topology\nt = Topology("x", nodes=8)\n'


def role(arguments: str) -> str:
    return HEAD + f't.role("a", "true", {arguments})'


@pytest.mark.parametrize(
    ("arguments", "parallel", "step"),
    [
        ("replicas='2:6', parallel={'pp': 2, 'dp': 'elastic'}", (("pp", 2), ("dp", 0)), 2),
        ("replicas='1:4x4', parallel={'dp': 'elastic', 'tp': 2}", (("dp", 0), ("tp", 2)), 1),
        ("replicas='2x4', parallel={'pp': 2, 'dp': 2, 'tp': 2}", (("pp", 2), ("dp", 2), ("tp", 2)), 2),
        ("replicas='2:4x3', parallel={'tp': 2, 'dp': 'elastic'}", (("tp", 2), ("dp", 0)), 2),
        ("replicas='1:4'", (), 1),
    ],
)
def test_a_mesh_is_read(tmp_path: Path, arguments: str, parallel: object, step: int) -> None:
    spec = loaded(tmp_path, role(arguments)).graph.role("a")
    assert (spec.parallel, spec.step) == (parallel, step)


@pytest.mark.parametrize(
    ("arguments", "message", "help"),
    [
        ("parallel=8", "parallel=8 must be a mapping", 'write parallel={"pp": 2'),
        ("parallel={}", "parallel={} must be a mapping", 'write parallel={"pp": 2'),
        ("parallel={'tensor parallel': 2}", "'tensor parallel' cannot be the name", "write parallel="),
        ("parallel={'class': 2}", "'class' cannot be the name", "write parallel="),
        ("parallel={2: 2}", "2 cannot be the name", "write parallel="),
        ("parallel={'dp': 0}", "dp=0 is not a size", "or \"elastic\" for what the others leave"),
        ("parallel={'dp': True}", "dp=True is not a size", "write a number"),
        ("parallel={'dp': 'rest'}", "dp='rest' is not a size", "write a number"),
        ("parallel={'a': 'elastic', 'b': 'elastic'}", "a and b are both elastic", "only one can take what is left"),
        ("replicas=3, parallel={'pp': 2}", "its mesh pp=2 has 2 ranks, and replicas=3 makes 3", 'write replicas="2"'),
        ("replicas='1x3', parallel={'pp': 2}", "and replicas=1x3 makes 3", "change procs or a dimension"),
        ("replicas='1:2', parallel={'pp': 2}", "its replicas may, from 1 to 2", 'make one dimension "elastic"'),
        ("replicas='1:4', parallel={'pp': 2, 'dp': 'elastic'}", "needs multiples of 2 replicas", 'replicas="2:4"'),
        ("replicas='2:5', parallel={'pp': 2, 'dp': 'elastic'}", "replicas=2:5 has others", 'write replicas="2:4"'),
        ("replicas='2:3x2', parallel={'pp': 4, 'dp': 'elastic'}", "replicas=2:3x2 has others", 'replicas="2:2x2"'),
        ("gang=False, restart=Restart('replica'), parallel={'dp': 1}", "is not a gang", "a mesh spans all ranks"),
        ("kind='service', parallel={'dp': 1}", "is not a gang", "a mesh spans all ranks"),
    ],
)  # fmt: skip
def test_what_forms_no_mesh(tmp_path: Path, arguments: str, message: str, help: str) -> None:
    problem = refused(tmp_path, role(arguments) + '\nt.role("b", "true")')
    assert problem.code == "FD160" and message in problem.message and help in problem.help
    assert underlined(problem) == arguments.partition("parallel=")[2]


def test_a_joint_world_is_no_mesh(tmp_path: Path) -> None:
    text = HEAD + 'a = t.role("a", "true", parallel={"dp": 1})\nb = t.role("b", "true")\nt.world("core", a, b)'
    assert "shares the ranks of world 'core'" in refused(tmp_path, text).message


def test_the_command_line_sets_a_mesh(tmp_path: Path) -> None:
    (tmp_path / "topology.py").write_text(role("replicas='2:4'"))
    graph = load_topology(str(tmp_path / "topology.py"), sets=["a.parallel=pp=2, dp=elastic"]).graph
    assert graph.role("a").parallel == (("pp", 2), ("dp", 0))
