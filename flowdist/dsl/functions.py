"""`run=`: a function as the command of a role. It is recorded as `module:function`, and never called here.

A function that is given as text is looked for in the source of its module, without importing it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from flowdist.dsl.fields import Fields
from flowdist.dsl.problems import did_you_mean

HELP = 'write run="module:function", or a function that a module defines at its top'


def function_of(fields: Fields) -> str:
    """`module:function`, or `/path/file.py:function` for one of the topology file itself."""
    value = fields.values["run"]
    if isinstance(value, str):
        return _from_text(fields, value)
    name = getattr(value, "__qualname__", "")
    if not inspect.isfunction(value) or not name.isidentifier() or name == "<lambda>":
        fields.error("FD147", "run", f"{name or repr(value)} cannot be imported by the workers", HELP)
        return "nothing:nothing"
    wanted = [
        parameter.name
        for parameter in inspect.signature(value).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    _check_arguments(fields, name, wanted)
    module = sys.modules.get(value.__module__)
    is_imported = module is not None and module.__spec__ is not None  # unlike the topology file, which is executed
    if is_imported and getattr(module, name, None) is value:
        return f"{value.__module__}:{name}"
    return f"{Path(inspect.getsourcefile(value) or '').resolve()}:{name}"


def _from_text(fields: Fields, text: str) -> str:
    module, colon, name = text.partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        fields.error("FD147", "run", f"run={text!r} cannot be read", HELP)
        return "nothing:nothing"
    source = _source_of(module, fields.folder)
    if source is None:
        fields.error("FD109", "run", f"module {module!r} is not found", "check its spelling, or install it")
        return text
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError, OSError) as error:
        fields.error("FD147", "run", f"{source.name} cannot be read: {error}", "correct it")
        return text
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        if not _may_have(tree, name):
            fields.error("FD109", "run", f"module {module!r} has no function {name!r}", did_you_mean(name, functions))
        return text
    arguments = functions[name].args
    positional = [*arguments.posonlyargs, *arguments.args]
    wanted = [argument.arg for argument in positional[: len(positional) - len(arguments.defaults)]]
    wanted += [a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    _check_arguments(fields, name, wanted)
    return text


def _check_arguments(fields: Fields, name: str, wanted: list[str]) -> None:
    if wanted:
        help = "give them defaults, or read what they are for from flowdist.worker and the environment"
        fields.error("FD147", "run", f"{name}() wants arguments: {', '.join(wanted)}", help)


def _may_have(tree: ast.Module, name: str) -> bool:
    """Whether the module may get the name by an import or an assignment: that is seen when it runs."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if any(alias.name == "*" or (alias.asname or alias.name) == name for alias in node.names):
                return True
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return True
    return False


def _source_of(module: str, folder: str) -> Path | None:
    paths: list[str] | None = [folder, *sys.path]
    spec: Any = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, paths)
        if spec is None:
            return None
        paths = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec.origin else None
