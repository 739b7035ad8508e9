"""The record of a simulation as it grows: the last lines as values, older ones packed.

A line as a value costs hundreds of bytes, and hashing line by line as much time as the event itself. So lines are
encoded, hashed and compressed in blocks. Readers get values again, equal to those that were written. A short run never
fills a block, and packs nothing.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import overload

from flowdist.record.journal import Header, Line, decode_line, encode_lines

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
