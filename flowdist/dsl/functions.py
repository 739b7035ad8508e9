"""`run=`: a function as the command of a role. It is recorded as `module:function`, and never called here.

A function that is given as text is looked for in the source of its module, without importing it.
"""

from __future__ import annotations

import ast
import inspect
import symtable
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from flowdist.dsl.fields import Fields
from flowdist.dsl.problems import did_you_mean

HELP = 'write run="module:function", or a function that a module defines at its top'
NO_NAMES = ("flowdist_topology", "__main__")  # modules that have another name in a worker: their file is recorded


def function_of(fields: Fields, folder: Path) -> str:
    """`module:function`, or `/path/file.py:function` for one of the topology file itself."""
    value: Any = fields.values["run"]
    if isinstance(value, str):
        _check_text(fields, value, folder)
        return value
    name = getattr(value, "__qualname__", "")
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if not inspect.isfunction(value) or getattr(module, name, None) is not value:
        fields.error("FD147", "run", f"{name or repr(value)} is no function that workers can import", HELP)
        return "nothing:nothing"
    _check_arguments(fields, name, _wanted(value))
    if inspect.iscoroutinefunction(value) or inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value):
        _refuse_suspended(fields, name)
    if value.__module__ not in NO_NAMES:
        return f"{value.__module__}:{name}"
    file = getattr(module, "__file__", None)
    if file is None:
        fields.error("FD147", "run", f"{name}() is in no file that workers can import", HELP)
    return f"{file}:{name}"


def _wanted(function: Any) -> list[str]:
    """The arguments that it cannot be called without."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in variadic]


def _check_text(fields: Fields, text: str, folder: Path) -> None:
    module, colon, name = text.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        start, dot, last = text.rpartition(".")
        help = f'did you mean "{start}:{last}"?' if dot and not colon and text.replace(".", "").isidentifier() else HELP
        fields.error("FD147", "run", f"run={text!r} cannot be read", help)
        return
    if module in sys.builtin_module_names:
        return
    spec = _spec_of(module, folder)
    if spec is None:
        near = did_you_mean(module, sorted(path.stem for path in folder.glob("*.py")))
        help = near if "mean" in near else "check its spelling, or install it"
        fields.error("FD109", "run", f"module {module!r} is not found", help)
    elif spec.origin is None:
        fields.error("FD109", "run", f"{module!r} is a folder without code", f'write "{module}.MODULE:{name}"')
    elif spec.origin.endswith(".py") and Path(spec.origin).is_file():  # of others nothing can be read
        _check_source(fields, module, name, Path(spec.origin))


def _check_source(fields: Fields, module: str, name: str, source: Path) -> None:
    try:
        text = source.read_bytes()
        tree = ast.parse(text)
        table = symtable.symtable(text.decode(errors="replace"), source.name, "exec")
    except (SyntaxError, ValueError, OSError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        fields.error("FD147", "run", f"{source} cannot be read: {getattr(error, 'msg', error)}{where}", "correct it")
        return
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if name not in functions:
        if not _may_have(tree, table, name):
            fields.error("FD109", "run", f"module {module!r} has no function {name!r}", did_you_mean(name, functions))
        return
    if functions[name].decorator_list:
        return  # what is called is what the decorator returns
    if isinstance(functions[name], ast.AsyncFunctionDef):
        _refuse_suspended(fields, name)
    arguments = functions[name].args
    positional = [*arguments.posonlyargs, *arguments.args]
    wanted = [argument.arg for argument in positional[: len(positional) - len(arguments.defaults)]]
    wanted += [a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    _check_arguments(fields, name, wanted)


def _check_arguments(fields: Fields, name: str, wanted: list[str]) -> None:
    if wanted:
        help = "give them defaults, or read what they are for from flowdist.worker and the environment"
        fields.error("FD147", "run", f"{name}() wants arguments: {', '.join(wanted)}", help)


def _refuse_suspended(fields: Fields, name: str) -> None:
    """Calling it does nothing yet."""
    help = f"write a plain function that runs it: asyncio.run({name}())"
    fields.error("FD147", "run", f"{name}() is a coroutine or a generator: called alone, it does nothing", help)


def _may_have(tree: ast.Module, table: symtable.SymbolTable, name: str) -> bool:
    """Whether the module may get the name in another way than by a plain function: that is seen when it runs."""
    bound = [symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()]
    if name in bound or "__getattr__" in bound:
        return True
    return any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))


def _spec_of(module: str, folder: Path) -> ModuleSpec | None:
    """Found by files alone: importlib.util.find_spec would import what stands before the last dot."""
    paths: list[str] | None = [str(folder), *sys.path]
    spec = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, paths)
        if spec is None:
            return None
        paths = list(spec.submodule_search_locations or [])
    return spec
