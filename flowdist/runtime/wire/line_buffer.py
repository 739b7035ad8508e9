"""Lines out of a byte stream, for the pipes and files in which each message is one line."""

from __future__ import annotations


class LineBuffer:
    """Splitter of a byte stream into lines; it keeps the incomplete last line until the rest of it arrives."""

    def __init__(self) -> None:
        self._partial = b""

    @property
    def waiting(self) -> int:
        """The length in bytes of the incomplete last line."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Add the bytes that were read and return the lines that they complete, without the newline."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        return lines

    def flush(self) -> bytes:
        """Return the incomplete last line, empty if there is none, and forget it."""
        partial, self._partial = self._partial, b""
        return partial
