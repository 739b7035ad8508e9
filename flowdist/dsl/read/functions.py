"""Reading of `run=`: a function as the command of a role, recorded as `module:function` and never called here.

A function that is given as text is looked for in the source of its module, which is not imported.
"""

from __future__ import annotations

import ast
import inspect
import symtable
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.dsl.problems.problem import did_you_mean
from flowdist.dsl.problems.syntax import parse, symbols
from flowdist.dsl.read.fields import Fields

HELP = 'write run="module:function", or a function that a module defines at its top'
NOWHERE = "nothing:nothing"  # the address of an object that was refused
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
NO_NAMES = ("flowdist_topology", "__main__")  # workers cannot import these modules by name: their file is recorded


class Wanted(NamedTuple):
    """Kind of object that an argument takes (a function for `run=`, a class for `simulate=`), and the words for errors.

    Args:
        argument: Name of the argument.
        code: Problem code of an object of another kind.
        what: Name of the kind, for messages.
        is_one: Function that returns whether an object is of the kind.
        importer: Completes "an object that ..." in messages, such as "workers can import".
        help: Help line of errors.
        nodes: Types of the syntax nodes that define such an object.
    """

    argument: str
    code: str
    what: str
    is_one: Callable[[object], bool]
    importer: str  # such as "workers can import"
    help: str
    nodes: tuple[type[ast.stmt], ...]


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTION = Wanted("run", "FD147", "function", inspect.isfunction, "workers can import", HELP, DEFINITIONS)


def function_of(fields: Fields, folder: Path) -> str:
    """Return `run=` as `module:function`, or as `/path/file.py:function` if the topology file itself defines it.

    A function that cannot be imported, has arguments without defaults, or is a coroutine or generator adds an error.
    """
    value: Any = fields.values["run"]
    if isinstance(value, str):
        _check_text(fields, value, folder)
        return value
    address = address_of(fields, FUNCTION, value)
    if address != NOWHERE:
        name = value.__qualname__
        _check_arguments(fields, name, _wanted(value))
        if any(is_lazy(value) for is_lazy in LAZY):
            _refuse_lazy(fields, name)
    return address


def address_of(fields: Fields, wanted: Wanted, value: Any) -> str:
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


def _wanted(function: Any) -> list[str]:
    """Return the names of the function's parameters that have no default."""
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in VARIADIC]


def _check_text(fields: Fields, text: str, folder: Path) -> None:
    """Add errors for the function that `module:function` names, as far as the source of its module shows them."""
    function = definition_of(fields, FUNCTION, text, folder)
    if function is None or function.decorator_list:
        return  # a decorator may return something else
    if isinstance(function, ast.AsyncFunctionDef):
        _refuse_lazy(fields, function.name)
    _check_arguments(fields, function.name, required(function))


def definition_of(fields: Fields, wanted: Wanted, text: str, folder: Path) -> Any:
    """Return the syntax node that defines `module:name`, from the source of the module, which is not imported.

    A module or name that does not exist adds an error.

    Returns:
        None after an error, if the module has no source, or if it gets the name by an import or an assignment.
    """
    module, _, name = text.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        _refuse_text(fields, wanted, text)
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
        _check_made(fields, wanted, module, name)
    else:
        beside = sorted(path.stem for path in folder.glob("*.py"))
        help = did_you_mean(module, beside, otherwise="check its spelling, or install it")
        fields.error("FD109", wanted.argument, f"module {module!r} is not found", help)
    return None


def _refuse_text(fields: Fields, wanted: Wanted, text: str) -> None:
    """Add an error for a text that is no `module:name`; for `a.b.c` the help is to write `a.b:c`."""
    start, dot, last = text.rpartition(".")
    is_dotted = dot and ":" not in text and text.replace(".", "").isidentifier()
    help = f'did you mean "{start}:{last}"?' if is_dotted else wanted.help
    fields.error(wanted.code, wanted.argument, f"{wanted.argument}={text!r} cannot be read", help)


def _check_made(fields: Fields, wanted: Wanted, module: str, name: str) -> None:
    """Add an error if a loaded module without a file of its own, such as os.path, does not have the name."""
    names = vars(sys.modules[module])
    if name not in names:
        known = [key for key, value in names.items() if inspect.isfunction(value)]
        message = f"module {module!r} has no {wanted.what} {name!r}"
        fields.error("FD109", wanted.argument, message, did_you_mean(name, known, otherwise="check its spelling"))


def _in_file(fields: Fields, wanted: Wanted, module: str, name: str, path: Path) -> Any:
    """Return the syntax node that defines the name in a file; None if there is none.

    A file that cannot be parsed adds an error. So does a missing name, unless an import or an assignment may make it.
    """
    try:
        text = path.read_bytes()
        tree = parse(text)
        table = symbols(text.decode(errors="replace"), path.name)
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


def required(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of the parameters of a parsed function that have no default, `self` included."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    wanted = [argument.arg for argument in positional[: len(positional) - len(arguments.defaults)]]
    return wanted + [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]


def _check_arguments(fields: Fields, name: str, wanted: list[str]) -> None:
    if wanted:
        help = "give them defaults, or read their values from flowdist.worker and the environment"
        fields.error("FD147", "run", f"{name}() has arguments without defaults: {', '.join(wanted)}", help)


def _refuse_lazy(fields: Fields, name: str) -> None:
    """Add an error for a coroutine or generator function: a call alone does not run its body."""
    help = f"write a plain function that runs it: asyncio.run({name}())"
    fields.error("FD147", "run", f"{name}() is a coroutine or a generator, which does nothing when it is called", help)


def _may_have(tree: ast.Module, table: symtable.SymbolTable, name: str) -> bool:
    """Return whether a module may get the name from an assignment, an import or `__getattr__`, not a definition."""
    bound = [symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()]
    if name in bound or "__getattr__" in bound:
        return True
    return any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))


def spec_of(module: str, folder: Path) -> ModuleSpec | None:
    """Find a module by its files alone, in `folder` and sys.path: importlib.util.find_spec would import its packages.

    Returns:
        None if there is no such module.
    """
    found = list(specs_of(module, [str(folder), *sys.path]))
    return found[-1] if len(found) > module.count(".") else None


def specs_of(module: str, paths: list[str]) -> Iterator[ModuleSpec]:
    """Yield the specs of `a`, `a.b` and `a.b.c` for the module `a.b.c`, up to the first that does not exist."""
    for part in module.split("."):
        spec = PathFinder.find_spec(part, paths)
        if spec is None:
            return
        yield spec
        paths = list(spec.submodule_search_locations or [])
