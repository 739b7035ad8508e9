"""States of processes, as the kernel knows them: facts about whoever stands still.

A stopped process answers nothing and breaks no connection: without a look at its state it goes unnoticed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Set
from pathlib import Path

from flowdist.control.protocol.ids import ProcessState
from flowdist.runtime.processes.reaper import descendants, stat_fields

_NAMES: dict[str, ProcessState] = {"T": "stopped", "t": "stopped", "Z": "zombie", "X": "zombie", "D": "uninterruptible"}
_BY_WEIGHT: tuple[ProcessState, ...] = ("stopped", "zombie", "uninterruptible", "")  # the most telling one first


def letter_of(pid: int) -> str:
    """Return the state of a process, one letter as in /proc; empty if there is no such process."""
    with contextlib.suppress(OSError, IndexError):
        return stat_fields(pid)[0].decode()
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


class Relatives:
    """The guardian and spawner (0: unknown) of an agent, and what the spawner has started besides workers.

    The agent itself is watched by its guardian (`lease_watch`).
    """

    def __init__(self, guardian: int, spawner: int) -> None:
        self._guardian, self._spawner = guardian, spawner

    def stopped(self, workers: Set[int]) -> str:
        """Return which of these processes, but no worker, are stopped, in words with their numbers; or empty."""
        watched = {self._guardian: "its guardian", self._spawner: "its spawner"}
        watched |= {pid: "its prefix or store" for pid in children_of(self._spawner) if pid not in workers}
        found = [f"{name} (pid {pid})" for pid, name in watched.items() if pid and state_of(pid) == "stopped"]
        return ", ".join(found)

    def check_spawner(self) -> None:
        """Check that the spawner can kill workers, before that is asked of it; RuntimeError if it is stopped.

        The agent ends then, so that the guardian kills the whole node: it must not outlive its lease (R19).
        """
        if self._spawner and state_of(self._spawner) == "stopped":
            raise RuntimeError(f"the spawner (pid {self._spawner}) is stopped, and cannot kill workers")
