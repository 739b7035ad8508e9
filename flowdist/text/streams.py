"""Output of a process whose text is made printable on its way, so that no place that prints can forget it."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from flowdist.text.printable import printable, worker_line


class PrintableStream(io.TextIOBase):
    """Text stream that passes text on as `printable` returns it; colours do not pass either.

    Text that has been made safe already, such as a styled line, goes to `raw`. This stream has no `buffer`, so that no
    library writes bytes past it.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there
        """The encoding of the stream below."""
        return self.raw.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # an attribute there
        """How the stream below handles characters that its encoding lacks."""
        return self.raw.errors

    def write(self, text: str) -> int:
        """Write the text in its printable form, and return its length."""
        self.raw.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self.raw.flush()

    def isatty(self) -> bool:
        """Return whether the stream below is a terminal."""
        return self.raw.isatty()

    def fileno(self) -> int:
        """Return the file descriptor of the stream below."""
        return self.raw.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True


def open_closed_streams() -> None:
    """Open /dev/null as stdin, stdout and stderr, as far as this process was started without them (`>&-`).

    Else the next file that is opened, such as the lock of a run, would get the number, and what some child prints.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", errors="replace", closefd=False))


def print_printable_only() -> None:
    """Make all that this process prints printable from now on, also tracebacks of errors that nothing handles."""
    sys.stdout, sys.stderr = PrintableStream(raw_stream(sys.stdout)), PrintableStream(raw_stream(sys.stderr))


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream below a `PrintableStream`, and any other stream itself."""
    return stream.raw if isinstance(stream, PrintableStream) else stream


def print_worker_line(line: str, stream: TextIO) -> None:
    """Print a line of a worker's output: on a terminal as `worker_line` returns it, else unchanged.

    Bytes that are not UTF-8 may be lone surrogates; a file or pipe gets the bytes again.
    """
    raw = raw_stream(stream)
    if raw.isatty():
        raw.write(worker_line(line) + "\n")
        raw.flush()
        return
    raw.flush()
    raw.buffer.write(line.encode(errors="surrogateescape") + b"\n")
    raw.buffer.flush()
