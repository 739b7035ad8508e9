"""Whether a role's workers can be forked from a process that has imported their modules already, or why not.

Told from the role alone, before anything runs: the plan shows it, and the agents go by it. What only shows in the
process itself, a thread that an import has left running for example, is for the fork server to see.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flowdist.graph.roles import RoleSpec

NOTHING_TO_PRELOAD = "it has nothing to preload"
PLAIN_FLAGS = ("-u", "-B", "-O", "-OO")  # the fork server gets the same; other flags change more than we know of
READ_AT_IMPORT = ("PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "MALLOC_", "LC_", "LANG")
_VARYING = re.compile(
    r"\$\{(replica|replica_index|rank|local_rank|world_size|attempt|generation|log_dir|self\.port:.*?|addresses:.*?)\}"
)


class PythonCommand(msgspec.Struct, frozen=True):
    """A command line of the interpreter, taken apart: it runs a script or, when `is_module`, a module."""

    flags: tuple[str, ...]
    target: str
    is_module: bool
    args: tuple[str, ...]


def python_command(argv: Sequence[str]) -> PythonCommand | str:
    """What an interpreter is told to do, or why that cannot be done by a process that runs already."""
    flags: list[str] = []
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if word in PLAIN_FLAGS:
            flags.append(word)
        elif word == "-W" and rest:
            flags += [word, rest.pop(0)]
        elif word == "-m" and rest:
            return PythonCommand(tuple(flags), rest[0], True, tuple(rest[1:]))
        elif word.startswith("-"):
            return f"python {word}"
        elif not word.endswith(".py"):
            return f"{word} is no .py file"
        else:
            return PythonCommand(tuple(flags), word, False, tuple(rest))
    return "python without a script"


def varies(value: str) -> bool:
    """Whether a value of `env=` has a macro that differs from start to start."""
    return _VARYING.search(value) is not None


def cold_because(spec: RoleSpec, python: str, ours: str) -> str:
    """Why workers of the role are started by exec; empty when they are forked from a fork server.

    Args:
        python: The interpreter that a command of `python` stands for.
        ours: The interpreter that runs flowdist, and so the fork servers.
    """
    if not spec.warm:
        return "warm=False"
    program = spec.command[0]
    if program not in ("python", "python3", ours):
        return f"{program} is not the Python that runs flowdist"
    if program != ours and python != ours:
        return f"PYTHON_EXEC is {python}"
    command = python_command(spec.command)
    if isinstance(command, str):
        return command
    for name, value in spec.env:
        if name.startswith(READ_AT_IMPORT) and varies(value):
            return f"{name} differs from worker to worker"
    if not spec.preload:
        return NOTHING_TO_PRELOAD
    return ""
