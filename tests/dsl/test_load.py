"""Topology files and the command line: execution of the file, parameters and overrides."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from flowdist.dsl import load
from flowdist.dsl.load import Loaded, check_runnable, load_topology, looks_like_topology
from flowdist.dsl.problems.problem import Problem, TopologyProblems

HEAD = "from flowdist import Node, Restart, Topology\n"
MAIN = HEAD + 't = Topology("x", nodes=4)\nmain = t.role("main", "true")\n'


def loaded(tmp_path: Path, text: str, name: str = "", **options: object) -> Loaded:
    """Compile a file with that text; `name` chooses one of several topologies in it."""
    file = tmp_path / "topology.py"
    file.write_text(text, encoding="utf-8")
    return load_topology(f"{file}:{name}" if name else str(file), **options)  # type: ignore[arg-type]


def refused(tmp_path: Path, text: str, **options: object) -> Problem:
    """Return the one problem of a file with that text."""
    with pytest.raises(TopologyProblems) as caught:
        loaded(tmp_path, text, **options)
    (problem,) = caught.value.problems
    return problem


def problems_of(tmp_path: Path, text: str, name: str = "", **options: object) -> list[Problem]:
    """Return the errors of a file with that text; if it has none, its warnings."""
    try:
        return list(loaded(tmp_path, text, name, **options).warnings)
    except TopologyProblems as error:
        return list(error.problems)


def underlined(problem: Problem) -> str:
    line = Path(problem.place.file).read_text(encoding="utf-8").splitlines()[problem.place.line - 1]
    return line[problem.place.column - 1 : problem.place.end_column - 1]


def parameters(declared: str) -> str:
    """Return the arguments that the function of a file gets, which it keeps in the labels of a node."""
    return (
        f"from typing import Optional\n{HEAD}def topology({declared}) -> Topology:\n"
        "    labels = {key: repr(value) for key, value in locals().items()}\n"
        "    t = Topology('x', nodes=[Node(labels=labels)])\n    t.role('a', 'true')\n    return t\n"
    )


# The file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", "the file is not valid Python: invalid syntax"),
        ("x = '\0'", "the file is not valid Python: source code "),
        (MAIN + "import sys; sys.exit('set DATA first')", "SystemExit: set DATA first"),
        (MAIN + "raise ValueError('no data')", "ValueError: no data"),
        (MAIN + "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_what_the_file_raises_is_told(tmp_path: Path, text: str, message: str) -> None:
    problem = refused(tmp_path, text)
    assert problem.code == "FD141" and problem.message.startswith(message)
    assert problem.place.file == str(tmp_path / "topology.py") and problem.place.line == text.count("\n") + 1


def test_a_role_that_is_made_without_its_topology_is_helped_with(tmp_path: Path) -> None:
    problem = refused(tmp_path, MAIN + "from flowdist import Role\nRole('trainer', ['python', 'train.py'])")
    assert problem.code == "FD163" and problem.message == "a Role is made by its topology"
    assert problem.help == 'write t.role("trainer", ["python", "train.py"])'


def test_a_name_that_the_file_does_not_have_is_helped_with_the_function_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(HEAD + "def topology():\n    return Topology('x')\n")
    with pytest.raises(TopologyProblems) as caught:
        load_topology(f"{tmp_path / 'made.py'}:foo")
    assert caught.value.problems[0].help == "known: topology"


def test_where_problems_are_raised_into_a_script_they_are_told(tmp_path: Path) -> None:
    with pytest.raises(TopologyProblems) as caught:
        load_topology(str(tmp_path / "nope.py"))
    assert [note for note in caught.value.__notes__ if "no topology file" in note and "help: " in note]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "t.role('b', 'true', replicas=0)\ngates = [tt]\nt.role('c', 'true', replicas=0)",
            "2 errors {}; {} up to line 5",
        ),
        ("def f():\n    raise ValueError\n\nf()", "1 error {}; {} up to line 7"),
        ("t.role('b', 'true', replicas=0)\nt.role('c', 'true', replicas=0)", "2 errors {}"),
        ("def f(:", "1 error {}"),
    ],
)
def test_after_an_exception_the_message_says_how_far_the_file_was_read(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "topology.py").write_text(MAIN + text)  # in line 4
    with pytest.raises(TopologyProblems) as caught:
        load_topology(str(tmp_path / "topology.py"))
    assert caught.value.message == said.format("in the topology", "flowdist read the file")


@pytest.mark.parametrize(
    ("text", "argument"), [("x = 1\ny = = 2", "="), ("f(a b)", "a b"), ("t = Topology('x'", "("), ("if x:", "")]
)
def test_what_is_no_python_is_underlined_where_python_says(tmp_path: Path, text: str, argument: str) -> None:
    problem = refused(tmp_path, text)
    assert problem.code == "FD141" and underlined(problem) == argument
    assert problem.place.end_column > problem.place.column


@pytest.mark.parametrize(
    ("name", "message"), [("topology", "topology is not a Topology"), ("make", "make is not a Topology")]
)
def test_what_a_function_returns_is_named_as_it_was_asked_for(tmp_path: Path, name: str, message: str) -> None:
    asked = "" if name == "topology" else name
    problem = refused(tmp_path, HEAD + f"def {name}(): return 3", name=asked)
    assert problem.code == "FD140" and problem.message.endswith(f": {message}")


def test_the_line_of_an_exception_counts_characters_not_bytes(tmp_path: Path) -> None:
    assert underlined(refused(tmp_path, MAIN + 'x = "äöü" + undefined')) == "undefined"


def test_a_scenario_is_not_read_as_python(tmp_path: Path) -> None:
    (tmp_path / "story.toml").write_text('title = "a story"\n[expect]\ngenerations = { trainer = 3 }\n')
    with pytest.raises(TopologyProblems) as caught:
        load_topology(str(tmp_path / "story.toml"))
    assert caught.value.problems[0].help == "scenarios are read by flowdist simulate; name its topology"


def test_a_syntax_error_of_a_module_is_reported_at_its_import(tmp_path: Path) -> None:
    (tmp_path / "broken_sizes.py").write_text("\n\n\nsizes = = 3\n")
    problem = refused(tmp_path, MAIN + "import broken_sizes")
    assert problem.message == "SyntaxError: invalid syntax (broken_sizes.py, line 4)"
    assert underlined(problem) == "import broken_sizes"


def test_an_unknown_argument_of_the_users_own_function_is_no_matter_of_the_dsl(tmp_path: Path) -> None:
    problem = refused(tmp_path, MAIN + "def topology(n=1): return t\nlarge = topology(m=2)")
    assert problem.code == "FD141"
    assert problem.message.startswith("TypeError: topology() got an unexpected keyword argument 'm'")


@pytest.mark.parametrize(
    ("call", "marked", "help"),
    [
        ("t.role('a', 'true', replica=3)", "replica=3", 'did you mean "replicas"?'),
        ("Topology('y', node=3)", "node=3", 'did you mean "nodes"?'),
        ("main.ready(onrestart='x')", "onrestart='x'", 'did you mean "on_restart"?'),
        ("Restart(zzz=1)", "zzz=1", "known: scope, max_restarts"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_known_ones(tmp_path: Path, call: str, marked: str, help: str) -> None:
    problem = refused(tmp_path, MAIN + call, name="t")
    assert problem.code == "FD132" and help in problem.help and underlined(problem) == marked


def test_modules_beside_the_file_are_found_by_the_file_and_by_its_function(tmp_path: Path) -> None:
    (tmp_path / "beside_one.py").write_text("NAME = 'one'")
    (tmp_path / "beside_two.py").write_text("NODES = 2")
    text = HEAD + "from beside_one import NAME\ndef topology():\n    from beside_two import NODES\n"
    text += "    t = Topology(NAME, nodes=NODES)\n    t.role('a', 'true')\n    return t\n"
    graph = loaded(tmp_path, text).graph
    assert graph.name == "one" and len(graph.cluster.nodes) == 2
    assert str(tmp_path) not in sys.path


def test_a_file_may_change_the_path_itself(tmp_path: Path) -> None:
    before = list(sys.path)
    assert loaded(tmp_path, "import sys\nsys.path.pop(0)\n" + MAIN).graph.name == "x"
    assert sys.path == before


def test_a_file_that_begins_with_a_byte_order_mark_is_a_topology(tmp_path: Path) -> None:
    assert loaded(tmp_path, "\ufeff" + MAIN).graph.name == "x"
    assert looks_like_topology(tmp_path / "topology.py")


def test_python_warns_of_a_line_of_the_file_once_and_names_the_file(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        loaded(tmp_path, MAIN + "\nDIGITS = '\\d+'")
        assert looks_like_topology(tmp_path / "topology.py")
    assert [warning.filename for warning in shown] == [str(tmp_path / "topology.py")]


def test_a_function_that_imports_the_dsl_as_a_module_is_a_topology(tmp_path: Path) -> None:
    text = "import flowdist.dsl as fd\ndef topology():\n    t = fd.Topology('x')\n    t.role('a', 'true')\n    return t"
    assert loaded(tmp_path, text).graph.name == "x"


@pytest.mark.parametrize(
    "text",
    [
        "import flowdist.worker_tools\nx = 1",
        "x = 1",
        "import flowdist\ndef train(): ...",
        "import torch\ndef topology(): ...",
        "import torch\nt = torch.Topology()",
        "import flowdist.worker\ndef topology(): ...",
        "from flowdist.worker.model import Run\ndef topology(): ...",
        "from flowdist import worker as w\ndef topology(): ...",
        "from .flowdist import dsl\ndef topology(): ...",
    ],
)
def test_what_declares_no_topology_does_not_look_like_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.py").write_text(text)
    assert not looks_like_topology(tmp_path / "x.py")
    assert not looks_like_topology(tmp_path / "nope.py")


def test_a_topology_that_another_module_makes_is_named(tmp_path: Path) -> None:
    (tmp_path / "made_elsewhere.py").write_text(MAIN)
    (tmp_path / "thin.py").write_text("from made_elsewhere import t")
    assert load_topology(f"{tmp_path / 'thin.py'}:t").graph.name == "x"
    with pytest.raises(TopologyProblems) as caught:
        load_topology(str(tmp_path / "thin.py"))
    assert "name an object that another module makes" in caught.value.problems[0].help


def test_one_topology_under_two_names_is_one(tmp_path: Path) -> None:
    assert loaded(tmp_path, MAIN + "same = t").graph.name == "x"


def test_several_topologies_are_listed_with_how_to_name_them(tmp_path: Path) -> None:
    problem = refused(tmp_path, HEAD + "a, b = Topology('a'), Topology('b')")
    file = tmp_path / "topology.py"
    assert problem.help == f"name one of {file}:a, {file}:b"


@pytest.mark.parametrize(
    ("target", "message"), [(".", ". cannot be read: Is a directory"), ("a\0b", "no topology file 'a\\x00b'")]
)
def test_what_is_no_file_is_refused(target: str, message: str) -> None:
    with pytest.raises(TopologyProblems) as caught:
        load_topology(target)
    assert caught.value.problems[0].code == "FD140" and caught.value.problems[0].message == message


@pytest.mark.parametrize(
    ("name", "for_topology", "for_run"),
    [
        ("jbos.py", "did you mean '{}/jobs.py'?", "did you mean '{}/jobs.py'?"),
        ("trian.py", "name a topology file", "did you mean '{}/train.py'?"),
        ("halves.py", "did you mean '{}/halve.py'?", "did you mean '{}/halve.py'?"),
        ("folders.py", "name a topology file", "did you mean '{}/folder.py'?"),
        ("q", "name a topology file", "name a topology, or a script: flowdist run train.py"),
    ],
)
def test_a_file_that_is_missed_by_a_letter_is_named(tmp_path: Path, name: str, for_topology: str, for_run: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "jobs.py").write_text(MAIN)
    (tmp_path / "halve.py").write_text("t = Topology(")  # it may be meant, and naming it shows what is wrong with it
    (tmp_path / "folder.py").mkdir()
    for read, help in ((load_topology, for_topology), (check_runnable, for_run)):
        with pytest.raises(TopologyProblems) as caught:
            read(str(tmp_path / name) if read is load_topology else tmp_path / name)  # type: ignore[operator]
        assert caught.value.problems[0].help.startswith(help.format(tmp_path))


@pytest.mark.parametrize("text", ["from flowdist import Topology\nt = Topology('x'\n", "print(1\n", "a\0b", "return\n"])
def test_a_file_that_python_cannot_read_is_neither_topology_nor_script(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.py"
    file.write_text(text)
    with pytest.raises(TopologyProblems, match="1 error in the file") as caught:
        check_runnable(file)
    (problem,) = caught.value.problems
    assert problem.code == "FD141" and problem.place.file == str(file) and "is not valid Python" in problem.message


def test_a_file_that_python_warns_about_is_run(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "x.py").write_text("print(1 is 1, '\\d')\n")
    check_runnable(tmp_path / "x.py")
    check_runnable(tmp_path)  # a folder: reading it as a topology says so
    assert not list(recwarn)


def test_problems_that_the_function_finds_itself_are_passed_on(tmp_path: Path) -> None:
    text = HEAD + "from flowdist.dsl.load import load_topology\ndef topology():\n    return load_topology('nope.py')\n"
    problem = refused(tmp_path, text)
    assert (problem.code, problem.message) == ("FD140", "no topology file 'nope.py'")


def test_what_happens_outside_the_file_alone_is_told_at_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "far_away.py").write_text("def make(): raise RuntimeError('no data')")
    problem = refused(tmp_path, HEAD + "from far_away import make", name="make")
    assert (problem.message, problem.place.line) == ("RuntimeError: no data", 1)


# Its parameters


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        ("n: int", "3", "3"),
        ("n: 'int'", "3", "3"),
        ("n: int | None = None", "3", "3"),
        ("n: 'int | None' = None", "3", "3"),
        ("n: Optional[int] = None", "3", "3"),
        ("n: float = 1", "0.5", "0.5"),
        ("n: bool = False", "Yes", "True"),
        ("n: bool = True", "0", "False"),
        ("n: str = ''", "3", "'3'"),
        ("n: int | str = 3", "1:2", "'1:2'"),
        ("n: list[int] = 3", "1", "'1'"),
        ("n=3", "4", "'4'"),
    ],
)
def test_a_parameter_has_the_type_that_it_is_declared_with(
    tmp_path: Path, declared: str, text: str, value: str
) -> None:
    (node,) = loaded(tmp_path, parameters(declared), params={"n": text}).graph.cluster.nodes
    assert dict(node.labels)["n"] == value


@pytest.mark.parametrize(
    ("declared", "params", "code", "message"),
    [
        ("n: int", {"n": "two"}, "FD134", "-p n=two: not of type int"),
        ("n: bool = True", {"n": "maybe"}, "FD134", "-p n=maybe: not of type bool"),
        ("n: int | None = None", {"n": "two"}, "FD134", "-p n=two: not of type int"),
        ("n: int", {}, "FD133", "parameter 'n' has no value"),
        ("n: int = 1", {"m": "2"}, "FD133", "-p m: no such parameter"),
        ("*names: str", {"names": "2"}, "FD133", "-p names: no such parameter"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused(
    tmp_path: Path, declared: str, params: dict[str, str], code: str, message: str
) -> None:
    problem = refused(tmp_path, parameters(declared), params=params)
    assert (problem.code, problem.message) == (code, message) and problem.help
    assert problem.place.file == "<command line>"


def test_a_function_may_take_any_parameters(tmp_path: Path) -> None:
    (node,) = loaded(tmp_path, parameters("*names: str, **sizes: str"), params={"a": "1", "b": "2"}).graph.cluster.nodes
    assert dict(node.labels) == {"names": "()", "sizes": "{'a': '1', 'b': '2'}"}


def test_what_the_function_raises_is_told_with_the_users_line(tmp_path: Path) -> None:
    problem = refused(tmp_path, HEAD + "def topology(n: int = 0):\n    import sys\n    sys.exit(f'{n} is too few')\n")
    assert problem.message == "SystemExit: 0 is too few"
    assert underlined(problem) == "sys.exit(f'{n} is too few')"


# Its overrides

SHARED = (
    HEAD + 't = Topology("x", nodes=4)\npolicy = Restart("role", max_restarts=1)\n'
    't.role("a", "true", restart=policy)\nt.role("b", "true", restart=policy, grace="3s")\n'
)


def test_an_override_of_a_policy_leaves_other_roles_that_share_it_alone(tmp_path: Path) -> None:
    a, b = loaded(tmp_path, SHARED, sets=["a.restart.max_restarts=7"]).graph.roles
    assert a.restart is not None and a.restart.max_restarts == 7
    assert b.restart is not None and b.restart.max_restarts == 1


def test_none_takes_an_argument_back(tmp_path: Path) -> None:
    a, b = loaded(tmp_path, SHARED, sets=["b.grace=none", "a.restart.within=1h", "a.restart.within=None"]).graph.roles
    assert b.grace_ns == a.grace_ns == 10_000_000_000
    assert a.restart is not None and a.restart.within_ns is None


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("a.gpu=\u00b2", "FD134", "role 'a': gpu='\u00b2' must be a whole number"),
        ("a.gpu=--3", "FD134", "role 'a': gpu='--3' must be a whole number"),
        ("a.cpu=lots", "FD134", "role 'a': cpu='lots' must be a number"),
        ("a.cpu=inf", "FD134", "role 'a': cpu='inf' must be a number"),
        ("a.cpu=-1", "FD105", "role 'a': cpu='-1' must not be negative"),
        ("a.primary=perhaps", "FD134", "role 'a': primary='perhaps' must be true or false"),
        ("a.restart.max_restarts=-1", "FD105", "role 'a': max_restarts=-1 is less than 0"),
        ("a.ready_when=http:rpc", "FD119", "role 'a': it has no port 'rpc'"),
    ],
)
def test_a_wrong_override_points_at_the_command_line(tmp_path: Path, text: str, code: str, message: str) -> None:
    problem = refused(tmp_path, SHARED, sets=[text])
    assert (problem.code, problem.message) == (code, message)
    assert problem.place == load.CLI


def test_what_is_overridden_points_at_the_command_line_and_the_rest_at_the_file(tmp_path: Path) -> None:
    shared = SHARED.replace("max_restarts=1", 'max_restarts=1, within="soon"')
    with pytest.raises(TopologyProblems) as caught:
        loaded(tmp_path, shared, sets=["a.restart.max_restarts=-1", "b.restart.within=late"])
    found = [(problem.message, problem.place == load.CLI) for problem in caught.value.problems]
    assert sorted(found) == [
        ("role 'a': max_restarts=-1 is less than 0", True),
        ("role 'a': within='soon' cannot be read", False),
        ("role 'b': within='late' cannot be read", True),
    ]


@pytest.mark.parametrize("text", ["true", "YES", "1"])
def test_a_flag_is_true_in_several_spellings(tmp_path: Path, text: str) -> None:
    a, _ = loaded(tmp_path, SHARED, sets=["a.primary=false", f"a.primary={text}"]).graph.roles
    assert a.primary


@pytest.mark.parametrize(
    ("text", "help"),
    [("a.gpu=x", "write gpu=1"), ("a.restart.max_restarts=x", "write max_restarts=1"), ("a.cpu=x", "write cpu=1")],
)
def test_help_about_a_number_shows_one_that_makes_sense(tmp_path: Path, text: str, help: str) -> None:
    assert refused(tmp_path, SHARED, sets=[text]).help == help


def test_words_on_the_command_line_are_split_at_commas(tmp_path: Path) -> None:
    a, _ = loaded(tmp_path, SHARED, sets=["a.ports=rpc, metrics,", "a.cpu=0.5", "a.gpu=0", "a.gang=NO"]).graph.roles
    assert a.ports == ("rpc", "metrics") and a.resources.cpu == 0.5 and not a.gang


# The nodes of the command line


def nodes_of(tmp_path: Path, declared: str, nodes: str) -> list[str]:
    text = HEAD + f't = Topology("x", nodes={declared})\nt.role("main", "true")\n'
    return [node.name for node in loaded(tmp_path, text, nodes=nodes).graph.cluster.nodes]


def test_fewer_nodes_are_the_first_of_those_declared(tmp_path: Path) -> None:
    assert nodes_of(tmp_path, "[Node('a'), Node('b'), Node('c')]", "2") == ["a", "b"]


def test_a_node_that_is_added_takes_a_name_that_is_free(tmp_path: Path) -> None:
    assert nodes_of(tmp_path, "[Node('node1'), Node('node3')]", "4") == ["node1", "node3", "node2", "node4"]


@pytest.mark.parametrize("declared", ["2", "'1:3'", "None", "[Node('a', cpu=[1])]"])
def test_a_range_of_nodes_replaces_what_is_declared(tmp_path: Path, declared: str) -> None:
    assert nodes_of(tmp_path, declared, "1:2") == ["node0", "node1"]


@pytest.mark.parametrize(
    ("nodes", "code", "message"),
    [
        ("0", "FD105", "topology 'x': nodes=0 has a zero"),
        ("\u00b2", "FD104", "topology 'x': nodes='\u00b2' cannot be read"),
        ("2x2", "FD104", "topology 'x': nodes='2x2' cannot be read"),
        ("200000", "FD105", "topology 'x': nodes=200000 is more than 100,000"),
    ],
)
def test_nodes_that_make_no_sense_are_refused(tmp_path: Path, nodes: str, code: str, message: str) -> None:
    problem = refused(tmp_path, HEAD + 't = Topology("x", nodes=[Node()])\nt.role("a", "true")\n', nodes=nodes)
    assert (problem.code, problem.message, problem.place) == (code, message, load.CLI)


@pytest.mark.parametrize(
    ("declared", "code", "argument"), [("Node(cpu=[1]), Node(cpu=[1])", "FD134", "[1]"), ("Node(), 3", "FD134", "3")]
)
def test_wrong_nodes_are_a_problem_of_the_file_whatever_the_command_line_says(
    tmp_path: Path, declared: str, code: str, argument: str
) -> None:
    text = HEAD + f't = Topology("x", nodes=[{declared}])\nt.role("main", "true")\n'
    with pytest.raises(TopologyProblems) as caught:
        loaded(tmp_path, text, nodes="2")
    assert {(problem.code, underlined(problem)) for problem in caught.value.problems} == {(code, argument)}


def test_what_a_component_refuses_is_shown_where_it_was_called(tmp_path: Path) -> None:
    problem = refused(tmp_path, 'from flowdist.components import ddp\nt = ddp(m="json.tool", j="2:4")\n')
    assert (problem.code, problem.place.line) == ("FD153", 2)


def test_what_is_wrong_with_an_argument_of_a_component_is_shown_there(tmp_path: Path) -> None:
    problem = refused(tmp_path, 'from flowdist.components import ddp\nt = ddp(m="json.tool", cpu="x", max_retries=1)\n')
    assert (problem.code, underlined(problem)) == ("FD134", '"x"')
