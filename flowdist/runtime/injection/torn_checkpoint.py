"""Torn checkpoints: a committed file that is cut in half, as by a disk that has confirmed data without writing them.

The record says when a checkpoint was accepted. Only afterwards the agent writes the pointer, the file `latest.json`
that names the checkpoint, and its disk may take time. Until then the pointer names an older checkpoint. The fault
therefore waits for the pointer.
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
    """The torn-checkpoint faults of one run.

    Args:
        graph: The job.
        checkpoints: The folder of the run's checkpoints.
        note: Called with a fault and the file that it has cut.
        warn: Called with a text about a fault that was given up.
    """

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
        """Note a fault that is due at `now` (ns): from now on, each call of `tear` tries to carry it out.

        The fault is noted once for each `latest.json` (a pointer) of the roles or the replica of its target. It is
        carried out as soon as that file names the checkpoint that the controller accepted last, or a later one; `tear`
        gives it up after PATIENCE_NS. A target without such a file is ignored.
        """
        for role in self._graph.roles:
            if fault.target.partition("/")[0] in ("all", role.name):
                for pointer in self._pointers(role, fault):
                    wanted = [self._last[pointer]] if pointer in self._last else None
                    self._pending.append(_PendingTear(fault, role, pointer, wanted, now + PATIENCE_NS))

    def _pointers(self, role: RoleSpec, fault: Fault) -> list[Path]:
        """Return the pointers of the role, or of the one replica that the fault targets.

        They are the pointers that exist, and those that will be written for checkpoints that have been accepted.
        """
        number = "*" if fault.replica is None or role.gang else str(fault.replica[1])
        folder = self._checkpoints / role.name
        coming = [path for path in self._last if path.is_relative_to(folder) and number in ("*", path.parent.name)]
        return list(
            dict.fromkeys([*folder.glob("latest.json"), *sorted(folder.glob(f"{number}/latest.json")), *coming])
        )

    def tear(self, now: int) -> None:
        """Carry out each pending fault whose pointer names a wanted checkpoint by now, and give up those that are late.

        The pointer still names the file that was cut, so that a worker that resumes finds it torn. A fault that found
        no checkpoint at all is given up without a word.

        Args:
            now: The time of the job, in ns.
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
    """Cut the checkpoint that the pointer names in half, if it is a wanted one. Of a folder its largest file is cut.

    Returns:
        The file that was cut; None if the pointer names no wanted checkpoint or does not exist, or if the checkpoint is
        gone.
    """
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
