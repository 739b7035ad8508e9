"""Reading of `run=` and `simulate=`: a function or a class that another process imports, recorded by its address.

`run=` is a function as the command of a role, `simulate=` the user's model of a worker. What is given as text,
`module:name`, is looked for in the source of its module, which is not imported. Nothing is called here.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
import symtable
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.dsl.frozen import VARIADIC
from flowdist.dsl.problems.places import no_warnings, parse
from flowdist.dsl.problems.problem import did_you_mean
from flowdist.dsl.read.fields import Fields
from flowdist.graph import RoleSpec

NOWHERE = "nothing:nothing"  # the address of an object that was refused
NO_NAMES = ("flowdist_topology", "__main__")  # workers cannot import these modules by name: their file is recorded
LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
METHODS = {"task": ("restore", "step"), "service": ()}  # required methods of a model, by kind of role
MORE: dict[str, tuple[str, ...]] = {  # optional methods
    "task": ("combine", "checkpoint", "publish", "committed", "state"),
    "service": ("restore", "checkpoint", "publish", "state"),
}
ALIKE = 0.85  # similarity from which a name is taken for a typing error: `checkpiont` is one, `stats` is not


class Wanted(NamedTuple):
    """Kind of object that an argument takes, and the words for errors."""

    argument: str
    code: str  # of the problem of an object of another kind
    what: str  # name of the kind in messages
    is_one: Callable[[object], bool]
    importer: str  # completes "an object that ..." in messages
    help: str
    nodes: tuple[type[ast.stmt], ...]  # types of the syntax nodes that define such an object


RUN_HELP = 'write run="module:function", or a function that a module defines at its top'
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTION = Wanted("run", "FD147", "function", inspect.isfunction, "workers can import", RUN_HELP, FUNCTIONS)
CLASS_HELP = 'write simulate="module:Class", or a class that a module defines at its top'
CLASS = Wanted("simulate", "FD149", "class", inspect.isclass, "can be imported", CLASS_HELP, (ast.ClassDef,))


def function_of(fields: Fields, folder: Path) -> str:
    """Return `run=` as `module:function` or `/path/file.py:function`; add errors for what workers cannot call."""
    value: Any = fields.values["run"]
    if isinstance(value, str):
        function = _definition_of(fields, FUNCTION, value, folder)
        if function is not None and not function.decorator_list:  # a decorator may return something else
            is_lazy = isinstance(function, ast.AsyncFunctionDef)
            _check_function(fields, function.name, _required(function), is_lazy=is_lazy)
        return value
    address = _address_of(fields, FUNCTION, value)
    if address != NOWHERE:
        parameters = inspect.signature(value, follow_wrapped=False).parameters.values()
        wanted = [each.name for each in parameters if each.default is each.empty and each.kind not in VARIADIC]
        is_lazy = any(is_lazy(value) for is_lazy in LAZY)
        _check_function(fields, value.__qualname__, wanted, is_lazy=is_lazy)
    return address


def _check_function(fields: Fields, name: str, wanted: list[str], *, is_lazy: bool) -> None:
    """Add errors for arguments without defaults, and for a coroutine or generator: a call alone runs no body of it."""
    if wanted:
        help = "give them defaults, or read their values from flowdist.worker and the environment"
        fields.error("FD147", "run", f"{name}() has arguments without defaults: {', '.join(wanted)}", help)
    if is_lazy:
        message = f"{name}() is a coroutine or a generator, which does nothing when it is called"
        fields.error("FD147", "run", message, f"write a plain function that runs it: asyncio.run({name}())")


def model_of(fields: Fields, folder: Path, kind: str) -> str:
    """Return `simulate=` as `module:Class` or `/path/file.py:Class`, "" for None; add errors for unusable classes."""
    value: Any = fields.values["simulate"]
    if value is None:
        return ""
    if isinstance(value, str):
        _check_class(fields, value, folder, kind)
        return value
    address = _address_of(fields, CLASS, value)
    if address != NOWHERE:
        places = {method: place_of_method(value, method) for method in methods_of(value)}
        methods = {method: f"{Path(file).name}:{line}" if file else "" for method, (file, line) in places.items()}
        _check_methods(fields, value.__qualname__, methods, kind)
    return address


def check_model(fields: Fields, spec: RoleSpec) -> None:
    """Add an error for a model together with `rejoin_time=` of the workload: each generation makes a new model."""
    if spec.simulate and spec.workload.rejoin_ns is not None and not fields.is_wrong("simulate", "workload"):
        message = (
            "its model is created again in each generation, as by worker.run() in a real run, and restores its state: "
            "nothing stays in place, but rejoin_time= says so"
        )
        help = "leave out rejoin_time= of the workload; or leave out simulate=, to see what staying in place saves"
        fields.error("FD149", "simulate", message, help)


def _check_class(fields: Fields, text: str, folder: Path, kind: str) -> None:
    """Add errors for the class that the text `module:Class` names, as far as the source of its module shows them."""
    found = _definition_of(fields, CLASS, text, folder)
    module = text.partition(":")[0]
    methods = _parsed_methods(fields, found, module, folder) if found is not None else None
    if methods is None:
        return
    spec = spec_of(module, folder)
    file = Path(spec.origin).name if spec is not None and spec.origin else module
    _check_methods(fields, found.name, {name: f"{file}:{node.lineno}" for name, node in methods.items()}, kind)
    if len(_required(methods["__init__"]) if "__init__" in methods else ["self"]) != 2:
        message = f"{found.name}() must take one argument without a default, the context"
        fields.error("FD149", "simulate", message, "write def __init__(self, ctx)")


def _parsed_methods(
    fields: Fields, found: ast.ClassDef, module: str, folder: Path, below: frozenset[str] = frozenset()
) -> dict[str, ast.FunctionDef] | None:
    """Return the methods of a class by name, with those that it inherits from a base class of its own module.

    Return None if only a run shows the methods: after a decorator, with a metaclass, several bases, or another base.
    `below` has the names of the classes that inherit from this one: a name that returns means another class.
    """
    below |= {found.name}
    if found.decorator_list or found.keywords or len(found.bases) > 1:
        return None
    inherited: dict[str, ast.FunctionDef] | None = {}
    for base in found.bases:
        is_here = isinstance(base, ast.Name) and not hasattr(builtins, base.id) and base.id not in below
        parent = _definition_of(fields, CLASS, f"{module}:{ast.unparse(base)}", folder) if is_here else None
        inherited = _parsed_methods(fields, parent, module, folder, below) if parent is not None else None
    own = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    return inherited | own if inherited is not None else None


def methods_of(found: type) -> list[str]:
    """Return the names of all methods of a class, sorted; inherited ones are included."""
    return [method for method in dir(found) if callable(getattr(found, method, None))]


def place_of_method(found: type, method: str) -> tuple[str, int]:
    """Return file and line of the definition of a method of a class; ("", 0) if it is no Python function."""
    code = getattr(inspect.unwrap(getattr(found, method)), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)


def misspelt(methods: Iterable[str], kind: str) -> Iterator[tuple[str, str]]:
    """Yield the public ones of all methods of a model that almost have the name of a missing optional one, and that."""
    methods = list(methods)
    missing = [method for method in MORE[kind] if method not in methods]
    for method in methods:
        if not method.startswith("_"):
            for meant in difflib.get_close_matches(method, missing, n=1, cutoff=ALIKE):
                yield method, meant


def _check_methods(fields: Fields, name: str, methods: Mapping[str, str], kind: str) -> None:
    """Add errors for required methods that a model lacks, and warnings for misspelled ones; `methods` have places."""
    for method in METHODS[kind]:
        if method not in methods:
            message = f"{name} has no method {method}()"
            fields.error("FD149", "simulate", message, f"a model of a {kind} has {' and '.join(METHODS[kind])}")
    for method, meant in misspelt(methods, kind):
        where = f" ({methods[method]})" if methods[method] else ""
        message = f"{name}.{method}(){where} is never called: a model of a {kind} has no such method"
        fields.warn("FD306", "simulate", message, f"did you mean {meant}()?")


def _address_of(fields: Fields, wanted: Wanted, value: Any) -> str:
    """Return the address by which another process imports an object: `module:name`, or `/path/file.py:name`.

    The path is for objects of the topology file, which is no module to other processes. An object of the wrong kind, or
    one that its module does not have under its name, adds an error and returns NOWHERE.
    """
    name = getattr(value, "__qualname__", "")
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if not wanted.is_one(value) or getattr(module, name, None) is not value:
        message = f"{name or repr(value)} is no {wanted.what} that {wanted.importer}"
        fields.error(wanted.code, wanted.argument, message, wanted.help)
        return NOWHERE
    if value.__module__ not in NO_NAMES:
        return f"{value.__module__}:{name}"
    file = getattr(module, "__file__", None)
    if file is None:
        call = f"{name}()" if inspect.isfunction(value) else name
        fields.error(wanted.code, wanted.argument, f"{call} is in no file that {wanted.importer}", wanted.help)
    return f"{file}:{name}"


def _help(wanted: Wanted, text: str) -> str:
    """Return what to write instead of a text that is no `module:name`."""
    start, _, last = text.rpartition(".")
    if start and ":" not in text and text.replace(".", "").isidentifier():
        return f'did you mean "{start}:{last}"?'
    is_command = wanted is FUNCTION and " " in text.strip()
    return f"{wanted.help}; a command line is written as command={text!r}" if is_command else wanted.help


def _definition_of(fields: Fields, wanted: Wanted, text: str, folder: Path) -> Any:
    """Return the syntax node that defines `module:name`, from the source of the module.

    A module or name that does not exist adds an error. None is returned then, if the module has no source, and if it
    gets the name by an import or an assignment.
    """
    module, _, name = text.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        fields.error(wanted.code, wanted.argument, f"{wanted.argument}={text!r} cannot be read", _help(wanted, text))
        return None
    if module in sys.builtin_module_names:
        return None
    spec = spec_of(module, folder)
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin)
        return _in_file(fields, wanted, module, name, path) if path.suffix == ".py" and path.is_file() else None
    if spec is not None:
        message = f"{module!r} is a folder without code"
        fields.error("FD109", wanted.argument, message, f'write "{module}.MODULE:{name}"')
    elif module.partition(".")[0] in sys.stdlib_module_names and module in sys.modules:
        names = vars(sys.modules[module])  # without a file of its own, such as os.path
        if name not in names:
            known = [key for key, value in names.items() if inspect.isfunction(value)]
            message = f"module {module!r} has no {wanted.what} {name!r}"
            fields.error("FD109", wanted.argument, message, did_you_mean(name, known, otherwise="check its spelling"))
    else:
        beside = sorted(path.stem for path in folder.glob("*.py"))
        help = did_you_mean(module, beside, otherwise="check its spelling, or install it")
        fields.error("FD109", wanted.argument, f"module {module!r} is not found", help)
    return None


def _in_file(fields: Fields, wanted: Wanted, module: str, name: str, path: Path) -> Any:
    """Return the syntax node that defines the name in a file; None, mostly with an error, if there is none."""
    try:
        text = path.read_bytes()
        tree = parse(text)
        with no_warnings():
            table = symtable.symtable(text.decode(errors="replace"), path.name, "exec")
    except (SyntaxError, ValueError, OSError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        message = f"{path} cannot be read: {getattr(error, 'msg', error)}{where}"
        fields.error(wanted.code, wanted.argument, message, "correct it")
        return None
    known = {node.name: node for node in tree.body if isinstance(node, wanted.nodes)}  # type: ignore[attr-defined]
    if name not in known and not _may_have(tree, table, name):
        message = f"module {module!r} has no {wanted.what} {name!r}"
        fields.error("FD109", wanted.argument, message, did_you_mean(name, known))
    return known.get(name)


def _may_have(tree: ast.Module, table: symtable.SymbolTable, name: str) -> bool:
    """Return whether a module may get the name from an assignment, an import or `__getattr__`, not a definition."""
    bound = [symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()]
    if name in bound or "__getattr__" in bound:
        return True
    return any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))


def _required(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of the parameters of a parsed function that have no default, `self` included."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    wanted = positional[: len(positional) - len(arguments.defaults)]
    return [argument.arg for argument in (*wanted, *(each for each, default in named if default is None))]


def spec_of(module: str, folder: Path) -> ModuleSpec | None:
    """Find a module by its files in `folder` and sys.path: importlib.util.find_spec would import its packages."""
    spec, paths = None, [str(folder), *sys.path]
    for part in module.split("."):
        spec = PathFinder.find_spec(part, paths)
        if spec is None:
            return None
        paths = list(spec.submodule_search_locations or [])
    return spec
