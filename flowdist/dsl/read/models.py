"""Reading of `simulate=`: the user's model of a worker, which the simulator runs, recorded as `module:Class`.

A class that is given as text is looked for in the source of its module, which is not imported.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flowdist.dsl.read.fields import Fields
from flowdist.dsl.read.functions import NOWHERE, Wanted, address_of, definition_of, required, spec_of
from flowdist.graph import RoleSpec

HELP = 'write simulate="module:Class", or a class that a module defines at its top'
CLASS = Wanted("simulate", "FD149", "class", inspect.isclass, "can be imported", HELP, (ast.ClassDef,))
METHODS = {"task": ("restore", "step"), "service": ()}  # required methods, by kind of role
MORE: dict[str, tuple[str, ...]] = {  # optional methods
    "task": ("combine", "checkpoint", "publish", "committed", "state"),
    "service": ("restore", "checkpoint", "publish", "state"),
}
ALIKE = 0.85  # similarity from which a name is taken for a typing error: `checkpiont` is one, `stats` is not


def model_of(fields: Fields, folder: Path, kind: str) -> str:
    """Return `simulate=` as `module:Class`, or as `/path/file.py:Class` if the topology file itself defines the class.

    A class that cannot be imported, or lacks a method that models of the role's kind need, adds an error.

    Returns:
        An empty text if the argument is None.
    """
    value: Any = fields.values["simulate"]
    if value is None:
        return ""
    if isinstance(value, str):
        _check_text(fields, value, folder, kind)
        return value
    address = address_of(fields, CLASS, value)
    if address != NOWHERE:
        methods = {method: _place_text(value, method) for method in methods_of(value)}
        _check_methods(fields, value.__qualname__, methods, kind)
    return address


def methods_of(found: type) -> list[str]:
    """Return the names of all methods of a class, sorted; inherited ones are included."""
    return [method for method in dir(found) if callable(getattr(found, method, None))]


def check_model(fields: Fields, spec: RoleSpec) -> None:
    """Add an error for a model together with `rejoin_time=` of the workload: each generation makes a new model."""
    if spec.simulate and spec.workload.rejoin_ns is not None and not fields.is_wrong("simulate", "workload"):
        message = (
            "its model is created again in each generation, as by worker.run() in a real run, and restores its state: "
        )
        message += "nothing stays in place, but rejoin_time= says so"
        help = "leave out rejoin_time= of the workload; or leave out simulate=, to see what staying in place saves"
        fields.error("FD149", "simulate", message, help)


def _check_text(fields: Fields, text: str, folder: Path, kind: str) -> None:
    """Add errors for the class that the text `module:Class` names, as far as the source of its module shows them."""
    found = definition_of(fields, CLASS, text, folder)
    module = text.partition(":")[0]
    methods = _parsed_methods(fields, found, module, folder) if found is not None else None
    if methods is None:
        return
    spec = spec_of(module, folder)
    file = Path(spec.origin).name if spec is not None and spec.origin else module
    _check_methods(fields, found.name, {name: f"{file}:{node.lineno}" for name, node in methods.items()}, kind)
    arguments = required(methods["__init__"]) if "__init__" in methods else ["self"]
    if len(arguments) != 2:
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
        parent = definition_of(fields, CLASS, f"{module}:{ast.unparse(base)}", folder) if is_here else None
        inherited = _parsed_methods(fields, parent, module, folder, below) if parent is not None else None
    own = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    return inherited | own if inherited is not None else None


def place_of_method(found: type, method: str) -> tuple[str, int]:
    """Return file and line of the definition of a method of a class; ("", 0) if it is no Python function."""
    code = getattr(inspect.unwrap(getattr(found, method)), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)


def _place_text(found: type, method: str) -> str:
    file, line = place_of_method(found, method)
    return f"{Path(file).name}:{line}" if file else ""


def misspelt(methods: Iterable[str], kind: str) -> Iterator[tuple[str, str]]:
    """Yield the public methods that have almost the name of an optional method that is missing, each with that name.

    Args:
        methods: The names of all methods of a model.
        kind: The kind of its role, task or service.
    """
    methods = list(methods)
    missing = [method for method in MORE[kind] if method not in methods]
    for method in methods:
        if not method.startswith("_"):
            for meant in difflib.get_close_matches(method, missing, n=1, cutoff=ALIKE):
                yield method, meant


def _check_methods(fields: Fields, name: str, methods: Mapping[str, str], kind: str) -> None:
    """Add errors for required methods that a model lacks, and warnings for misspelled optional ones.

    `methods` has the place of each method, as `file:line`; an empty text if it is unknown.
    """
    for method in METHODS[kind]:
        if method not in methods:
            message = f"{name} has no method {method}()"
            fields.error("FD149", "simulate", message, f"a model of a {kind} has {' and '.join(METHODS[kind])}")
    for method, meant in misspelt(methods, kind):
        where = f" ({methods[method]})" if methods[method] else ""
        message = f"{name}.{method}(){where} is never called: a model of a {kind} has no such method"
        fields.warn("FD306", "simulate", message, f"did you mean {meant}()?")
