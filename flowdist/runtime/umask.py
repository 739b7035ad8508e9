"""Umask of flowdist's own processes and of workers. The module is small, because forked workers import it.

Nobody but the user may write the files of a run, and a group to which it is open has to be able to read them, whatever
the user's umask. So flowdist's own processes take another. Workers and hooks get the user's back, because they write
elsewhere, too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

UMASK = "FLOWDIST_UMASK"  # the user's umask, in octal, for the processes that start workers and hooks
INHERITED = -1  # no umask of its own, as `subprocess.Popen` has it


def umask_for(folder: Path, users: int) -> int:
    """Return the umask for files in a run's folder: nobody else may write, and a group reads if it may enter."""
    is_shared = folder.stat().st_mode & stat.S_IXGRP
    return (users | 0o022) & (~0o050 if is_shared else ~0)


@contextlib.contextmanager
def umask_of(folder: Path) -> Iterator[None]:
    """Context manager in which this process makes files with the umask for the folder of a run."""
    users = _umask()
    os.umask(umask_for(folder, users))
    try:
        yield
    finally:
        os.umask(users)


def take_umask_of(folder: Path) -> None:
    """Give this process, and those that it starts, the umask for the folder of a run; workers get the present one."""
    users = _umask()
    os.environ[UMASK] = f"{users:04o}"
    os.umask(umask_for(folder, users))


def restore_umask(env: Mapping[str, str]) -> None:
    """Give this process, a worker with these environment variables, the user's umask; do nothing if they lack it."""
    if (users := users_umask(env)) != INHERITED:
        os.umask(users)


def users_umask(env: Mapping[str, str]) -> int:
    """Return the user's umask for a process with these environment variables; INHERITED if they do not have it."""
    text = env.get(UMASK, "")
    return int(text, 8) if text and not text.strip("01234567") and int(text, 8) <= 0o777 else INHERITED


def _umask() -> int:
    """Return the umask of this process, which can be read only by setting it."""
    users = os.umask(0o077)
    os.umask(users)
    return users
