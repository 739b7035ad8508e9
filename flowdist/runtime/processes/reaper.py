"""Killing of all descendants of a process, so that no process of a node or a run is left behind.

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
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
LOGS = ("/stdout.log", "/stderr.log")
SURVIVE_S = 1.0  # a process that runs so long after SIGKILL hangs in the kernel
PASS_S = 0.1  # the longest time that one round of killing waits before the processes are listed again
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Have the kernel make this process the parent of each of its descendants whose own parent ends, from now on."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process with its `parent` (known from before the fork); exit with 1 if that is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def stat_fields(pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat behind the program's name, the state first; OSError if no process has it."""
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return os.read(file, 4096).rpartition(b")")[2].split()  # the name stands in brackets, and may contain brackets
    finally:
        os.close(file)


def _parent_pids() -> dict[int, int]:
    """Return the parent of every process on the machine, by process id; some that end meanwhile may be missing."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  # speed: a lost node waits for this, and a machine has many processes
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                found[int(name)] = int(stat_fields(name)[1])
    return found


def descendants(root: int, *, spare: frozenset[int] = frozenset()) -> list[int]:
    """Return the process ids of all descendants of `root`, without those in `spare` and their descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parent_pids().items():
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
    """Kill and reap the descendants of this process but `spare` and theirs, until none is left or `patience_s` is over.

    They are listed again and again, as each may fork before its SIGKILL arrives. Without an early `become_subreaper`,
    orphans are not found. Return the process ids that have outlived SIGKILL; normally none.
    """
    me = os.getpid()
    return _kill_all(lambda: descendants(me, spare=spare), patience_s)[1]


def outlive_sigkill(leaders: list[int]) -> list[int]:
    """Send SIGKILL to the groups of these session leaders, and return those that run even so; zombies do not count."""
    alive = []
    for pid in leaders:
        with contextlib.suppress(OSError):  # it has ended
            if os.getsid(pid) == pid:  # else it was reaped, and another process has its number
                alive.append((pid, os.pidfd_open(pid)))
                os.killpg(pid, signal.SIGKILL)
    until, left = time.monotonic() + SURVIVE_S, []
    for pid, fd in alive:
        if not _ends(fd, until):
            left.append(pid)
        os.close(fd)
    return left


def _log_writers(folder: Path) -> list[int]:
    """Return this user's processes whose stdout or stderr is a worker's log in the folder, whatever their parent is."""
    root, found = os.path.realpath(folder) + "/", []
    for name in os.listdir("/proc"):  # noqa: PTH208  # as in `_parent_pids`
        for number in (1, 2) if name.isdigit() else ():
            with contextlib.suppress(OSError):  # the process has ended, or is another user's
                file = os.readlink(f"/proc/{name}/fd/{number}")  # noqa: PTH115
                if file.startswith(root) and file.endswith(LOGS):
                    found.append(int(name))
                    break
    return found


def kill_log_writers(folder: Path, *, patience_s: float = 30.0) -> tuple[int, list[int]]:
    """Kill this user's processes that write to a worker's log below the folder, for `patience_s` at most.

    Return how many were killed, and which are left; normally none.
    """
    return _kill_all(lambda: _log_writers(folder), patience_s)


def _kill_all(find: Callable[[], list[int]], patience_s: float) -> tuple[int, list[int]]:
    """Kill the processes that `find` returns, and reap children, until it returns none or `patience_s` is over.

    Return how many were found, and which are left.
    """
    give_up, killed = time.monotonic() + patience_s, set[int]()
    while left := find():
        killed.update(left)
        _kill(left)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > give_up:
            return len(killed), left
    return len(killed), []


def _kill(pids: list[int]) -> None:
    """Send SIGKILL to the processes and wait until all have ended, at most PASS_S seconds."""
    ends = []
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended
            ends.append(os.pidfd_open(pid))
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + PASS_S
    for fd in ends:
        _ends(fd, until)
        os.close(fd)


def _ends(pidfd: int, until_s: float) -> bool:
    """Return whether a process ends before `until_s` on the monotonic clock, or has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, until_s - time.monotonic()) * 1000))
