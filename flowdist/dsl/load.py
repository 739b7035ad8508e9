"""A topology file -> a role graph: `topology.py`, `file.py:name`, its parameters and overrides.

The file is executed in a module of its own, its folder first on the path. What it raises is reported with the user's
line, not with ours.
"""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from flowdist.dsl.compile import compile_topology
from flowdist.dsl.overrides import apply_nodes, apply_sets
from flowdist.dsl.places import CLI, Place
from flowdist.dsl.problems import Problem, Problems, TopologyProblems, did_you_mean
from flowdist.dsl.topology import Topology
from flowdist.graph import RoleGraph

DEFAULT_FILE = "topology.py"


class Loaded(NamedTuple):
    graph: RoleGraph
    warnings: tuple[Problem, ...]


def load_topology(
    target: str | None = None,
    params: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    nodes: str | None = None,
) -> Loaded:
    """Compile a topology file.

    Args:
        target: `file.py` or `file.py:name`; None: topology.py in the current folder.
        params: Arguments for a topology that is a function (`-p`).
        sets: `role.field=value` and `field=value` overrides (`--set`).
        nodes: Instead of the topology's own `nodes=` (`--nodes`).

    Raises:
        TopologyProblems: with every problem found.
    """
    file, _, name = (target or DEFAULT_FILE).partition(":")
    path = Path(file)
    if not path.is_file():
        help = "name a topology file, or make a topology.py in the current folder"
        _refuse("FD140", f"no topology file {file!r}", help)
    if not name:
        _refuse_script(path)
    module = _execute(path.resolve())
    return compile_loaded(_pick(module, name, path, dict(params or {})), sets, nodes)


def compile_loaded(topology: Topology, sets: Sequence[str] = (), nodes: str | None = None) -> Loaded:
    """Compile a topology that is there already, with the overrides of the command line."""
    problems = Problems()
    apply_sets(topology, sets, problems)
    if nodes is not None:
        apply_nodes(topology, nodes, problems, f"--nodes {nodes}")
    graph = compile_topology(topology, problems)
    problems.raise_errors()
    return Loaded(graph, tuple(problems.sorted()))


def looks_like_topology(path: str | Path) -> bool:
    """Whether a file declares a topology, judged by its text: it is not imported."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
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
    """Whether anything of flowdist is imported but what workers use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "flowdist" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flowdist":
            only_worker = node.module == "flowdist" and all(alias.name == "worker" for alias in node.names)
            if not only_worker and node.module != "flowdist.worker":
                return True
    return False


def _refuse_script(path: Path) -> None:
    """A training script is not executed to look for a topology in it: who knows what it would do."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return  # executing it says what is wrong
    if not _imports_the_dsl(tree):
        help = f"run a script with: flowdist run {path}; name an object that another module makes: {path}:NAME"
        _refuse("FD140", f"{path} has no topology: it does not import flowdist", help)


def _refuse(code: str, message: str, help: str, place: Place = CLI) -> None:
    raise TopologyProblems([Problem(code, message, help, place)])


def _execute(path: Path) -> ModuleType:
    module = ModuleType("flowdist_topology")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.parent))
    try:
        code = compile(path.read_bytes(), str(path), "exec")
        exec(code, module.__dict__)
    except SyntaxError as error:
        place = Place(
            str(path), error.lineno or 1, error.offset or 1, (error.end_offset or 0) or (error.offset or 1) + 1
        )
        _refuse("FD141", f"the file is no Python: {error.msg}", "correct the syntax", place)
    except Exception as error:
        _refuse_exception(path, error)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _refuse_exception(path: Path, error: Exception) -> None:
    """The last line of the user's file that was on the way to the exception."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = Place(str(path), 1)
    if frames:
        last = frames[-1]
        place = Place(str(path), last.lineno or 1, (last.colno or 0) + 1, (last.end_colno or 0) + 1)
    text = f"{type(error).__name__}: {error}"
    help = "correct the line; the file is executed to find its topology"
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        word = str(error).rsplit("'", 2)[-2]
        text = f"argument {word!r} is unknown"
        help = did_you_mean(word, _arguments(str(error)))
        _refuse("FD132", text, help, place)
    _refuse("FD141", text, help, place)


def _arguments(message: str) -> list[str]:
    """The arguments of the callable that a TypeError speaks of."""
    from flowdist import dsl

    name = message.split("(")[0]
    owner: Any = dsl
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return [arg for arg in inspect.signature(owner).parameters if arg != "self"] if owner is not None else []


def _pick(module: ModuleType, name: str, path: Path, params: dict[str, str]) -> Topology:
    """The one Topology, or what the function `topology` returns for the parameters."""
    found: Any
    if name:
        found = getattr(module, name, None)
        if found is None:
            known = [key for key, value in vars(module).items() if isinstance(value, Topology)]
            _refuse("FD140", f"{path} has no {name!r}", did_you_mean(name, known))
    else:
        function = vars(module).get("topology")
        values = [value for value in vars(module).values() if isinstance(value, Topology)]
        found = function if inspect.isfunction(function) else None
        unique = list({id(value): value for value in values}.values())
        if found is None and len(unique) > 1:
            names = ", ".join(f"{path}:{key}" for key, value in vars(module).items() if isinstance(value, Topology))
            _refuse("FD140", f"{path} has several topologies", f"name one of {names}")
        if found is None and not unique:
            help = 'write t = Topology("name") or def topology() -> Topology'
            _refuse("FD140", f"{path} has no topology", help)
        found = found or unique[0]
    if inspect.isfunction(found):
        found = _call(found, path, params)
    elif params:
        help = "parameters need a function: def topology(trainers: str = '2:4') -> Topology"
        _refuse("FD133", f"-p {next(iter(params))}: the topology takes no parameters", help)
    if not isinstance(found, Topology):
        _refuse("FD140", f"{path}: {name or 'topology'} is no Topology", "return the Topology from the function")
    return found  # type: ignore[no-any-return]


def _call(function: Any, path: Path, params: dict[str, str]) -> Any:
    signature = inspect.signature(function)
    values: dict[str, Any] = {}
    for key, text in params.items():
        if key not in signature.parameters:
            _refuse("FD133", f"-p {key}: no such parameter", did_you_mean(key, signature.parameters))
        values[key] = _convert(key, text, signature.parameters[key].annotation)
    for key, parameter in signature.parameters.items():
        if parameter.default is parameter.empty and key not in values:
            _refuse("FD133", f"parameter {key!r} has no value", f"write -p {key}=...")
    try:
        return function(**values)
    except TopologyProblems:
        raise
    except Exception as error:
        return _refuse_exception(path, error)


def _convert(key: str, text: str, annotation: Any) -> Any:
    kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "str")
    try:
        if kind in ("int", "float"):
            return {"int": int, "float": float}[kind](text)
        if kind == "bool":
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
    except (ValueError, KeyError):
        _refuse("FD134", f"-p {key}={text}: not of type {kind}", f"write -p {key}= with a value of type {kind}")
    return text
