"""A checkpoint that was committed and cannot be read: its file is cut in half, as by a disk that lied.

The record says that it was accepted; the agent writes the pointer to it only then, and its disk may take its time.
Until the pointer names it there is nothing to tear but an older one, so that a fault waits for it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from flowdist.control.protocol.effects import AnswerCheckpoint
from flowdist.faults.grammar import Fault
from flowdist.graph import SECOND, RoleGraph, RoleSpec
from flowdist.record.journal import Record

PATIENCE_NS = 30 * SECOND  # of a fault, with a pointer


class Torn(NamedTuple):
    """What a fault has torn; no file: its pointer has never named what was committed."""

    fault: Fault
    pointer: Path
    file: Path | None


class _Committed(NamedTuple):
    path: str
    step: int


@dataclass(slots=True)
class _Tear:
    """`wanted` are those that were last when it was due, or later; None: whatever is there, for nothing is known."""

    fault: Fault
    role: RoleSpec
    pointer: Path
    wanted: list[_Committed] | None
    until_ns: int


class Tearing:
    """Faults of one run, which hear what the controller accepts. Checkpoints are below `checkpoints`."""

    def __init__(self, graph: RoleGraph, checkpoints: Path) -> None:
        self._graph, self._checkpoints = graph, checkpoints
        self._last: dict[Path, _Committed] = {}  # by the pointer that will name it
        self._waiting: list[_Tear] = []

    def hear(self, record: Record) -> None:
        for effect in record.effects:
            if isinstance(effect, AnswerCheckpoint) and effect.accepted:
                role, folder = self._graph.role(effect.replica.role), self._checkpoints / effect.replica.role
                pointer = (folder if role.gang else folder / str(effect.replica.index)) / "latest.json"
                self._last[pointer] = committed = _Committed(effect.path, effect.step)
                for tear in self._waiting:
                    if tear.pointer == pointer and tear.wanted is not None:
                        tear.wanted.append(committed)

    def begin(self, fault: Fault, now: int) -> None:
        """It is due for what the roles, or the replica, that it is meant for have committed last."""
        for role in self._graph.roles:
            if fault.target.partition("/")[0] in ("all", role.name):
                for pointer in self._pointers(role, fault):
                    wanted = [self._last[pointer]] if pointer in self._last else None
                    self._waiting.append(_Tear(fault, role, pointer, wanted, now + PATIENCE_NS))

    def _pointers(self, role: RoleSpec, fault: Fault) -> list[Path]:
        """Those that are there, and those that will be."""
        number = "*" if fault.replica is None or role.gang else str(fault.replica[1])
        folder = self._checkpoints / role.name
        coming = [path for path in self._last if path.is_relative_to(folder) and number in ("*", path.parent.name)]
        return list(
            dict.fromkeys([*folder.glob("latest.json"), *sorted(folder.glob(f"{number}/latest.json")), *coming])
        )

    def tear(self, now: int) -> list[Torn]:
        """What can be torn by now. The pointers still name it: whoever resumes finds out."""
        done = []
        for tear in list(self._waiting):
            file = _cut(tear)
            if file is not None or tear.wanted is None or tear.until_ns <= now:
                self._waiting.remove(tear)
                if file is not None or tear.wanted is not None:
                    done.append(Torn(tear.fault, tear.pointer, file))
        return done

    def give_up(self) -> list[Torn]:
        """The job is over: what was to be torn, and was not there."""
        given_up, self._waiting = self._waiting, []
        return [Torn(tear.fault, tear.pointer, None) for tear in given_up]


def _cut(tear: _Tear) -> Path | None:
    """Of a folder the largest file. None while the pointer names something else, or what it names is gone."""
    try:
        named = json.loads(tear.pointer.read_text())
        if tear.wanted is not None and _Committed(named["path"], named["step"]) not in tear.wanted:
            return None
        path = Path(tear.role.workdir, named["path"])
        if path.is_dir():
            path = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
        os.truncate(path, path.stat().st_size // 2)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path
