"""Places of problems: the argument itself, or the nearest place that is known."""

from __future__ import annotations

import linecache
import marshal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowdist import Restart, Topology
from flowdist.dsl.compile import compile_topology
from flowdist.dsl.problems.places import COMMAND_LINE, Place
from flowdist.dsl.problems.problem import Problem, Problems, TopologyProblems, did_you_mean, recording
from flowdist.dsl.read.fields import Arguments
from tests.dsl.test_load import HEAD, refused, underlined

TOPOLOGY = HEAD + 't = Topology("x", nodes=4)\nmain = t.role("main", "true")\n'


def problems_of_cell(tmp_path: Path, name: str, executed: str, shown: str) -> list[Problem]:
    """Return the problems of code whose file has another text, as a cell of a notebook has."""
    file = tmp_path / name
    file.write_text(shown)
    linecache.checkcache(str(file))
    names: dict[str, Any] = {}
    exec(compile(executed, str(file), "exec"), names)
    problems = Problems()
    compile_topology(names["t"], problems)
    return problems.sorted()


@pytest.mark.parametrize(
    ("statement", "argument"),
    [
        ('t.role("a", "true", grace="x").started()', '"x"'),
        ('(t\n    .role("a", "true", grace="x"))', '"x"'),
        ('roles = [t.role(name, "true", grace="x") for name in ("a",)]', '"x"'),
        ('t.role("a", "true", **{"grace": "x"})', "t.role"),
        ('def add(grace): t.role("a", "true", grace=grace)\nadd("x")', "grace"),
        ('t.role("a",\n  "true", env={"K": "ü"}, grace="ü")', '"ü"'),
    ],
)
def test_the_argument_is_found_however_the_call_is_written(tmp_path: Path, statement: str, argument: str) -> None:
    problem = refused(tmp_path, TOPOLOGY + statement)
    assert problem.code == "FD106" and underlined(problem) == argument


@pytest.mark.parametrize(("arguments", "argument"), [("replica=3", "replica=3"), ('**{"replica": 3}', "t.role")])
def test_an_unknown_argument_is_found_with_its_name(tmp_path: Path, arguments: str, argument: str) -> None:
    problem = refused(tmp_path, TOPOLOGY + f't.role("a", "true", {arguments})')
    assert problem.code == "FD132" and underlined(problem) == argument


def test_of_an_argument_over_several_lines_the_first_is_underlined(tmp_path: Path) -> None:
    problem = refused(tmp_path, TOPOLOGY + 't.role("a", [\n    "no-such-program",\n    "--x",\n])')
    assert problem.code == "FD109" and underlined(problem) == "["


@pytest.mark.parametrize(
    ("env", "argument"),
    [
        ('{"A": "1", "B": "${rnak}"}', '"${rnak}"'),
        ('{**base, "B": "${rnak}"}', '"${rnak}"'),
        ('{key: "${rnak}"}', '{key: "${rnak}"}'),
        ("given", "given"),
        ('dict(B="${rnak}")', 'dict(B="${rnak}")'),
    ],
)
def test_a_variable_is_shown_where_its_value_is_written(tmp_path: Path, env: str, argument: str) -> None:
    text = TOPOLOGY + 'key, base, given = "B", {"A": "1"}, {"B": "${rnak}"}\n'
    problem = refused(tmp_path, text + f't.role("a", "true", env={env})')
    assert problem.code == "FD120" and underlined(problem) == argument


def test_an_element_of_a_list_that_has_a_name_is_shown_by_the_name(tmp_path: Path) -> None:
    problem = refused(tmp_path, TOPOLOGY + 'gates = [main.ready()]\nt.role("a", "true", depends_on=gates)')
    assert problem.code == "FD115" and underlined(problem) == "gates"


@pytest.mark.parametrize("shown", ["%time run()\n\n!ls", "", "\0"])
def test_where_the_text_is_not_the_code_that_ran_the_line_is_told(tmp_path: Path, shown: str) -> None:
    executed = HEAD + 't = Topology("x")\nt.role(\n    "a", "true", grace="x")'
    (found,) = problems_of_cell(tmp_path, "cell", executed, shown)
    assert found.place == Place(str(tmp_path / "cell"), 3)
    assert ":3:1: error[FD106]" in found.format()


def test_code_that_was_compiled_without_columns_has_its_problems_at_the_line(tmp_path: Path) -> None:
    file = tmp_path / "topology.py"
    file.write_text(TOPOLOGY + "main.grace = '5s'\nmain.redy()\nt.role('a', 'true', grace='x')\n")
    dump = "import marshal, sys; f = sys.argv[1]\n"
    dump += "sys.stdout.buffer.write(marshal.dumps(compile(open(f).read(), f, 'exec')))"
    compiled = subprocess.run(
        [sys.executable, "-IX", "no_debug_ranges", "-c", dump, str(file)], capture_output=True, check=True
    )
    names: dict[str, Any] = {}
    problems = Problems()
    with recording(problems):
        exec(marshal.loads(compiled.stdout), names)
        compile_topology(names["t"], problems)
    found = [(problem.code, problem.place) for problem in problems.sorted()]
    line = TOPOLOGY.count("\n") + 1
    codes = enumerate(("FD161", "FD162", "FD106"))
    assert found == [(code, Place(str(file), line + index)) for index, code in codes]


def test_a_problem_elsewhere_is_shown_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inside").mkdir()
    file = tmp_path / "topology.py"
    file.write_text("x\n")
    problem = Problem("FD100", "it is so", "do this", Place(str(file), 1, 1, 2))
    monkeypatch.chdir(tmp_path / "inside")
    assert problem.format().startswith(f"{file}:1:1: error[FD100]: it is so\n")
    monkeypatch.chdir(tmp_path)
    assert problem.format().startswith("topology.py:1:1: error[FD100]: it is so\n")


def test_a_problem_of_the_command_line_has_no_line() -> None:
    problem = Problem("FD300", "it is so", "do this", Place(COMMAND_LINE, 1), "warning")
    assert problem.format() == "warning[FD300]: it is so\n  = help: do this"


def test_warnings_alone_are_no_error() -> None:
    problems = Problems()
    problems.warn("FD300", "it is so", "do this", Place(COMMAND_LINE, 1))
    problems.raise_errors()
    problems.error("FD100", "it is not", "do that", Place(COMMAND_LINE, 1))
    with pytest.raises(TopologyProblems, match="1 error in the topology") as caught:
        problems.raise_errors()
    assert [problem.severity for problem in caught.value.problems] == ["error", "warning"]


def test_what_roles_and_nodes_have_in_common_names_them_all() -> None:
    problems = Problems()
    for owner in ("node 'node0'", "role 'a'", "role 'b'"):
        problems.error("FD100", "it is so", "do this", Place(COMMAND_LINE, 1), owner=owner)
    (problem,) = problems.sorted()
    assert problem.message == "node 'node0', role 'a', role 'b': it is so"


def test_did_you_mean_lists_what_there_is_where_nothing_is_near() -> None:
    assert did_you_mean("trianer", ["ps", "trainer"]) == 'did you mean "trainer"?'
    assert did_you_mean("zzz", ["ps", "trainer"]) == "known: ps, trainer"
    assert did_you_mean("zzz", []) == "there is none"


def test_an_argument_of_a_call_that_nobody_wrote_stands_at_the_call_that_could_have_it() -> None:
    t = Topology("x", nodes=1)
    t.role("trainer", "true", restart=Restart("role", max_restarts=1))
    arguments = Arguments(t)
    assert arguments.is_written("trainer", "restart.max_restarts")
    assert not arguments.is_written("trainer", "workload.startup")
    assert arguments.place("trainer", "workload.startup") == arguments.place("trainer", "workload")
    assert arguments.place("trainer", "workload").line == arguments.place("trainer", "restart").line
