"""Reading of `simulate=`: the user's model of a worker, which the simulator runs, recorded as `module:Class`.

A class that is given as text is looked for in the source of its module, which is not imported.
"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Collection
from pathlib import Path
from typing import Any

from flowdist.dsl.read.fields import Fields
from flowdist.dsl.read.functions import NOWHERE, Wanted, address_of, definition_of, required
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
        methods = [method for method in dir(value) if callable(getattr(value, method))]
        _check_methods(fields, value.__qualname__, methods, kind)
    return address


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
    if found is None or found.bases or found.decorator_list or found.keywords:
        return  # what it inherits, or a decorator returns, is known only when it runs
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    _check_methods(fields, found.name, methods, kind)
    arguments = required(methods["__init__"]) if "__init__" in methods else ["self"]
    if len(arguments) != 2:
        message = f"{found.name}() must take one argument without a default, the context"
        fields.error("FD149", "simulate", message, "write def __init__(self, ctx)")


def _check_methods(fields: Fields, name: str, methods: Collection[str], kind: str) -> None:
    """Add errors for required methods that a model lacks, and warnings for misspelled optional ones."""
    for method in METHODS[kind]:
        if method not in methods:
            message = f"{name} has no method {method}()"
            fields.error("FD149", "simulate", message, f"a model of a {kind} has {' and '.join(METHODS[kind])}")
    missing = [method for method in MORE[kind] if method not in methods]
    for method in methods:
        for meant in difflib.get_close_matches(method, missing, n=1, cutoff=ALIKE):
            message = f"{name}.{method}() is never called: a model of a {kind} has no such method"
            fields.warn("FD306", "simulate", message, f"did you mean {meant}()?")
