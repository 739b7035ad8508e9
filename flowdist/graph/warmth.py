"""Warm starts: whether the workers of a role can be forked from a process that has imported their modules, or why not.

The answer follows from the role alone, before anything runs: the plan shows it, and agents use it. The fork server
checks what shows only in its own process, such as a thread that an import has left running.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flowdist.graph.roles import RoleSpec

NOTHING_TO_PRELOAD = "it has nothing to preload"
PLAIN_FLAGS = ("-u", "-B", "-O", "-OO")  # the fork server gets the same flags; others are not known to be safe
# Beginnings of the names of variables that are read when a process starts or a module is imported, as was observed:
# by the interpreter and libc, by the libraries of torch and numpy, by torch and what it imports, and by packages of
# Hugging Face. None of these reads CUDA_VISIBLE_DEVICES, NCCL_... or GLOO_... before its first use.
READ_AT_IMPORT = (
    *("PYTHON", "LD_", "MALLOC_", "LC_", "LANG", "TZ", "HOME", "TMP", "TEMP", "XDG_"),
    *(
        "OMP_",
        "GOMP_",
        "KMP_",
        "MKL_",
        "MKLDNN_",
        "ONEDNN_",
        "DNNL_",
        "OPENBLAS_",
        "GOTO_",
        "NPY_",
        "NUMPY_",
        "OPENSSL_",
    ),
    *("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCHEXPORT_", "AOT", "INDUCTOR_", "PT2_"),
    *("PYTORCH_", "KINETO_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "ACCELERATE_", "TQDM_", "FSSPEC_", "SYMPY_", "JOBLIB_", "LOKY_"),
)
_VARYING = re.compile(
    r"\$\{(replica|replica_index|rank|local_rank|world_size|attempt|generation|log_dir|self\.port:.*?|addresses:.*?)\}"
)


class PythonCommand(msgspec.Struct, frozen=True):
    """Parsed command line of a Python interpreter.

    `flags` are the interpreter's own. `target` is the path of a script, or with `is_module` the name of a module.
    `args` are the arguments after it.
    """

    flags: tuple[str, ...]
    target: str
    is_module: bool
    args: tuple[str, ...]


def python_command(argv: Sequence[str]) -> PythonCommand | str:
    """Parse a command line `python [FLAGS] SCRIPT.py|-m MODULE [ARGS]`, whose first word is the interpreter.

    Returns:
        The parts, or a text that names the part that a forked process cannot do the same way, such as a flag or `-c`.
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

    Args:
        python: Path of the interpreter that `python` in a command stands for.
        ours: Path of the interpreter that runs flowdist and the fork servers.
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
