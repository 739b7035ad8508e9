"""Where each attempt of a replica ran, as the journal of the run says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flowdist.control.protocol.effects import FinishJob, StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.record.journal import Record, decode_line
from flowdist.runtime.left_files import read_from
from flowdist.runtime.saved_files import DAMAGED
from flowdist.runtime.wire.framing import LineBuffer
from flowdist.runtime.wire.log_messages import Attempt

BLOCK_BYTES = 1 << 20  # read at once


class Placements:
    """The node of each attempt in a journal that may still grow. Bad lines are passed over: this is no check."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._lines = path, 0, LineBuffer()
        self._nodes: dict[Attempt, NodeName] = {}
        self.is_over = False  # the job has ended

    def update(self) -> None:
        """Read what was written since the last call."""
        while data := read_from(self._path, self._offset, BLOCK_BYTES):
            self._offset += len(data)
            for line in self._lines.feed(data):
                if b'"StartReplica"' in line or b'"FinishJob"' in line:
                    self._note(line)

    def _note(self, line: bytes) -> None:
        try:
            record = decode_line(line)
        except DAMAGED:
            return
        for effect in record.effects if isinstance(record, Record) else ():
            if isinstance(effect, StartReplica):
                self._nodes[Attempt(effect.replica, effect.attempt)] = effect.node
            self.is_over |= isinstance(effect, FinishJob)

    def of_nodes(self, local: Sequence[NodeName], number: int | None, *, latest: bool) -> dict[NodeName, list[Attempt]]:
        """Return the attempts on nodes but the `local` ones; `latest`: only the last of each replica, anywhere."""
        last = self.latest() if latest else {}
        found: dict[NodeName, list[Attempt]] = {}
        for attempt, node in self._nodes.items():
            if node in local or number not in (None, attempt.number):
                continue
            if not latest or last[attempt.replica] == attempt.number:
                found.setdefault(node, []).append(attempt)
        return found

    def latest(self) -> dict[ReplicaId, int]:
        """Return the number of the last attempt of each replica."""
        found: dict[ReplicaId, int] = {}
        for attempt in self._nodes:
            found[attempt.replica] = max(found.get(attempt.replica, 0), attempt.number)
        return found
