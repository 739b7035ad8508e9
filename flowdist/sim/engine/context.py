"""The part of a simulation that every other part shares: the job, the clock, the seed and the trace."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from flowdist.control.controller import Controller
from flowdist.control.job.state import JobState
from flowdist.graph import RoleGraph
from flowdist.record.journal import Header, Line, UnsavedLine, decode_line, encode_lines
from flowdist.sim.engine.queue import Queue


@dataclass(slots=True)
class Context:
    """Shared state of one simulation. Only `SimController` replaces `controller` and sets `is_down`."""

    graph: RoleGraph  # the job, with the nodes of its cluster
    queue: Queue  # virtual time
    trace: Trace  # the record of the job as it grows
    controller: Controller  # the present one; if it is killed another one takes its place later (R21)
    seed: int = 0  # the source of everything that is drawn; 0: every duration is nominal
    schedule: int = 0  # draws the order of events that happen at the same time; 0: as they were planned
    plays_heartbeats: bool = False  # each heartbeat is played instead of computing those that cannot matter
    fast_forward: bool = False  # quiet times are computed; see `workers.fast_forward`
    arrival_ns: int = 0  # time from the start of a node until its agent connects
    is_down: bool = False  # no controller runs: the last one was killed, and the next one has not taken over
    until_ns: int | None = None  # when the simulation stops, in ns, even if the job has not ended; None: never

    @property
    def job(self) -> JobState:
        """The state of the job as the present controller sees it."""
        return self.controller.state

    def note_unsaved(self, world: str, step: int, role: str) -> None:
        """Append a line to the trace: a checkpoint was not completed, because the disk of `role` is full."""
        self.trace.append(UnsavedLine(self.queue.now, world, step, f"the disk of {role} is full"))


BLOCK = 4096  # lines


class Trace(Sequence[Line]):
    """Sequence of the lines of a record, the header first. Lines can only be appended."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._blocks: list[bytes] = []
        self._fresh: list[Line] = []
        self._hash = hashlib.sha256()

    def append(self, line: Line) -> None:
        """Add a line at the end. Each full block of 4096 lines is encoded and compressed in memory, to save space."""
        fresh = self._fresh
        fresh.append(line)
        if len(fresh) == BLOCK:
            data = encode_lines(fresh)
            self._hash.update(data)
            self._blocks.append(zlib.compress(data, 1))
            fresh.clear()

    def digest(self) -> str:
        """Return the SHA-256 of all lines so far but the header, as hex, like `flowdist.record.journal.digest`."""
        total = self._hash.copy()
        total.update(encode_lines(self._fresh))
        return total.hexdigest()

    def __len__(self) -> int:
        return 1 + len(self._blocks) * BLOCK + len(self._fresh)

    def __iter__(self) -> Iterator[Line]:
        return self.since(0)

    def since(self, place: int) -> Iterator[Line]:
        """Yield the lines from index `place` on. The header has index 0."""
        if place == 0:
            yield self._header
        for number, block in enumerate(self._blocks):
            if place <= (number + 1) * BLOCK:
                lines = zlib.decompress(block).splitlines()[max(0, place - 1 - number * BLOCK) :]
                yield from map(decode_line, lines)
        yield from self._fresh[max(0, place - 1 - len(self._blocks) * BLOCK) :]

    @overload
    def __getitem__(self, index: int) -> Line: ...

    @overload
    def __getitem__(self, index: slice) -> list[Line]: ...

    def __getitem__(self, index: int | slice) -> Line | list[Line]:
        if isinstance(index, slice):
            return list(self)[index]
        return next(self.since(range(len(self))[index]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable
