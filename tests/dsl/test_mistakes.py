"""Mistakes that users make in topology files: each alone, and many at once; each is one problem at its place."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from flowdist.cli.inspect.topologies import check as command
from flowdist.dsl.load import load_topology
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from tests.dsl.test_load import problems_of, underlined

FILE = Path(__file__).with_name("mistakes.toml")
HEAD = """\
from flowdist import Node, On, Resources, Restart, Role, Secret, Template, Topology, Workload
t = Topology("x", nodes=64 * [Node(gpu=1)], resources={"small": Resources(cpu=2)})
ps = t.role("ps", "true", kind="service", ports=["rpc"], ready_when="tcp:rpc")
main = t.role("main", "true")
"""


class Mistake(NamedTuple):
    """Code that is appended to HEAD, and the one problem that it has; see mistakes.toml."""

    body: str
    code: str
    place: str
    message: str
    help: str


MISTAKES = [Mistake(**each) for each in tomllib.loads(FILE.read_text())["mistake"]]
# These have another topology, make the file's only one ambiguous, or leave open what is missing in the topology.
ALONE = [mistake for mistake in MISTAKES if "Topology(" in mistake.body or "frobnicate" in mistake.body]


def problems(folder: Path, text: str) -> list[Problem]:
    """Return errors and warnings of the topology `t` in a file with that text."""
    return problems_of(folder, text, "y" if 'Topology("y"' in text else "t")


def body_of(mistake: Mistake, index: int) -> str:
    """Return the code of a mistake, in which a second topology is called `y` and has a role."""
    body = mistake.body.replace("NAME", f"role-{index}")
    return f'y = {body}\ny.role("a", "true")' if body.startswith('Topology("y"') else body


def expected(mistake: Mistake, index: int, before: str) -> tuple[str, int, str]:
    """Return code, line and underlined text of the problem of a mistake that is written after `before`."""
    body = body_of(mistake, index)
    place = mistake.place.replace("NAME", f"role-{index}")
    (line,) = [number for number, text in enumerate(body.splitlines()) if place in text][-1:]
    return mistake.code, before.count("\n") + line + 1, place


def found(problem: Problem) -> tuple[str, int, str]:
    return problem.code, problem.place.line, underlined(problem)


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=[mistake.body.partition("\n")[2] or mistake.body for mistake in MISTAKES]
)
def test_each_mistake_is_one_problem_at_its_place(tmp_path: Path, mistake: Mistake) -> None:
    reported = problems(tmp_path, HEAD + body_of(mistake, 0))
    assert [found(problem) for problem in reported] == [expected(mistake, 0, HEAD)], [str(each) for each in reported]
    assert mistake.message.replace("NAME", "role-0") in reported[0].message and mistake.help in reported[0].help
    assert reported[0].severity == "error"


def test_there_are_many_mistakes() -> None:
    assert len(MISTAKES) >= 85 and len(MISTAKES) - len(ALONE) >= 75


def test_many_mistakes_are_reported_in_one_go_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text, wanted = HEAD, []
    for index, mistake in enumerate(each for each in MISTAKES if each not in ALONE):
        wanted.append(expected(mistake, index, text))
        text += body_of(mistake, index) + "\n"
    assert [found(problem) for problem in problems(tmp_path, text)] == wanted


def test_what_was_found_before_an_exception_is_reported_with_it(tmp_path: Path) -> None:
    text = HEAD + 't.role("a", "true", grace=5, cpu="four")\nps.redy()\n1 / 0\nt.lease = 3\n'
    reported = problems(tmp_path, text)
    assert [found(problem)[:2] for problem in reported] == [("FD164", 5), ("FD134", 5), ("FD162", 6), ("FD141", 7)]
    assert reported[-1].message == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("text", "line", "help"),
    [
        ("from flowdist import Topolgy", 1, 'did you mean "Topology"?'),
        ("import flowdist\nt = flowdist.Topologgy('x')", 2, 'did you mean "Topology"?'),
        (HEAD + "t.role('a', 'true', workload=Worklod())", 5, 'did you mean "Workload"?'),
        (HEAD + "def topology():\n    nodes = 3\n    return Topology('x', nodes=node)", 7, 'did you mean "nodes"?'),
        (HEAD + "import math\nx = math.foor(3.5)", 6, 'did you mean "floor"?'),
    ],
)
def test_a_name_that_python_does_not_know_is_answered_with_the_closest(
    tmp_path: Path, text: str, line: int, help: str
) -> None:
    file = tmp_path / "topology.py"
    file.write_text(text)
    with pytest.raises(TopologyProblems) as caught:
        load_topology(str(file))
    (problem,) = caught.value.problems
    assert (problem.code, problem.place.line, problem.help) == ("FD141", line, help)


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("ps.sucess()", 'did you mean "succeeded"?'),
        ("t.service('x', 'true')", 'services are roles: write t.role(..., kind="service")'),
    ],
)
def test_an_attribute_that_a_handle_lacks_is_answered_with_what_was_meant(tmp_path: Path, text: str, help: str) -> None:
    (problem,) = problems(tmp_path, HEAD + text + "\n")
    assert (problem.code, problem.help) == ("FD162", help)


def test_python_may_ask_a_handle_for_anything(tmp_path: Path) -> None:
    text = HEAD + "import copy\nassert not hasattr(t, 'redy') and getattr(ps, 'x', 3) == 3\n"
    text += "assert copy.copy(ps).name == copy.deepcopy(ps).name == 'ps' and repr(Node()) and Node() != 3\n"
    assert problems(tmp_path, text) == []


def test_a_wrong_call_of_the_users_own_function_is_an_exception(tmp_path: Path) -> None:
    text = HEAD + "def add(n): return t.role(n, 'true')\nadd('a', 'b')\n"
    (problem,) = problems(tmp_path, text)
    assert problem.code == "FD141" and problem.message.startswith("TypeError: add() takes 1 positional argument")


def test_a_publisher_that_is_wrong_itself_is_no_reason_to_refuse_its_versions(tmp_path: Path) -> None:
    text = HEAD + "x = t.role('x', 'true', replicas=2, gang=False, kind='servce')\n"
    (problem,) = problems(tmp_path, text + "t.role('a', 'true', versions=x.version())\n")
    assert "servce" in problem.message


def test_mistakes_as_json(tmp_path: Path) -> None:
    (tmp_path / "topology.py").write_text(HEAD + 't.lease = "never"\nps.redy()\nt.role("a", "true", memory=64)\n')
    result = CliRunner().invoke(command, [str(tmp_path / "topology.py"), "--json"])
    content = json.loads(result.stdout)
    assert result.exit_code == 2 and content["kind"] == "problems"
    places = [(problem["code"], problem["line"], problem["column"]) for problem in content["problems"]]
    assert places == [("FD161", 5, 3), ("FD162", 6, 4), ("FD164", 7, 28)]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("main.grace=10000", "FD164", "grace='10000' has no unit"),
        ("lease=10", "FD164", "lease='10' has no unit"),
        ("main.memory=64", "FD164", "memory='64' has no unit"),
        ("main.restart.backoff=5", "FD164", "backoff='5' has no unit"),
        ("main.workload.step_time=2", "FD164", "step_time='2' has no unit"),
        ("main.restart.backoff=5m", "FD165", "backoff=5m is longer than backoff_max=1m"),
        ("main.replcas=3", "FD132", "a role has no 'replcas' to set"),
    ],
)
def test_the_command_line_has_the_same_rules(tmp_path: Path, text: str, code: str, message: str) -> None:
    (tmp_path / "topology.py").write_text(HEAD)
    with pytest.raises(TopologyProblems) as caught:
        load_topology(str(tmp_path / "topology.py"), sets=[text])
    (problem,) = caught.value.problems
    assert problem.code == code and message in problem.message and problem.place.file == "<command line>"
