"""`simulate=`: the classes that the simulator can run, and the problems of others."""

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

HEAD = 'from flowdist import Topology, Workload\nimport model\nt = Topology("x", nodes=1)\n'
MODEL = """
class Worker:
    def __init__(self, ctx, size=1, *, loud=False): pass
    def restore(self): return 0
    def step(self, step): pass
class Child(Worker): pass
class NoStep:
    def __init__(self, ctx): pass
    def restore(self): return 0
class NoContext:
    def restore(self): return 0
    def step(self, step): pass
class TooMuch:
    def __init__(self, ctx, size): pass
    def restore(self): return 0
    def step(self, step): pass
class Server:
    def __init__(self, ctx): pass
class Misspelt:
    def __init__(self, ctx): pass
    def restore(self): return 0
    def step(self, step): pass
    def checkpiont(self, step): pass
    def stats(self): pass
class OfBase(Worker):
    def publsh(self, step): pass
    def _publish(self, step): pass
Alias = Worker
def function(): pass
class Outer:
    class Inner: pass
"""


@pytest.fixture(autouse=True)
def forget_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the module `model`, which each test has in its own folder."""
    monkeypatch.delitem(sys.modules, "model", raising=False)


def recorded(tmp_path: Path, value: str, before: str = "", more: str = "") -> str:
    (tmp_path / "model.py").write_text(MODEL)
    text = HEAD + before + f't.role("a", "true", simulate={value}{more})'
    text += '\nt.role("z", "true")'  # a job of services alone can never end
    return loaded(tmp_path, text).graph.roles[0].simulate


def problem_of(tmp_path: Path, value: str) -> Problem:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "broken.py").write_text("class Worker(:")
    return refused(tmp_path, HEAD + f't.role("a", "true", simulate={value})')


@pytest.mark.parametrize("value", ["'model:Worker'", "'model:Child'", "'model:Alias'", "model.Worker", "model.Child"])
def test_a_class_of_a_module_next_to_it_is_recorded_by_its_name(tmp_path: Path, value: str) -> None:
    name = value.strip("'").replace(".", ":")
    assert recorded(tmp_path, value) == name


def test_a_role_without_a_model_has_none(tmp_path: Path) -> None:
    assert recorded(tmp_path, "None") == ""


def test_a_service_needs_no_method_of_its_own(tmp_path: Path) -> None:
    assert recorded(tmp_path, "'model:Server'", more=", kind='service'") == "model:Server"
    assert recorded(tmp_path, "model.Server", more=", kind='service'") == "model:Server"


def test_a_name_in_a_module_that_cannot_be_read_is_believed(tmp_path: Path) -> None:
    assert recorded(tmp_path, "'sys:Worker'") == "sys:Worker"


def test_a_class_of_the_topology_file_is_recorded_with_the_file(tmp_path: Path) -> None:
    before = "class Own:\n def __init__(self, ctx): pass\n def restore(self): pass\n def step(self, step): pass\n"
    assert recorded(tmp_path, "Own", before=before) == f"{tmp_path / 'topology.py'}:Own"


def test_a_model_may_be_named_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "topology.py").write_text(HEAD + 't.role("a", "true")')
    graph = load_topology(str(tmp_path / "topology.py"), sets=["a.simulate=model:Worker"]).graph
    assert graph.roles[0].simulate == "model:Worker"


@pytest.mark.parametrize(
    ("value", "code", "message", "help"),
    [
        ("'model:Wroker'", "FD109", "module 'model' has no class 'Wroker'", 'did you mean "Worker"?'),
        ("'modle:Worker'", "FD109", "module 'modle' is not found", 'did you mean "model"?'),
        ("'model.Worker'", "FD149", "simulate='model.Worker' cannot be read", 'did you mean "model:Worker"?'),
        ("'model'", "FD149", "simulate='model' cannot be read", 'write simulate="module:Class"'),
        ("'broken:Worker'", "FD149", "broken.py cannot be read: invalid syntax, line 1", "correct it"),
        ("'model:NoStep'", "FD149", "NoStep has no method step()", "a model of a task has restore and step"),
        ("model.NoStep", "FD149", "NoStep has no method step()", "a model of a task has restore and step"),
        (
            "'model:NoContext'",
            "FD149",
            "NoContext() must take one argument without a default",
            "write def __init__(self, ctx)",
        ),
        (
            "'model:TooMuch'",
            "FD149",
            "TooMuch() must take one argument without a default",
            "write def __init__(self, ctx)",
        ),
        ("model.function", "FD149", "function is no class that can be imported", 'write simulate="module:Class"'),
        ("model.Outer.Inner", "FD149", "Outer.Inner is no class that can be imported", "at its top"),
        ("3", "FD149", "3 is no class that can be imported", "at its top"),
    ],
)
def test_what_cannot_be_simulated(tmp_path: Path, value: str, code: str, message: str, help: str) -> None:
    problem = problem_of(tmp_path, value)
    assert problem.code == code and message in problem.message and underlined(problem) == value
    assert help in problem.help


@pytest.mark.parametrize("value", ["model.Misspelt", "'model:Misspelt'"])
def test_a_method_with_nearly_the_name_of_one_that_is_called_is_told(tmp_path: Path, value: str) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    [warning] = loaded(tmp_path, HEAD + f't.role("a", "true", simulate={value})').warnings
    assert (warning.code, warning.severity) == ("FD306", "warning") and underlined(warning) == value
    assert warning.help == "did you mean checkpoint()?"
    line = MODEL.splitlines().index("    def checkpiont(self, step): pass") + 1
    assert f"Misspelt.checkpiont() (model.py:{line}) is never called" in warning.message


@pytest.mark.parametrize("value", ["model.OfBase", "'model:OfBase'"])
def test_a_misspelt_method_is_found_beside_inherited_methods(tmp_path: Path, value: str) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    [warning] = loaded(tmp_path, HEAD + f't.role("a", "true", simulate={value})').warnings
    assert "OfBase.publsh() (model.py:" in warning.message and warning.help == "did you mean publish()?"


@pytest.mark.parametrize(
    "source",
    [
        "from elsewhere import Base\nclass Child(Base):\n def publsh(self, step): pass\nclass Base(Child): pass",
        "from elsewhere import Base, Other\nclass Child(Base, Other):\n def publsh(self, step): pass",
        "from elsewhere import Meta\nclass Child(metaclass=Meta):\n def publsh(self, step): pass",
        "from elsewhere import decorate\n@decorate\nclass Child:\n def publsh(self, step): pass",
    ],
    ids=["base", "bases", "metaclass", "decorator"],
)
def test_a_class_whose_methods_only_a_run_shows_is_believed(tmp_path: Path, source: str) -> None:
    (tmp_path / "model.py").write_text(source)
    text = 'from flowdist import Topology\nt = Topology("x", nodes=1)\nt.role("a", "true", simulate="model:Child")'
    assert loaded(tmp_path, text).warnings == ()


def test_a_class_that_was_typed_into_a_session_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    exec("class Typed:\n def restore(self): pass\n def step(self, step): pass", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    topology, problems = Topology("x"), Problems()
    topology.role("a", "true", simulate=main.Typed)
    compile_topology(topology, problems)
    assert [problem.message for problem in problems.sorted()] == ["role 'a': Typed is in no file that can be imported"]


def test_workers_that_stay_over_generations_have_no_model(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "model.Worker, workload=Workload(rejoin_time='1s')")
    assert problem.code == "FD149" and underlined(problem) == "model.Worker"
    assert "created again in each generation, as by worker.run() in a real run" in problem.message
    assert problem.help.startswith("leave out rejoin_time= of the workload; or leave out simulate=")
