"""Stdout and stderr that never block the process: threads write to them, as fast as the reader allows.

A paused terminal (Ctrl-S) or pipe (`flowdist run | less`) blocks each write. The supervisor of a run must not wait for
a reader: interrupts, faults, hooks and other hosts wait for it.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import threading
from collections import deque
from contextlib import ExitStack, suppress
from typing import Any, TextIO

from flowdist.text.streams import PrintableStream, raw_stream

BEHIND_BYTES = 1 << 16  # with more than this to write, the output is behind: the capacity of a pipe
PIECE_BYTES = 1 << 20  # written at once


class QueuedOutput:
    """Context in which writes to stdout and stderr return at once, but for streams without a file descriptor.

    Its end waits until all is written; an interrupt ends that wait, and the rest is lost. If stdout could not be
    written, as on a full disk, it says so on stderr; a reader that has gone is no error.
    """

    def __init__(self) -> None:
        self._writers: dict[Any, _Writer] = {}
        self._stdout: _QueuedBytes | None = None

    def __enter__(self) -> QueuedOutput:
        self._restore = ExitStack()
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            raw = raw_stream(stream)
            with suppress(OSError, ValueError, AttributeError):
                buffer = self._buffer(raw.fileno())
                raw.flush()
                queued = io.TextIOWrapper(buffer, encoding=raw.encoding, errors=raw.errors, write_through=True)
                self._stdout = buffer if name == "stdout" else self._stdout
                target, attribute = (stream, "raw") if isinstance(stream, PrintableStream) else (sys, name)
                setattr(target, attribute, queued)
                self._restore.callback(setattr, target, attribute, raw)
        return self

    def __exit__(self, *_: object) -> None:
        with self._restore, suppress(KeyboardInterrupt):
            self.finish()
        if self._stdout is not None and self._stdout.lost:
            text = f"flowdist: stdout could not be written, and lacks some of the output: {self._stdout.lost}"
            with suppress(OSError):
                print(text, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Wait until all that was queued is written, or cannot be."""
        for writer in self._writers.values():
            writer.finish()

    def _buffer(self, fd: int) -> _QueuedBytes:
        """Return a binary stream that queues. Streams of one file share a thread, so that their order is kept."""
        status = os.fstat(fd)
        return _QueuedBytes(fd, self._writers.setdefault((status.st_dev, status.st_ino), _Writer()))


def is_behind(*streams: TextIO) -> bool:
    """Return whether the reader of any of these streams is so far behind that nothing more should be queued for it."""
    buffers = (getattr(raw_stream(stream), "buffer", None) for stream in streams)
    return any(isinstance(buffer, _QueuedBytes) and buffer.writer.waiting > BEHIND_BYTES for buffer in buffers)


class _QueuedBytes(io.BufferedIOBase):
    """Binary stream whose `write` gives the bytes to a writer. It does not own its file descriptor."""

    def __init__(self, fd: int, writer: _Writer) -> None:
        self._fd, self.writer = fd, writer
        self._is_terminal = os.isatty(fd)  # asked once: each line of a worker's output depends on it

    def write(self, data: Any) -> int:
        content = data if type(data) is bytes else bytes(data)
        self.writer.put(self._fd, content)
        return len(content)

    @property
    def lost(self) -> str:
        """Return why some of the bytes could not be written, although they have a reader; empty if all could."""
        return self.writer.lost.get(self._fd, "")

    @property
    def name(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return self._is_terminal


class _Writer:
    """Thread that writes what is queued, in its order. It starts with the first bytes.

    It is a daemon, and writes to the file descriptor itself: the interpreter can end while a write blocks. If this
    process may start no thread, because of `ulimit -u`, `put` writes instead.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[int, bytes]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed: set[int] = set()  # file descriptors whose reader has gone
        self.lost: dict[int, str] = {}  # by file descriptor, why bytes that have a reader could not be written
        self.waiting = 0  # bytes that are queued, or being written

    def put(self, fd: int, data: bytes) -> None:
        """Queue bytes for a file descriptor."""
        if not data:
            return
        with self._changed:
            if self._thread is None and (thread := self._started()) is None:
                self._write(fd, data)
                return
            self._thread = self._thread or thread
            self._queue.append((fd, data))
            self.waiting += len(data)
            if len(self._queue) == 1:  # else the thread has been woken already
                self._changed.notify_all()

    def _started(self) -> threading.Thread | None:
        """Start the thread; return None if the limit on processes of this user is reached."""
        thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

    def finish(self) -> None:
        """Wait until all that was queued is written, or cannot be."""
        with self._changed:
            self._changed.wait_for(lambda: self.waiting == 0)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue))
                fd, data = self._next()
            self._write(fd, data)
            with self._changed:
                self.waiting -= len(data)
                if not self.waiting:
                    self._changed.notify_all()

    def _next(self) -> tuple[int, bytes]:
        """Return what is queued first, with what follows it for the same file descriptor, about PIECE_BYTES at most."""
        fd, size = self._queue[0][0], 0
        pieces = []
        while self._queue and self._queue[0][0] == fd and size < PIECE_BYTES:
            pieces.append(self._queue.popleft()[1])
            size += len(pieces[-1])
        return fd, b"".join(pieces)

    def _write(self, fd: int, data: bytes) -> None:
        """Write the bytes. They are dropped if that fails, as on a full disk; after a broken pipe all later ones, too.

        A file descriptor may be non-blocking, because another process that has it as well has set that.
        """
        left = memoryview(data)
        while left and fd not in self._closed:
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:
                select.select([], [fd], [])
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EBADF):
                    self._closed.add(fd)
                elif error.errno != errno.EIO:  # of a terminal that has gone
                    self.lost.setdefault(fd, error.strerror or str(error))
                return
