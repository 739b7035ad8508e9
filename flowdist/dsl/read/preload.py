"""What is imported before a role's workers are forked: what `preload=` names, and torch where its code imports it.

The code is read, never run: the script, and what it imports from its own folder, one file after the other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from flowdist.dsl.read.commands import has_module
from flowdist.dsl.read.fields import Fields
from flowdist.graph import RoleSpec
from flowdist.graph.warmth import PythonCommand, cold_because, python_command

FILES_MAX = 300  # that are read for one role
BRING_TORCH = ("accelerate", "deepspeed", "lightning", "pytorch_lightning")  # and all whose name begins with torch
CALL = "flowdist.worker.call"


def read_preload(fields: Fields, command: tuple[str, ...], workdir: Path) -> tuple[str, ...]:
    """The modules, in order; each that cannot be found is a problem."""
    python = python_command(command)
    folder = workdir
    if isinstance(python, PythonCommand) and not python.is_module:
        folder = (workdir / python.target).parent
    names = fields.words("preload")
    for i, name in enumerate(names):
        if not has_module(name, folder):
            place = (
                fields.place("preload") if isinstance(fields.values["preload"], str) else fields.element("preload", i)
            )
            help = "check its spelling, or install it"
            fields.error_at(place, "FD109", f"module {name!r} is not found", help)
    if "torch" in names or not isinstance(python, PythonCommand) or not has_module("torch", folder):
        return names
    return (*names, "torch") if _brings_torch(python, folder) else names


def warn_if_cold(fields: Fields, spec: RoleSpec) -> None:
    """Whoever asks for warm workers is told that there will be none."""
    asked = "preload" if fields.values["preload"] else "warm" if fields.values["warm"] else ""
    if asked and (why := cold_because(spec, sys.executable, sys.executable)):
        help = "leave it out, or see 'Warm workers' in docs/run.md"
        fields.warn("FD305", asked, f"{asked}= has no effect, workers start cold: {why}", help)


def _brings_torch(python: PythonCommand, folder: Path) -> bool:
    """Whether the program imports torch, however deep in its own folder."""
    first = _first_file(python, folder)
    todo = [] if first is None else [first]
    seen = set(todo)
    while todo:
        file = todo.pop()
        for name in _imported(file, folder):
            top = name.partition(".")[0]
            if top.startswith("torch") or top in BRING_TORCH:
                return True
            for found in _local_files(name, folder):
                if found not in seen and len(seen) < FILES_MAX:
                    seen.add(found)
                    todo.append(found)
    return False


def _first_file(python: PythonCommand, folder: Path) -> Path | None:
    target = python.target
    if target == CALL and python.args:
        target = python.args[0].rpartition(":")[0]
    if target.endswith(".py"):
        return folder / Path(target).name if target == python.target else Path(target)
    return next(reversed([*_local_files(f"{target}.__main__", folder)]), None)


def _local_files(name: str, folder: Path) -> Iterator[Path]:
    """The files of `a`, `a.b` and `a.b.c`, as far as they are in the folder."""
    paths = [str(folder)]
    for part in name.split("."):
        spec = PathFinder.find_spec(part, paths)
        if spec is None:
            return
        if spec.origin is not None and spec.origin.endswith(".py"):
            yield Path(spec.origin)
        paths = list(spec.submodule_search_locations or [])


def _imported(file: Path, folder: Path) -> list[str]:
    """The dotted names that a file imports; nothing of a file that cannot be read."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level and file.is_relative_to(folder):
                above = file.relative_to(folder).parts[: -node.level]
                base = ".".join([*above, *filter(None, [node.module])])
            names += [f"{base}.{alias.name}".strip(".") for alias in node.names]
    return names
