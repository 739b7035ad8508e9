"""Leftovers of imports in a process that its forks would share, or have alike, where new processes would not.

Workers that import a module themselves have locks, file positions, child processes and random numbers of their own.
Forked workers would share those of the fork server: one that is killed while it holds a lock would stop all others, and
two that read one file would each get a part of it.
"""

from __future__ import annotations

import fcntl
import os
import random
import stat
import sys
from pathlib import Path

SEED_MAX = 1 << 32  # torch chooses its own seed among 2**53 numbers; those that people choose are smaller


class Generators:
    """The global random number generators, as they are before the imports of a fork server."""

    def __init__(self) -> None:
        random.random()  # the first number of a new generator changes its key; the next 600 do not
        self._key = _key_of_random()

    def seeded(self) -> str:
        """Return the name of the module whose generator an import has seeded since; empty if none has.

        All workers that import such a module draw the same numbers, while forked ones are seeded anew.
        """
        if _key_of_random() != self._key:
            return "random"
        numpy, torch = sys.modules.get("numpy.random.mtrand"), sys.modules.get("torch.random")
        if numpy is not None and numpy._rand._bit_generator._seed_seq is None:  # numpy.random.seed was called
            return "numpy.random"
        return "torch" if torch is not None and torch.initial_seed() < SEED_MAX else ""


def _key_of_random() -> object:
    return random.getstate()[1][:-1]  # without the position in the numbers that the key has given


def shared_memory(maps: Path) -> str:
    """Return the path, or else the kind, of memory that a process can write and would share with its forks.

    The semaphores of multiprocessing's locks are such memory. The text is empty if there is none.

    Args:
        maps: The file `/proc/PID/maps` of the process.
    """
    for line in maps.read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) > 1 and fields[1].startswith("rw") and fields[1].endswith("s"):
            return fields[5] if len(fields) > 5 else "anonymous"
    return ""


def has_child() -> bool:
    """Return whether this process has a child, running or not reaped yet."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def has_position(fd: int) -> bool:
    """Return whether processes that share a descriptor share a position in a file, or the bytes of a pipe.

    What is only appended to a file, such as a log, needs no position.
    """
    mode = os.fstat(fd).st_mode
    is_appended = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
    return stat.S_ISFIFO(mode) or (stat.S_ISREG(mode) and not is_appended)


def is_traced() -> bool:
    """Return whether a tracer, a profiler, or from Python 3.12 on a tool of sys.monitoring runs in this process."""
    monitoring = getattr(sys, "monitoring", None)
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring is not None else []
    return sys.gettrace() is not None or sys.getprofile() is not None or any(tools)
