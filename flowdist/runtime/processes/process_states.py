"""States of processes, as the kernel knows them: facts about whoever stands still."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from flowdist.control.protocol.ids import ProcessState
from flowdist.runtime.processes.reaper import descendants

_NAMES: dict[str, ProcessState] = {"T": "stopped", "t": "stopped", "Z": "zombie", "X": "zombie", "D": "uninterruptible"}
_BY_WEIGHT: tuple[ProcessState, ...] = ("stopped", "zombie", "uninterruptible", "")  # the most telling one first


def letter_of(pid: int) -> str:
    """Return the state of a process, one letter as in /proc; empty if there is no such process."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return ""


def state_of(pid: int) -> ProcessState:
    """Return the state of a process; empty if it is not unusual, or there is no such process."""
    return _NAMES.get(letter_of(pid), "")


def state_of_workers(pids: Iterable[int]) -> ProcessState:
    """Return the most telling of the states of these workers: stopped, zombie, uninterruptible, or nothing unusual.

    A worker counts as stopped, too, if one of its descendants is: it may be a shell that waits for the program.
    """
    return min((_state_of_tree(pid) for pid in pids), key=_BY_WEIGHT.index, default="")


def _state_of_tree(pid: int) -> ProcessState:
    own = state_of(pid)
    is_stopped = own == "stopped" or any(state_of(each) == "stopped" for each in descendants(pid))
    return "stopped" if is_stopped else own


def is_stopped(pid: int) -> bool:
    """Return whether a process or one of its children is stopped: it may be a shell that waits for the program."""
    return any(state_of(each) == "stopped" for each in (pid, *children_of(pid)))


def children_of(pid: int) -> list[int]:
    """Return the children of a process with one thread; nothing if it has ended or is 0."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
