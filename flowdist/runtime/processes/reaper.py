"""Nothing is left behind: find every descendant of this process and kill it, until there is none.

A subreaper adopts the orphans of its descendants, double-forked and in sessions of their own included, so that walking
the tree of parents finds them all (prctl(2), PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
LOGS = ("/stdout.log", "/stderr.log")
PASS_S = 0.1  # from one look at what is left to the next
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
    for name in os.listdir("/proc"):  # noqa: PTH208  # a lost node waits for this: no objects for each of many files
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                file = os.open(f"/proc/{name}/stat", os.O_RDONLY)
                try:
                    # the name of the program stands in brackets and may hold anything, brackets included
                    fields = os.read(file, 4096).rpartition(b")")[2].split()
                finally:
                    os.close(file)
                found[int(name)] = int(fields[1])
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
        _kill(left)
        _reap(left)
        if time.monotonic() > give_up:
            return left
    return []


def writers(folder: Path) -> list[int]:
    """Processes of this user whose output is a log of workers in this folder, whoever their parent is by now."""
    root, found = os.path.realpath(folder) + "/", []
    for name in os.listdir("/proc"):  # noqa: PTH208  # as in `parents`
        for number in (1, 2) if name.isdigit() else ():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                file = os.readlink(f"/proc/{name}/fd/{number}")  # noqa: PTH115
                if file.startswith(root) and file.endswith(LOGS):
                    found.append(int(name))
                    break
    return found


def kill_writers(folder: Path, *, patience_s: float = 30.0) -> tuple[int, list[int]]:
    """SIGKILL those, until there are none: how many there were, and what outlived it for `patience_s` seconds."""
    give_up, killed = time.monotonic() + patience_s, set[int]()
    while left := writers(folder):
        killed.update(left)
        _kill(left)
        if time.monotonic() > give_up:
            return len(killed), left
    return len(killed), []


def _kill(pids: list[int]) -> None:
    """Returns when all have ended, or after a moment: some may take their time."""
    ends = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            ends.append(os.pidfd_open(pid))
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + PASS_S
    poll = select.poll()
    for fd in ends:
        poll.register(fd, select.POLLIN)
    waiting = len(ends)
    while waiting and (left_s := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            waiting -= 1
    for fd in ends:
        os.close(fd)


def _reap(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
