"""The connections of this host that watch the journal. Each gets every line, as fast as its peer reads.

One that has not had all lines gets them from the file, a piece at a time, so that none waits in memory. If the file
cannot be read, the connection is closed. Hosts that have joined are sent `host_news` instead.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from flowdist.runtime.controller.limits import UNREAD_MAX
from flowdist.runtime.last_words import die_of
from flowdist.runtime.processes.unexpected import start_task
from flowdist.runtime.wire.frames import JournalLine, Watch
from flowdist.runtime.wire.framing import encode

PIECE_BYTES = 64 << 10  # read from the file at once


@dataclass(slots=True, eq=False)
class _Watcher:
    writer: asyncio.StreamWriter
    position: int = 0  # in the file: all lines before it are sent
    task: asyncio.Task[None] | None = None  # reads the file for it; None: it has had all lines


class Watchers:
    """The watchers of one journal, whose file exists and ends with a whole line."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, path.stat().st_size
        self._watchers: dict[asyncio.StreamWriter, _Watcher] = {}

    def __contains__(self, writer: asyncio.StreamWriter) -> bool:
        return writer in self._watchers

    def add(self, message: Watch, writer: asyncio.StreamWriter) -> None:
        """Send a connection the journal without its first `message.skip` lines, and from now on every new line."""
        watcher = self._watchers[writer] = _Watcher(writer)
        watcher.task = start_task(self._feed(watcher, message.skip), die_of)

    def remove(self, writer: asyncio.StreamWriter) -> None:
        """Forget a connection that has ended. No error if it does not watch."""
        watcher = self._watchers.pop(writer, None)
        if watcher is not None and watcher.task is not None:
            watcher.task.cancel()

    def wrote(self, line: bytes) -> None:
        """Pass on a line that was written to the file just now."""
        self._size += len(line)
        frame = encode(JournalLine(line))
        for watcher in self._watchers.values():
            if watcher.task is not None or watcher.writer.is_closing():
                continue  # the task comes to this line
            if watcher.writer.transport.get_write_buffer_size() > UNREAD_MAX:
                watcher.task = start_task(self._feed(watcher), die_of)
            else:
                watcher.writer.write(frame)
                watcher.position = self._size

    async def finish(self, timeout_s: float) -> None:
        """Wait until every watcher has had all lines, at most so many seconds."""
        tasks = [watcher.task for watcher in self._watchers.values() if watcher.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def _feed(self, watcher: _Watcher, skip: int = 0) -> None:
        """Send a watcher the lines that it lacks, but not the first `skip` that the file has by now."""
        present = self._size
        try:
            while watcher.position < self._size and not watcher.writer.is_closing():
                for line in self._read(watcher.position):
                    if skip > 0 and watcher.position < present:
                        skip -= 1
                    else:
                        watcher.writer.write(encode(JournalLine(line)))
                    watcher.position += len(line)
                await watcher.writer.drain()
                await asyncio.sleep(0)  # other connections are served in between, also if this peer reads fast
        except OSError:  # the connection is lost, or the file
            watcher.writer.close()
        watcher.task = None

    def _read(self, position: int) -> list[bytes]:
        """Return the lines from `position` on, about PIECE_BYTES; OSError also if the file was cut from outside."""
        with self._path.open("rb") as file:
            file.seek(position)
            piece = file.read(min(PIECE_BYTES, self._size - position))
            if not piece:
                raise OSError(f"{self._path} has lost lines")
            return (piece + (file.readline() if not piece.endswith(b"\n") else b"")).splitlines(keepends=True)
