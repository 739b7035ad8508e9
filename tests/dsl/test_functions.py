"""`run=`: the functions that workers can call, and the problems of others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from flowdist.dsl.compile import compile_topology
from flowdist.dsl.load import load_topology
from flowdist.dsl.problems.problem import Problem, Problems
from flowdist.dsl.topology import Topology
from tests.dsl.test_load import loaded, refused, underlined

HEAD = 'import functools\nfrom flowdist import Topology\nimport helper\nt = Topology("x", nodes=1)\n'
HELPER = """
import asyncio
def train(steps=10, *rest, verbose=False, **more): pass
def wants(steps, /, rate, size=1, *, loud, quiet=True): pass
async def suspended(): pass
def steps_of(): yield 1
def record(function):
    return lambda: function(0)
@record
def decorated(argument): pass
try:
    def tried(): pass
except ImportError:
    tried = None
alias = train
class Trainer:
    def run(self): pass
"""


def with_helper(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)


def command_of(tmp_path: Path, arguments: str, before: str = "") -> tuple[str, ...]:
    with_helper(tmp_path)
    return loaded(tmp_path, HEAD + before + f't.role("a", {arguments})').graph.roles[0].command


def problem_of(tmp_path: Path, arguments: str, before: str = "") -> Problem:
    with_helper(tmp_path)
    return refused(tmp_path, HEAD + before + f't.role("a", {arguments})')


@pytest.fixture(autouse=True)
def forget_the_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the module `helper`, which each test has in its own folder."""
    monkeypatch.delitem(sys.modules, "helper", raising=False)


@pytest.mark.parametrize(
    "function",
    [
        "'helper:train'",
        "helper.train",
        "'helper:tried'",
        "helper.tried",
        "'helper:alias'",
        "'helper:asyncio'",
        "'helper:decorated'",
    ],
)
def test_a_function_of_a_module_next_to_it_is_recorded_by_its_name(tmp_path: Path, function: str) -> None:
    name = function.strip("'").replace(".", ":")
    assert command_of(tmp_path, f"run={function}") == ("python", "-m", "flowdist.worker.call", name)


@pytest.mark.parametrize("text", ["sys:exit", "math:sqrt", "os:getcwd", "os.path:join"])
def test_a_name_that_a_module_may_get_in_another_way_is_believed(tmp_path: Path, text: str) -> None:
    """A name may be built in, in C, or imported with a star: only running the module shows it."""
    assert command_of(tmp_path, f"run={text!r}")[-1] == text


def test_a_package_is_read_too(tmp_path: Path) -> None:
    assert problem_of(tmp_path, "run='json:dumps'").message == "role 'a': dumps() has arguments without defaults: obj"
    assert command_of(tmp_path, "run='json.tool:main'")[-1] == "json.tool:main"


def test_a_module_that_makes_its_names_up_is_believed(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text("def __getattr__(name): return print")
    assert command_of(tmp_path, "run='lazy:main'")[-1] == "lazy:main"


def test_a_module_of_which_python_warns_is_read_without_the_warning(tmp_path: Path) -> None:
    """Warnings are errors in tests: the module could not be read."""
    (tmp_path / "helper.py").write_text("DIGITS = '\\d+'\ndef main(): pass")
    assert loaded(tmp_path, HEAD.replace("import helper", "") + "t.role('a', run='helper:main')").graph.roles


def test_a_function_of_the_topology_file_is_recorded_with_the_file(tmp_path: Path) -> None:
    """While the file is loaded, its module has another name, which a worker could not import."""
    command = command_of(tmp_path, "run=main", before="def main(): pass\n")
    assert command[-1] == f"{tmp_path / 'topology.py'}:main"
    wrapped = "def wrap(f):\n @functools.wraps(f)\n def g(*a): f(1)\n return g\n@wrap\ndef main(argument): pass\n"
    assert command_of(tmp_path, "run=main", before=wrapped)[-1] == f"{tmp_path / 'topology.py'}:main"


def test_with_a_workdir_modules_are_still_looked_for_beside_the_topology(tmp_path: Path) -> None:
    command = command_of(tmp_path, f"run=helper.train, workdir={str(tmp_path)!r}")
    assert command[-2:] == ("helper:train", str(tmp_path))


def test_a_function_may_be_named_on_the_command_line(tmp_path: Path) -> None:
    with_helper(tmp_path)
    (tmp_path / "topology.py").write_text(HEAD + 't.role("a", "true")')
    graph = load_topology(str(tmp_path / "topology.py"), sets=["a.run=helper:train"]).graph
    assert graph.roles[0].command[-1] == "helper:train"


@pytest.mark.parametrize(
    ("function", "code", "message", "help"),
    [
        ("'helper:tain'", "FD109", "module 'helper' has no function 'tain'", 'did you mean "train"?'),
        ("'halper:train'", "FD109", "module 'halper' is not found", 'did you mean "helper"?'),
        ("'nowhere.at.all:f'", "FD109", "module 'nowhere.at.all' is not found", "check its spelling, or install it"),
        ("'helper.sub:f'", "FD109", "module 'helper.sub' is not found", 'did you mean "helper"?'),
        ("'os.path:nofunc'", "FD109", "module 'os.path' has no function 'nofunc'", "check its spelling"),
        ("'os.path:joined'", "FD109", "module 'os.path' has no function 'joined'", 'did you mean "join"?'),
        ("'os.nowhere:f'", "FD109", "module 'os.nowhere' is not found", "check its spelling, or install it"),
        ("'folder:f'", "FD109", "'folder' is a folder without code", 'write "folder.MODULE:f"'),
        ("'helper.train'", "FD147", "run='helper.train' cannot be read", 'did you mean "helper:train"?'),
        ("'helper train'", "FD147", "run='helper train' cannot be read", 'write run="module:function"'),
        ("'python helper.py'", "FD147", "run='python helper.py' cannot be read", "command='python helper.py'"),
        ("''", "FD147", "run='' cannot be read", 'write run="module:function"'),
        ("'${role}:f'", "FD147", "run='${role}:f' cannot be read", 'write run="module:function"'),
        ("'helper:'", "FD147", "run='helper:' cannot be read", 'write run="module:function"'),
        ("'broken:f'", "FD147", "broken.py cannot be read: invalid syntax, line 1", "correct it"),
        ("'helper:wants'", "FD147", "wants() has arguments without defaults: steps, rate, loud", "give them defaults"),
        ("helper.wants", "FD147", "wants() has arguments without defaults: steps, rate, loud", "give them defaults"),
        ("'helper:suspended'", "FD147", "suspended() is a coroutine or a generator", "asyncio.run(suspended())"),
        ("helper.suspended", "FD147", "suspended() is a coroutine or a generator", "asyncio.run(suspended())"),
        ("helper.steps_of", "FD147", "steps_of() is a coroutine or a generator", "does nothing"),
        ("helper.Trainer", "FD147", "Trainer is no function that workers can import", 'write run="module:function"'),
        ("helper.Trainer.run", "FD147", "Trainer.run is no function that workers can import", "at its top"),
        ("helper.decorated", "FD147", "record.<locals>.<lambda> is no function that workers can import", "at its top"),
        ("functools.partial(helper.train)", "FD147", "is no function that workers can import", "at its top"),
        ("print", "FD147", "print is no function that workers can import", "at its top"),
        ("3", "FD147", "3 is no function that workers can import", "at its top"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, function: str, code: str, message: str, help: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.py").write_text("def f(:")
    problem = problem_of(tmp_path, f"run={function}")
    assert problem.code == code and message in problem.message and underlined(problem) == function
    assert help in problem.help or help in problem.message


def test_a_module_that_may_not_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "binary.py").write_bytes(b"x = '\0'")
    problem = problem_of(tmp_path, "run='binary:f'")
    assert problem.code == "FD147" and f"{tmp_path / 'binary.py'} cannot be read: " in problem.message


def test_a_function_takes_no_arguments_and_no_other_command_beside_it(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "run=helper.train, args=['--fast']")
    assert problem.code == "FD108" and underlined(problem) == "['--fast']"
    assert problem.help == "a function takes no arguments"
    problem = problem_of(tmp_path, "'true', run=helper.train")
    assert problem.code == "FD108" and problem.message == "role 'a': both command= and run= are given"


def test_a_function_that_was_typed_into_a_session_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    exec("def typed(): pass", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    topology, problems = Topology("x"), Problems()
    topology.role("a", run=main.typed)
    compile_topology(topology, problems)
    assert [problem.message for problem in problems.sorted()] == [
        "role 'a': typed() is in no file that workers can import"
    ]
