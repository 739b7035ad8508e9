"""Nothing is left behind: find every descendant of this process and kill it, until there is none.

A subreaper adopts the orphans of its descendants, double-forked and in sessions of their own included, so that walking
the tree of parents finds them all (prctl(2), PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans among the descendants become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when its parent ends. It ends now if the parent has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def parents() -> dict[int, int]:
    """Every process with its parent. A process that ends while we look is left out."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # the name of the program stands in brackets and may hold anything, brackets included
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                found[int(entry.name)] = int(fields[1])
    return found


def descendants(root: int, *, spare: frozenset[int] = frozenset()) -> list[int]:
    """Children of `root` and theirs; those in `spare`, and what is below them, are left out."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = [root]
    while todo:
        for pid in children.get(todo.pop(), []):
            if pid not in spare:
                found.append(pid)
                todo.append(pid)
    return found


def kill_descendants(*, spare: frozenset[int] = frozenset(), patience_s: float = 30.0) -> list[int]:
    """SIGKILL and reap until nothing is left. Returns what outlived SIGKILL for `patience_s` seconds, normally nothing.

    What is killed may have forked in the meantime: the walk is repeated until it finds nobody.
    """
    me = os.getpid()
    give_up = time.monotonic() + patience_s
    while left := descendants(me, spare=spare):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap(left)
        if time.monotonic() > give_up:
            return left
        time.sleep(0.002)
    return []


def _reap(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
