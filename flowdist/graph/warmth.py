"""Warm starts: whether the workers of a role can be forked from a prefix, or why they cannot, by the role alone.

The prefix checks what shows only in its own process, such as a thread that an import has left running.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flowdist.graph.role_graph import RoleSpec

PLAIN_FLAGS = ("-u", "-B", "-O", "-OO")  # others are not known to leave the hooks of a prefix in place
# Beginnings of the names of variables that compiled code reads when a process starts or a library is loaded: the
# interpreter and libc, and the libraries of torch and numpy. What Python code reads, a prefix sees.
READ_BY_LIBRARIES = (
    *("PYTHON", "LD_", "MALLOC_", "LC_", "LANG", "TZ"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "MKLDNN_", "ONEDNN_", "DNNL_", "OPENBLAS_", "GOTO_"),
    *("TORCH_", "PYTORCH_", "KINETO_"),
)
_VARYING = re.compile(
    r"\$\{(replica|replica_index|rank|local_rank|world_size|attempt|generation|log_dir|self\.port:.*?|addresses:.*?)\}"
)


class PythonCommand(msgspec.Struct, frozen=True):
    """Parsed command line of Python: its own `flags`, the script or module (`is_module`), and the arguments."""

    flags: tuple[str, ...]
    target: str
    is_module: bool
    args: tuple[str, ...]


def python_command(argv: Sequence[str]) -> PythonCommand | str:
    """Parse a command line `python [FLAGS] SCRIPT.py|-m MODULE [ARGS]`, whose first word is the interpreter.

    Return the parts, or a text that names the part that a forked process cannot do the same way, such as `-c`.
    """
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
    """Return whether a variable's value has a macro that can differ from one start of a worker to the next."""
    return _VARYING.search(value) is not None


def cold_because(spec: RoleSpec, python: str, ours: str) -> str:
    """Return why workers of the role cannot be forked, and are started by exec (cold); empty if they can be forked.

    `python` is the path that `python` in a command stands for, `ours` that of flowdist's own interpreter.
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
        if name.startswith(READ_BY_LIBRARIES) and varies(value):
            return f"{name} differs from worker to worker"
    return ""
