"""Reading of `preload=`: the modules that are imported before a role's workers are forked.

If the role's code imports torch, torch is one of them. If the code trains as well, `torch._dynamo` is another one: DDP
and every optimizer import its 800 modules when they are made, which takes a worker seconds. The code is read, never
run: the script, and the files that it imports from its own folder.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from flowdist.dsl.read.commands import has_module
from flowdist.dsl.read.fields import Fields
from flowdist.dsl.read.functions import specs_of
from flowdist.dsl.topology import WAYS
from flowdist.graph import RoleSpec
from flowdist.graph.warmth import READ_BY_DYNAMO, PythonCommand, cold_because, python_command

FILES_MAX = 300  # most files that are read for one role
TRAINING_FILES_MAX = 50  # the same, to find out whether a program that imports torch trains
BRING_TORCH = ("accelerate", "deepspeed", "lightning", "pytorch_lightning")  # and modules whose names begin with torch
TRAINING = frozenset(
    {"optim", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "Trainer", "Accelerator"}
)
DYNAMO = "torch._dynamo"
CALL = "flowdist.worker.call"


def read_preload(fields: Fields, command: tuple[str, ...], workdir: Path) -> tuple[str, ...]:
    """Return the modules in the role's `preload=`, and torch if its program imports torch; add errors for unknown ones.

    Without `preload=`, `torch._dynamo` follows torch if the program trains.

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
        return names
    brings_torch, trains = _use_of_torch(python, folder)
    if not brings_torch:
        return names
    return (*names, "torch", DYNAMO) if trains and not names and has_module(DYNAMO, folder) else (*names, "torch")


def warn_if_cold(fields: Fields, spec: RoleSpec) -> None:
    """Add a warning if the role has `preload=` or `warm=True`, but its workers cannot be forked (FD305)."""
    asked = "preload" if fields.values["preload"] else "warm" if fields.values["warm"] else ""
    if asked and not fields.is_wrong(*WAYS) and (why := cold_because(spec, sys.executable, sys.executable)):
        help = "leave it out, or see 'Warm workers' in docs/run.md"
        fields.warn("FD305", asked, f"{asked}= has no effect, because workers start cold: {why}", help)


def _use_of_torch(python: PythonCommand, folder: Path) -> tuple[bool, bool]:
    """Return whether the program imports torch, and whether it trains, as the source of its files shows it.

    A program trains if it names an optimizer or a class that wraps models, and no variable that `torch._dynamo` reads
    when it is imported. One with too many files counts as one that does not train.
    """
    todo = [file for file in [_first_file(python, folder)] if file is not None]
    seen = set(todo)
    brings_torch = trains = sets_up_dynamo = False
    while todo and not (brings_torch and (sets_up_dynamo or len(seen) > TRAINING_FILES_MAX)):
        file = todo.pop()
        tree = _parsed(file)
        imported = _imported(tree, file, folder)
        tops = {name.partition(".")[0] for name in imported}
        brings_torch = brings_torch or any(top.startswith("torch") or top in BRING_TORCH for top in tops)
        trains = trains or not TRAINING.isdisjoint(_names(tree, imported))
        sets_up_dynamo = sets_up_dynamo or _sets_up_dynamo(tree)
        for name in imported:
            for found in _local_files(name, folder):
                if found not in seen and len(seen) < FILES_MAX:
                    seen.add(found)
                    todo.append(found)
    return brings_torch, trains and not todo and not sets_up_dynamo


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
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return ast.Module([], [])


def _sets_up_dynamo(tree: ast.AST) -> bool:
    """Return whether the code names, and so may set, a variable that `torch._dynamo` reads when it is imported."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return any(text.startswith(READ_BY_DYNAMO) for text in texts)


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
