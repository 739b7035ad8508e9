"""Reading of `preload=`: the modules that are imported before a role's workers are forked.

If the role's code imports torch, torch is one of them. The code also shows what a learned preload can begin with,
before anything is learned: DDP and every optimizer import the 800 modules of `torch._dynamo` when they are made, which
takes a worker seconds. The code is read, never run: the script, and the files that it imports from its own folder.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from flowdist.dsl.problems.syntax import parse
from flowdist.dsl.read.commands import has_module
from flowdist.dsl.read.fields import Fields
from flowdist.dsl.read.functions import specs_of
from flowdist.dsl.topology import WAYS
from flowdist.graph import RoleSpec
from flowdist.graph.roles import FirstImports
from flowdist.graph.warmth import PythonCommand, cold_because, python_command

FILES_MAX = 300  # most files that are read for one role
LEARNING_FILES_MAX = 50  # the same, for what the learned preload begins with
BRING_TORCH = ("accelerate", "deepspeed", "lightning", "pytorch_lightning")  # and modules whose names begin with torch
# Modules that a program imports by its first step, as was observed, if its source has all the names beside them.
IMPORTED_WITH = (
    *(("torch._dynamo", {name}) for name in ("optim", "DistributedDataParallel", "FullyShardedDataParallel")),
    *(("torch._dynamo", {name}) for name in ("fully_shard", "Trainer", "Accelerator")),
    ("accelerate", {"accelerate"}),
    ("transformers.trainer", {"transformers", "Trainer"}),
    ("lightning.pytorch", {"lightning"}),
    ("pytorch_lightning", {"pytorch_lightning"}),
)
CALL = "flowdist.worker.call"
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")  # what environment variables of programs look like


def read_preload(fields: Fields, command: tuple[str, ...], workdir: Path) -> tuple[tuple[str, ...], FirstImports]:
    """Return the modules in the role's `preload=`, and torch if its program imports torch; add errors for unknown ones.

    The second value is what the learned preload begins with; it is empty with `preload=`.

    Args:
        command: Command of the role.
        workdir: Folder in which its workers run.
    """
    python = python_command(command)
    folder = workdir
    if isinstance(python, PythonCommand) and not python.is_module:
        folder = (workdir / python.target).parent
    names = fields.words("preload")
    for i, name in enumerate(names):
        if not has_module(name, folder):
            is_text = isinstance(fields.values["preload"], str)
            place = fields.place("preload") if is_text else fields.element("preload", i)
            help = "check its spelling, or install it"
            fields.error("FD109", "preload", f"module {name!r} is not found", help, place)
    if "torch" in names or not isinstance(python, PythonCommand) or not has_module("torch", folder):
        return names, FirstImports()
    brings_torch, first = _use_of_torch(python, folder)
    if not brings_torch:
        return names, FirstImports()
    return (*names, "torch"), FirstImports() if names else first


def warn_if_cold(fields: Fields, spec: RoleSpec) -> None:
    """Add a warning if the role has `preload=` or `warm=True`, but its workers cannot be forked (FD305)."""
    asked = "preload" if fields.values["preload"] else "warm" if fields.values["warm"] else ""
    if asked and not fields.is_wrong(*WAYS) and (why := cold_because(spec, sys.executable, sys.executable)):
        help = "leave it out, or see docs/warm_starts.md"
        fields.warn("FD305", asked, f"{asked}= has no effect, because workers start cold: {why}", help)


def _use_of_torch(python: PythonCommand, folder: Path) -> tuple[bool, FirstImports]:
    """Return whether the program imports torch, and what it imports by its first step, as its source shows it.

    The second value is empty for a program of too many files.
    """
    todo = [file for file in [_first_file(python, folder)] if file is not None]
    seen = set(todo)
    brings_torch = False
    known, variables = set[str](), set[str]()
    while todo and not (brings_torch and len(seen) > LEARNING_FILES_MAX):
        file = todo.pop()
        tree = _parsed(file)
        imported = _imported(tree, file, folder)
        tops = {name.partition(".")[0] for name in imported}
        brings_torch = brings_torch or any(top.startswith("torch") or top in BRING_TORCH for top in tops)
        known |= _names(tree, imported)
        variables |= _variables(tree)
        for name in imported:
            for found in _local_files(name, folder):
                if found not in seen and len(seen) < FILES_MAX:
                    seen.add(found)
                    todo.append(found)
    modules = dict.fromkeys(module for module, names in IMPORTED_WITH if names <= known and has_module(module, folder))
    return brings_torch, FirstImports(
        tuple(modules), tuple(sorted(variables))
    ) if modules and not todo else FirstImports()


def _first_file(python: PythonCommand, folder: Path) -> Path | None:
    """Return the file of the program: the script, the module's file, or that of `run=`; None if it is not found."""
    target = python.target
    if target == CALL and python.args:
        target = python.args[0].rpartition(":")[0]
    if target.endswith(".py"):
        return folder / Path(target).name if target == python.target else Path(target)
    return next(reversed([*_local_files(f"{target}.__main__", folder)]), None)


def _local_files(name: str, folder: Path) -> Iterator[Path]:
    """Return the files of `a`, `a.b` and `a.b.c` in the folder, for the module `a.b.c`."""
    origins = (spec.origin for spec in specs_of(name, [str(folder)]))
    return (Path(origin) for origin in origins if origin is not None and origin.endswith(".py"))


def _parsed(file: Path) -> ast.AST:
    """Return the syntax tree of a file; an empty one if the file cannot be read or parsed."""
    try:
        return parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return ast.Module([], [])


def _variables(tree: ast.AST) -> set[str]:
    """Return the environment variables that the code names, and so may set, other than those that it only reads."""
    nodes = list(ast.walk(tree))
    read = {id(name) for node in nodes for name in _read_by(node)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in read]
    texts += [node.arg for node in nodes if isinstance(node, ast.keyword)]
    return {text for text in texts if isinstance(text, str) and VARIABLE.fullmatch(text)}


def _read_by(node: ast.AST) -> list[ast.expr]:
    """Return the name in `environ[name]`, `environ.get(name)`, `getenv(name)` or `name in environ`."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=name, ctx=ast.Load()):
            return [name]
        case ast.Call(func=ast.Attribute(attr="getenv"), args=[name, *_]):
            return [name]
        case ast.Call(func=ast.Attribute(attr="get", value=ast.Attribute(attr="environ")), args=[name, *_]):
            return [name]
        case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()], comparators=[ast.Attribute(attr="environ")]):
            return [name]
    return []


def _names(tree: ast.AST, imported: Iterable[str]) -> set[str]:
    """Return the names of attributes in the code, and all parts of the dotted names that it imports."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return attributes.union(*(name.split(".") for name in imported))


def _imported(tree: ast.AST, file: Path, folder: Path) -> list[str]:
    """Return the dotted names that the code of a file imports."""
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
