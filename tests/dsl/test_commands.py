"""Commands of roles: their forms, whether they are found, and the places of their macros."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowdist.dsl.compile import compile_topology
from flowdist.dsl.load import load_topology
from flowdist.dsl.problems.problem import Problem, Problems, TopologyProblems
from flowdist.dsl.topology import Topology
from tests.dsl.test_load import loaded, refused, underlined

TEXT = 'from flowdist import Topology\nt = Topology("x", nodes=4)\ns = t.role("s", "true", ports=["p"])\n'


def command_of(tmp_path: Path, arguments: str) -> tuple[str, ...]:
    (tmp_path / "x.py").touch()
    return loaded(tmp_path, TEXT + f't.role("a", {arguments})').graph.roles[1].command


def problem_of(tmp_path: Path, arguments: str) -> Problem:
    (tmp_path / "x.py").touch()
    return refused(tmp_path, TEXT + f't.role("a", {arguments})')


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("'python x.py --lr 1'", ("python", "x.py", "--lr", "1")),
        ("['python', 'x.py', 'two words']", ("python", "x.py", "two words")),
        ("script='x.py', args='--name \"two words\"'", ("python", "x.py", "--name", "two words")),
        ("script=__import__('pathlib').Path('x.py')", ("python", "x.py")),
        ("module='http.server', args=['8000']", ("python", "-m", "http.server", "8000")),
    ],
)
def test_a_command_is_written_in_one_of_three_ways(tmp_path: Path, arguments: str, command: tuple[str, ...]) -> None:
    assert command_of(tmp_path, arguments) == command


@pytest.mark.parametrize(
    ("arguments", "code", "message", "argument"),
    [
        ("'true', args=['--x']", "FD108", "args= goes with script= or module=", "['--x']"),
        ("script='x.py', args=[1]", "FD134", "args=[1] must be a string or a list of strings", "[1]"),
        ("script=''", "FD108", "script= is empty", "''"),
        ("module=''", "FD108", "module= is empty", "''"),
        ("script=3", "FD134", "script=3 must be a path", "3"),
        ("' '", "FD108", "its command is empty", "' '"),
        ("[' ', 'x']", "FD108", "its command is empty", "[' ', 'x']"),
        ("module='x', script='x.py'", "FD108", "both script= and module= are given", "'x'"),
        ("'true', env=['A=1']", "FD134", "env= must be a dict", "['A=1']"),
        ("'true', env={'A': None}", "FD134", "env['A'] is None", "None"),
        ("'true', env={'A=1': 2}", "FD134", "env= has 'A=1', which cannot name", "{'A=1': 2}"),
        ("'true', workdir=3", "FD134", "workdir=3 must be a path", "3"),
    ],
)
def test_a_command_that_makes_no_sense(tmp_path: Path, arguments: str, code: str, message: str, argument: str) -> None:
    problem = problem_of(tmp_path, arguments)
    assert problem.code == code and message in problem.message and underlined(problem) == argument


# Whether it is found

FOUND = [
    "['python', '-u', 'x.py']",
    "['python', '-W', 'error', 'x.py']",
    "['python', '-Werror', 'x.py']",
    "['python', '-uX', 'dev', 'x.py']",
    "['python', '--check-hash-based-pycs', 'never', 'x.py']",
    "['python', '-c', 'print()']",
    "['python', '-uc', 'print()']",
    "['python', '-', '3']",
    "['python', '-V']",
    "['python', '-m']",
    "['python', '-mhttp.server', '8000']",
    "['python', '-um', 'x']",
    "['python', '-m', 'sys']",
    "['python', 'package']",
    "['python', '${role}.py']",
    "['python', '-m', '${role}']",
    "['${role}']",
    "['./run.sh']",
    "['run.sh'], workdir='package'",
    "['true']",
    f"[{sys.executable!r}]",
]
MISSING = [
    ("['python', '-u', 'y.py']", "script 'y.py' is not found", 'did you mean "x.py"? paths are relative to '),
    ("['python', '--check-hash-based-pycs', 'x.py', 'y.py']", "script 'y.py' is not found", "did you mean"),
    ("['python', '--check-hash-based-pycs=never', 'y.py']", "script 'y.py' is not found", "did you mean"),
    ("['python', '-m', 'package.sys']", "module 'package.sys' is not found", "check its spelling"),
    ("['python', '-W', 'x.py', 'zzzzzz.py']", "script 'zzzzzz.py' is not found", "paths are relative to "),
    ("['python', 'x.py'], workdir='nowhere'", "script 'x.py' is not found", "paths are relative to "),
    ("['python', 'empty']", "script 'empty' is not found", "paths are relative to "),
    (f"['python', {'x' * 300!r}]", "is not found", "paths are relative to "),
    ("['python', '-mnot_there.at_all']", "module 'not_there.at_all' is not found", "check its spelling"),
    ("['python', '-m', 'x.y']", "module 'x.y' is not found", "check its spelling"),
    ("['./package']", "command './package' is not found", "write a path relative to the topology file"),
    ("['./only_here.sh'], workdir='package'", "command './only_here.sh' is not found", "write a path relative"),
    ("['no-such-program']", "command 'no-such-program' is not found", "or a program on PATH"),
]


def test_the_topology_itself_is_not_what_was_meant(tmp_path: Path) -> None:
    """The topology `t.py` is similar to `a.py`, but is not suggested; a similar script still is."""
    topology = tmp_path / "t.py"
    topology.write_text('from flowdist import Topology\nt = Topology("x")\nt.role("a", ["python", "a.py"])\n')
    for beside, help in (("train.txt", f"paths are relative to {tmp_path}"), ("b.py", 'did you mean "b.py"? paths')):
        (tmp_path / beside).touch()
        with pytest.raises(TopologyProblems) as caught:
            load_topology(str(topology))
        assert caught.value.problems[0].help.startswith(help)


def with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the folder of the topology, so that a wrong relative path would be found if the compiler looked there."""
    for folder in ("package", "empty"):
        (tmp_path / folder).mkdir()
    (tmp_path / "package/__main__.py").touch()
    for script in ("run.sh", "only_here.sh", "package/run.sh"):
        (tmp_path / script).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'package'}:/usr/bin:/bin")


@pytest.mark.parametrize("arguments", FOUND)
def test_what_is_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    with_files(tmp_path, monkeypatch)
    assert command_of(tmp_path, arguments)


@pytest.mark.parametrize(("arguments", "message", "help"), MISSING)
def test_what_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str, help: str
) -> None:
    with_files(tmp_path, monkeypatch)
    problem = problem_of(tmp_path, arguments)
    assert problem.code == "FD109" and message in problem.message and help in problem.help


def test_a_module_is_found_without_being_imported(tmp_path: Path) -> None:
    folder = tmp_path / "untouched"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "train.py").touch()
    assert command_of(tmp_path, "module='untouched.train'")[2] == "untouched.train"
    assert "untouched" not in sys.modules


# Macros


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ("['echo', '${rnak}']", "['echo', '${rnak}']"),
        ("'echo ${rnak}'", "'echo ${rnak}'"),
        ("script='${rnak}.py'", "'${rnak}.py'"),
        ("script='x.py', args='--rank ${rnak}'", "'--rank ${rnak}'"),
        ("module='x', args=['${rnak}']", "['${rnak}']"),
        ("'true', env={'R': '${rnak}'}", "'${rnak}'"),
        ("script='x.py', env={'R': '${rnak}'}", "'${rnak}'"),
    ],
)
def test_an_unknown_macro_is_underlined_where_it_is_written(tmp_path: Path, arguments: str, argument: str) -> None:
    problem = problem_of(tmp_path, arguments)
    assert problem.code == "FD120" and underlined(problem) == argument
    assert problem.help == 'did you mean "rank"?'


@pytest.mark.parametrize(
    ("arguments", "code", "argument"),
    [
        ("script='x.py', args=s.addresses('p')", "FD122", "s.addresses('p')"),
        ("'true', env={'PS': s.addresses('p')}", "FD122", "s.addresses('p')"),
        (
            "['echo', s.addresses('q')], depends_on=s.started(on_restart='restart')",
            "FD119",
            "['echo', s.addresses('q')]",
        ),
        ("'echo ${addresses:nobody:p}'", "FD122", "'echo ${addresses:nobody:p}'"),
    ],
)
def test_a_wrong_address_is_underlined_where_it_is_written(
    tmp_path: Path, arguments: str, code: str, argument: str
) -> None:
    problem = problem_of(tmp_path, arguments)
    assert problem.code == code and underlined(problem) == argument


def test_a_macro_is_checked_although_the_command_makes_no_sense() -> None:
    t, problems = Topology("x"), Problems()
    t.role("a", 7, env={"R": "${rnak}"})  # type: ignore[arg-type]
    compile_topology(t, problems)
    assert [problem.code for problem in problems.sorted()] == ["FD134", "FD120"]
