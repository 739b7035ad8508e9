"""Loading of topology files: from `topology.py` or `file.py:name`, parameters and overrides to a role graph.

The file is executed as a module of its own, with its folder first in `sys.path`. An exception in the file is reported
as a problem at the user's line.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple, NoReturn

from flowdist.dsl.compile import compile_topology
from flowdist.dsl.frozen import VARIADIC
from flowdist.dsl.overrides import apply_nodes, apply_sets
from flowdist.dsl.problems.places import CLI, Place, no_warnings, parse, place_of_bytes
from flowdist.dsl.problems.problem import Problem, Problems, Recording, TopologyProblems, did_you_mean, recording
from flowdist.dsl.read.fields import FLAGS, Arguments
from flowdist.dsl.topology import Topology
from flowdist.graph import RoleGraph

DEFAULT_FILE = "topology.py"


class Loaded(NamedTuple):
    """A compiled topology without errors, the warnings about it in the order of the file, and where arguments stand."""

    graph: RoleGraph
    warnings: tuple[Problem, ...]
    arguments: Arguments


def load_topology(
    target: str | None = None,
    params: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    nodes: str | None = None,
    *,
    by_engine: bool = False,
) -> Loaded:
    """Execute a topology file and compile its topology.

    Args:
        target: `file.py` or `file.py:name`, relative to the current folder; None: `topology.py`. Without a name, the
            file's function `topology` counts, else its only `Topology`.
        params: Arguments for the function that returns the topology (`-p`), as text, which is converted to int, float
            or bool by the function's annotations.
        sets: Overrides, `role.field=value` or `field=value` (`--set`), which win over the file; the last one wins.
        nodes: Number of nodes, or a range such as "2:4", instead of the topology's own `nodes=` (`--nodes`).
        by_engine: True: an engine starts the nodes, as large as their replicas need (`--on`).

    Returns:
        The role graph and the warnings.

    Raises:
        TopologyProblems: The file cannot be read or executed, it has no topology, or the topology has errors. The
            exception has all problems that were found.
    """
    file, _, name = (target or DEFAULT_FILE).partition(":")
    path = Path(file)
    text = _read(path)
    if not name and _is_script(text):  # executing it could start a training
        help = f"run a script with: flowdist run {path}; name an object that another module makes: {path}:NAME"
        _refuse("FD140", f"{path} has no topology: it does not import flowdist", help)
    path = path.resolve()
    folder = str(path.parent)
    sys.path.insert(0, folder)
    problems = Problems()
    with recording(problems) as recorded:
        try:
            module = _execute(path, text)
            topology = _pick(module, name, Path(file), dict(params or {}))
        except TopologyProblems as error:
            _raise_all(error, recorded)
        finally:
            if folder in sys.path:  # the user's code may have removed it
                sys.path.remove(folder)
    return compile_loaded(topology, sets, nodes, problems, by_engine=by_engine)


def _raise_all(error: TopologyProblems, recorded: Recording) -> NoReturn:
    """Raise TopologyProblems with what ended the file, up to which line, and what is wrong in the part before."""
    problems = recorded.problems
    for problem in error.problems:
        problems.report(problem)
    for topology in recorded.topologies:
        compile_topology(topology, problems, is_complete=False)
    line = error.line if isinstance(error, _FileEnded) else 0
    where = f"in the topology; flowdist read the file up to line {line}" if line else "in the topology"
    raise TopologyProblems(problems.sorted(), where)


def compile_loaded(
    topology: Topology,
    sets: Sequence[str] = (),
    nodes: str | None = None,
    problems: Problems | None = None,
    *,
    by_engine: bool = False,
) -> Loaded:
    """Compile a topology object with overrides of the command line, which change the object.

    Args: as for `load_topology`. `problems` are those that the file had while it was executed; None: there was no file.
    Raises TopologyProblems for errors of the topology or an override, with all of them and the warnings.
    """
    problems = problems or Problems()
    apply_sets(topology, sets, problems)
    if nodes is not None:
        apply_nodes(topology, nodes, problems, f"--nodes {nodes}")
    graph = compile_topology(topology, problems, by_engine=by_engine)
    problems.raise_errors()
    return Loaded(graph, tuple(problems.sorted()), Arguments(topology))


def _read(path: Path) -> bytes:
    """Return the content of a file; raise TopologyProblems (FD140), which may name a similar file, if that fails."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ValueError):  # ValueError: the path has a null byte
        help = _similar_file(path, _may_be_topology)
        help = help or "name a topology file, or make a topology.py in the current folder"
        _refuse("FD140", f"no topology file {str(path)!r}", help)
    except OSError as error:
        _refuse("FD140", f"{path} cannot be read: {error.strerror}", "name a file that you may read")


def _similar_file(path: Path, is_meant: Callable[[Path], bool]) -> str:
    """Return a help line that names a file beside `path` with a similar name, for which `is_meant` is true."""
    beside = sorted(each.name for each in path.parent.glob("*.py")) if "\0" not in str(path) else []
    close = difflib.get_close_matches(path.name, beside, n=max(1, len(beside)))
    meant = next((path.with_name(name) for name in close if is_meant(path.with_name(name))), None)
    return f"did you mean {str(meant)!r}?" if meant is not None else ""


def _may_be_topology(path: Path) -> bool:
    try:
        return not _is_script(path.read_bytes())
    except OSError:
        return False


def check_runnable(path: Path, example: str = "run train.py --replicas 2") -> None:
    """Check that a topology or script exists (FD140) and is valid Python (FD141); else raise TopologyProblems.

    `example` is the command line, without `flowdist`, that is shown to somebody who has named no file.
    """
    try:
        text = path.read_bytes()
    except (FileNotFoundError, ValueError):  # as in `_read`
        help = _similar_file(path, lambda _: True) or f"name a topology, or a script: flowdist {example}"
        problem = Problem("FD140", f"no script or topology file {str(path)!r}", help, CLI)
        raise TopologyProblems([problem], "on the command line") from None
    except OSError:
        return  # `_read` reports it for a topology, and the workers for a script
    with no_warnings():
        try:
            _compile(path.resolve(), text)
        except TopologyProblems as error:
            raise TopologyProblems(error.problems, "in the file") from None


def looks_like_topology(path: str | Path) -> bool:
    """Return whether a file declares a topology, judged by its syntax tree: the file is not executed.

    Such a file imports flowdist (not only names of `flowdist.worker`), and either calls `Topology` or defines a
    function `topology`. False if the file cannot be read or parsed.
    """
    try:
        tree = parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    imports = _imports_the_dsl(tree)
    calls = any(
        isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Topology"
        for node in ast.walk(tree)
    )
    function = any(isinstance(node, ast.FunctionDef) and node.name == "topology" for node in tree.body)
    return imports and (calls or function)


def _imports_the_dsl(tree: ast.Module) -> bool:
    """Return whether the file imports anything of flowdist but `flowdist.worker`, which is for training scripts."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return any(parts[0] == "flowdist" and parts[1:2] != ["worker"] for parts in (name.split(".") for name in names))


def _is_script(text: bytes) -> bool:
    """Return whether a file does not import the DSL; False if it cannot be parsed: executing it reports the error."""
    try:
        return not _imports_the_dsl(parse(text))
    except (SyntaxError, ValueError):
        return False


def _refuse(code: str, message: str, help: str, place: Place = CLI) -> NoReturn:
    raise TopologyProblems([Problem(code, message, help, place)])


class _FileEnded(TopologyProblems):
    """Exception for a topology file that an exception of its own has ended, at `line`; 0 if no line is known."""

    def __init__(self, problem: Problem, line: int) -> None:
        super().__init__([problem])
        self.line = line


def _execute(path: Path, text: bytes) -> ModuleType:
    """Execute the file as the module `flowdist_topology`; raise its exceptions as TopologyProblems."""
    module = ModuleType("flowdist_topology")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    code = _compile(path, text)
    try:
        exec(code, module.__dict__)
    except TopologyProblems:  # a component, such as `ddp`, has found problems itself
        raise
    except (Exception, SystemExit) as error:
        _refuse_exception(path, error)
    return module


def _compile(path: Path, text: bytes) -> CodeType:
    """Compile the file's text; raise TopologyProblems (FD141) with the place of a syntax error."""
    try:
        return compile(text, str(path), "exec")
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte, before Python 3.12
        line, column, end = (getattr(error, name, 0) or 0 for name in ("lineno", "offset", "end_offset"))
        place = Place(str(path), max(line, 1), max(column, 1), max(end, column, 1) + (end <= column))
        message = f"the file is not valid Python: {getattr(error, 'msg', error)}"
        is_scenario = path.suffix == ".toml"
        help = "scenarios are read by flowdist simulate; name its topology" if is_scenario else "correct the syntax"
        _refuse("FD141", message, help, place)


def _refuse_exception(path: Path, error: BaseException) -> NoReturn:
    """Raise TopologyProblems for an exception of the file, at its last line there, with the name that was meant."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = Place(str(path), 1)
    if frames:
        last = frames[-1]
        line, column = last.lineno or 1, last.colno or 0
        place = place_of_bytes(str(path), line, column, last.end_lineno or line, last.end_colno or column + 1)
    help = "correct the line: flowdist executes the file to find its topology"
    wrong, known = _unknown_name(error)
    help = did_you_mean(wrong, known, otherwise=help)
    problem = Problem("FD141", f"{type(error).__name__}: {error}", help, place)
    # an exception in a function of the file, which an earlier line calls: the first frame is where reading stopped
    raise _FileEnded(problem, frames[0].lineno or 0 if frames else 0)


def _unknown_name(error: BaseException) -> tuple[str, Iterable[str]]:
    """Return the name that Python did not know, and the names that it knew in its place; empty for other errors."""
    if isinstance(error, NameError) and error.name and error.__traceback__ is not None:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        return error.name, [*frame.f_locals, *frame.f_globals, *vars(builtins)]
    if isinstance(error, AttributeError) and error.name:
        return error.name, _public(error.obj)
    if found := re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error)):
        return found[1], _public(sys.modules.get(found[2]))
    return "", ()


def _public(value: object) -> list[str]:
    """Return the names of an object or module that users may use, those that a module imports later included."""
    return [name for name in (*dir(value), *getattr(value, "__all__", ())) if not name.startswith("_")]


def _pick(module: ModuleType, name: str, path: Path, params: dict[str, str]) -> Topology:
    found = _named(module, name, path) if name else _only_one(module, path)
    if inspect.isfunction(found):
        found = _call(found, path, params)
    elif params:
        help = "parameters need a function: def topology(trainers: str = '2:4') -> Topology"
        _refuse("FD133", f"-p {next(iter(params))}: the topology takes no parameters", help)
    if not isinstance(found, Topology):
        _refuse("FD140", f"{path}: {name or 'topology'} is not a Topology", "return the Topology from the function")
    return found


def _named(module: ModuleType, name: str, path: Path) -> Any:
    found = getattr(module, name, None)
    if found is None:
        known = [key for key, value in vars(module).items() if isinstance(value, Topology) or key == "topology"]
        _refuse("FD140", f"{path} has no {name!r}", did_you_mean(name, known))
    return found


def _only_one(module: ModuleType, path: Path) -> Any:
    """Return the module's function `topology`, else its only Topology; raise TopologyProblems for none or several."""
    function = vars(module).get("topology")
    if inspect.isfunction(function):
        return function
    found = {key: value for key, value in vars(module).items() if isinstance(value, Topology)}
    if not found:
        _refuse("FD140", f"{path} has no topology", 'write t = Topology("name") or def topology() -> Topology')
    if len({id(value) for value in found.values()}) > 1:
        names = ", ".join(f"{path}:{key}" for key in found)
        _refuse("FD140", f"{path} has several topologies", f"name one of {names}")
    return next(iter(found.values()))


def _call(function: Any, path: Path, params: dict[str, str]) -> Any:
    """Call the user's function with the parameters, converted by its annotations, and return its result."""
    declared = inspect.signature(function).parameters
    known = {key: parameter for key, parameter in declared.items() if parameter.kind not in VARIADIC}
    any_name = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in declared.values())
    values: dict[str, Any] = {}
    for key, text in params.items():
        if key not in known and not any_name:
            _refuse("FD133", f"-p {key}: no such parameter", did_you_mean(key, known))
        values[key] = _convert(key, text, known[key].annotation if key in known else str)
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in values:
            _refuse("FD133", f"parameter {key!r} has no value", f"write -p {key}=...")
    try:
        return function(**values)
    except TopologyProblems:
        raise
    except (Exception, SystemExit) as error:
        return _refuse_exception(path.resolve(), error)


def _convert(key: str, text: str, annotation: Any) -> Any:
    """Convert the text of a parameter to the type of its annotation; raise TopologyProblems (FD134) if that fails."""
    kind = _kind(annotation)
    try:
        if kind in ("int", "float"):
            return {"int": int, "float": float}[kind](text)
        if kind == "bool":
            return FLAGS[text.lower()]
    except (ValueError, KeyError):
        _refuse("FD134", f"-p {key}={text}: not of type {kind}", f"write -p {key}= with a value of type {kind}")
    return text


def _kind(annotation: Any) -> str:
    """Return "int", "float" or "bool" for an annotation of that type or its Optional; "str" for all others."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    kinds = [word for word in re.findall(r"\w+", text) if word not in ("None", "Optional", "typing")]
    return kinds[0] if kinds in (["int"], ["float"], ["bool"]) else "str"
