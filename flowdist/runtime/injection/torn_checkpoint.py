"""Torn checkpoints: a committed file that is cut in half, as by a disk that has confirmed data without writing them.

The agent writes the pointer, the file `latest.json` that names the checkpoint, only after the record that accepts it,
and its disk may take time. The fault therefore waits for the pointer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flowdist.control.protocol.effects import AnswerCheckpoint
from flowdist.faults.grammar import Fault
from flowdist.graph import SECOND, RoleGraph, RoleSpec
from flowdist.record.journal import Record

PATIENCE_NS = 30 * SECOND  # how long a fault waits for a pointer

_Committed = tuple[str, int]  # path and step


@dataclass(slots=True)
class _PendingTear:
    """A fault that waits until a pointer names one of the wanted checkpoints."""

    fault: Fault
    role: RoleSpec
    pointer: Path
    wanted: list[_Committed] | None  # the last checkpoint when the fault was due, and later ones; None: any is torn
    until_ns: int


class TornCheckpoints:
    """The torn-checkpoint faults of one run: `note` gets each with its file, `warn` a text about one given up."""

    def __init__(
        self, graph: RoleGraph, checkpoints: Path, note: Callable[[Fault, str], None], warn: Callable[[str], None]
    ) -> None:
        self._graph, self._checkpoints, self._note, self._warn = graph, checkpoints, note, warn
        self._last: dict[Path, _Committed] = {}  # by the pointer that will name it
        self._pending: list[_PendingTear] = []

    def observe(self, record: Record) -> None:
        """Note the checkpoints that the controller has accepted in a record. Pending faults may cut them, too."""
        for effect in record.effects:
            if isinstance(effect, AnswerCheckpoint) and effect.accepted:
                role, folder = self._graph.role(effect.replica.role), self._checkpoints / effect.replica.role
                pointer = (folder if role.gang else folder / str(effect.replica.index)) / "latest.json"
                self._last[pointer] = committed = (effect.path, effect.step)
                for tear in self._pending:
                    if tear.pointer == pointer and tear.wanted is not None:
                        tear.wanted.append(committed)

    def begin(self, fault: Fault, now: int) -> None:
        """Note a fault that is due at `now` (ns), once for each pointer of its target that exists or will.

        It is carried out by `tear` once the pointer names the last accepted checkpoint or a later one, and given up
        after PATIENCE_NS.
        """
        for role in self._graph.roles:
            if fault.target.partition("/")[0] in ("all", role.name):
                for pointer in self._pointers(role, fault):
                    wanted = [self._last[pointer]] if pointer in self._last else None
                    self._pending.append(_PendingTear(fault, role, pointer, wanted, now + PATIENCE_NS))

    def _pointers(self, role: RoleSpec, fault: Fault) -> list[Path]:
        """Return the target's pointers that exist, and those that will be written for accepted checkpoints."""
        number = "*" if fault.replica is None or role.gang else str(fault.replica[1])
        folder = self._checkpoints / role.name
        coming = [path for path in self._last if path.is_relative_to(folder) and number in ("*", path.parent.name)]
        return list(
            dict.fromkeys([*folder.glob("latest.json"), *sorted(folder.glob(f"{number}/latest.json")), *coming])
        )

    def tear(self, now: int) -> None:
        """Carry out each fault whose pointer names a wanted checkpoint by `now` (ns); give up those that are late.

        The pointer stays, so that a resumed worker finds the file torn. A fault without any checkpoint ends without a
        word.
        """
        for tear in list(self._pending):
            if (file := _cut(tear)) is not None:
                self._pending.remove(tear)
                self._note(tear.fault, str(file))
            elif tear.wanted is None or tear.until_ns <= now:
                self._give_up(tear)

    def give_up(self) -> None:
        """Give up all pending faults, since the job is over."""
        for tear in list(self._pending):
            self._give_up(tear)

    def _give_up(self, tear: _PendingTear) -> None:
        self._pending.remove(tear)
        if tear.wanted is not None:
            what = f"nothing was torn: {tear.pointer} has never named the checkpoint that was committed last"
            self._warn(f"fault {tear.fault.spec}: {what}")


def _cut(tear: _PendingTear) -> Path | None:
    """Cut the pointer's checkpoint, of a folder the largest file, in half and return it; None if gone or not wanted."""
    try:
        named = json.loads(tear.pointer.read_text())
        if tear.wanted is not None and (named["path"], named["step"]) not in tear.wanted:
            return None
        path = Path(tear.role.workdir, named["path"])
        if path.is_dir():
            path = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
        os.truncate(path, path.stat().st_size // 2)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path
