"""The workers' output on the terminal, each line behind the name of its worker.

Workers write straight into their log files, so that flowdist never delays them. This module follows the files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from flowdist.control.protocol.effects import StartReplica
from flowdist.graph import RoleSpec
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.left_files import modified_ns, read_from, size_of
from flowdist.runtime.wire.framing import LineBuffer

PIECE_BYTES = 1 << 20  # read at once; a longer line is shown in pieces of this size
LOOK_BYTES = 16 << 20  # shown of all logs in one look, so that a worker which floods its log holds up nothing else
LOOK_MAX_S = 0.4  # for one look, which short lines reach first: interrupts and the end of the job wait meanwhile
STEP_BYTES = 1 << 16  # shown between two looks at the clock
STACKS_FOLLOW = "flowdist: a worker of this world hangs, or may hang: flowdist ends this one by SIGABRT; a Python "
STACKS_FOLLOW += "worker first writes the stacks of its threads, under 'Fatal Python error: Aborted'"
CUT = " [longer than 1 MiB: the line goes on below]"

Stream = Literal["stdout", "stderr"]
Sink = Callable[[str], None]
OpenSink = Callable[[StartReplica, RoleSpec, int, Stream], Sink | None]
CLOCK_WAS_SET_NS = 1_000_000_000  # more than the drift that a time server corrects between two looks


class OutputWatch:
    """When the workers of an attempt last wrote output, by their logs.

    The times of files are on the wall clock (`wall_ns`), which an operator or a time server may set, or on a file
    server's. Such a time counts only where it agrees with earlier looks. Otherwise new output counts as of now: a hang
    is then found late, and none is found where there is none.
    """

    def __init__(self, attempt_dir: Path, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._attempt_dir, self._wall_ns = attempt_dir, wall_ns
        self._looked_ns, self._size = boot_ns(), 0
        self._ahead_ns = wall_ns() - self._looked_ns
        self._last_ns: int | None = None

    def last_output_ns(self) -> int | None:
        """Return when any worker last wrote output, in ns on the clock `boot_ns`; None if none has."""
        logs = list(self._attempt_dir.glob("*/std*.log"))
        now, size = boot_ns(), sum(size_of(log) for log in logs)
        ahead_ns = self._wall_ns() - now
        if size != self._size:
            written_ns = max((modified_ns(log) or 0 for log in logs), default=0) - ahead_ns
            was_set = abs(ahead_ns - self._ahead_ns) > CLOCK_WAS_SET_NS
            self._last_ns = now if was_set or not self._looked_ns <= written_ns <= now else written_ns
        self._looked_ns, self._size, self._ahead_ns = now, size, ahead_ns
        return self._last_ns


def announce_stacks(log: Path) -> None:
    """Append STACKS_FOLLOW on a line of its own to a stderr.log, to which the worker appends too; ignore errors."""
    starts_line = (read_from(log, -1, 1) or b"\n") == b"\n"
    with contextlib.suppress(OSError):
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(file, ("" if starts_line else "\n").encode() + f"{STACKS_FOLLOW}\n".encode())
        finally:
            os.close(file)


class Follower:
    """Reader of the logs of the attempts that run, which shows their new lines on the terminal by `show`.

    An incomplete line waits for its end, at most until the attempt is over. A line of more than PIECE_BYTES is shown in
    pieces. While the terminal is behind, nothing is read. `open_sink` is called for each stream of each worker: it
    returns a function that gets the lines instead of `show`, or None to drop them.
    """

    def __init__(
        self,
        run_dir: Path,
        show: Callable[[Stream, str], None],
        open_sink: OpenSink | None = None,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        self._run_dir, self._show, self._is_behind = run_dir, show, is_behind
        self._open_sink = open_sink or self._open_named
        self._files: dict[Path, tuple[LogFile, Sink]] = {}
        self._over: dict[Path, int] = {}  # sizes of the logs of attempts that are over, of which a rest is left to show

    def follow(self, start: StartReplica, role: RoleSpec) -> None:
        """Follow the logs of an attempt that was started, from their beginning."""
        base = self._run_dir / start.replica.role / str(start.replica.index)
        for local_rank in range(role.procs):
            streams: tuple[Stream, ...] = ("stdout", "stderr")
            for stream in streams:
                path = base / f"attempt_{start.attempt}" / str(local_rank) / f"{stream}.log"
                if (sink := self._open_sink(start, role, local_rank, stream)) is not None:
                    self._files[path] = (LogFile(path), sink)

    def _open_named(self, start: StartReplica, role: RoleSpec, local_rank: int, stream: Stream) -> Sink:
        """Return a sink that shows each line behind the name of its worker."""
        name = str(start.replica) if role.procs == 1 else f"{start.replica}.{local_rank}"
        return lambda line: self._show(stream, f"[{name}] {line}")

    def read(self) -> None:
        """Show the lines that are new since the last call, in one look: LOOK_BYTES, LOOK_MAX_S, or a busy terminal.

        The next call shows the rest, and begins with the logs of which nothing was shown.
        """
        until = time.monotonic() + LOOK_MAX_S
        share = max(STEP_BYTES, LOOK_BYTES // max(1, len(self._files)))
        for path in list(self._files):
            if self._is_behind() or time.monotonic() > until:
                return
            self._show_lines(path, share, until)
            if path in self._files:
                self._files[path] = self._files.pop(path)

    def end(self, start: StartReplica) -> None:
        """Show the rest of an attempt that is over, incomplete lines too, and follow it no longer.

        Later calls of `read` and `read_rest` show what is more than one look. What processes left by it write from now
        on is not shown.
        """
        base = self._run_dir / start.replica.role / str(start.replica.index) / f"attempt_{start.attempt}"
        self._read_to_end([path for path in self._files if path.is_relative_to(base)])

    def read_rest(self) -> bool:
        """Show what is left of all logs, incomplete lines too; return False if the caller has to call again."""
        self._read_to_end(list(self._files))
        return not self._files

    def _read_to_end(self, paths: list[Path]) -> None:
        """Show what is left of these logs, which are complete, in one look."""
        for path in paths:
            self._over.setdefault(path, size_of(path))
        until, left = time.monotonic() + LOOK_MAX_S, LOOK_BYTES
        for path in paths:
            if left <= 0 or self._is_behind() or time.monotonic() > until:
                return
            left -= self._show_lines(path, left, until)

    def _show_lines(self, path: Path, bytes_max: int, until: float) -> int:
        """Show new lines of a log until a time, drop it once complete and shown, and return the count of bytes read."""
        file, sink = self._files[path]
        begin, size = file.offset, self._over.get(path)
        before = -1
        while file.offset not in (before, begin + bytes_max) and (before < 0 or time.monotonic() < until):
            before = file.offset
            for line in file.new_lines(size is not None, min(STEP_BYTES, begin + bytes_max - before), size):
                sink(line)
        if size is not None and file.is_read_to(size):
            del self._over[path], self._files[path]
        return file.offset - begin


class LogFile:
    """A log file that grows. `new_lines` begins at `offset` bytes, and continues where its last call ended.

    Bytes that are not UTF-8 become lone surrogates, so that `print_worker_line` can write them unchanged.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self.offset = path, offset
        self._lines = LineBuffer()
        self._is_unreadable = False

    def is_read_to(self, size: int) -> bool:
        """Return whether `new_lines` has read `size` bytes of the file, or all that can still be read of them."""
        return self._is_unreadable or min(size, size_of(self._path)) <= self.offset

    def new_lines(self, final: bool, bytes_max: int | None = None, size: int | None = None) -> Iterator[str]:
        """Yield the complete lines that are new since the last call; with `final` an incomplete one too, at the end.

        Each piece of a line of more than PIECE_BYTES but its last ends with CUT. What is no regular file has no lines.
        `bytes_max` limits the bytes to read; `size` is that of the complete file in bytes, None: its present size.
        """
        self._is_unreadable = False
        size = size_of(self._path) if size is None else min(size, size_of(self._path))
        new = size - self.offset
        end = self.offset + (new if bytes_max is None else min(new, bytes_max))
        while self.offset < end:
            data = read_from(self._path, self.offset, min(PIECE_BYTES, end - self.offset))
            if not data:
                self._is_unreadable = True
                break
            self.offset += len(data)
            yield from map(_text, self._lines.feed(data))
            if self._lines.waiting >= PIECE_BYTES:
                yield _text(self._lines.flush()) + CUT
        if final and self.is_read_to(size) and (partial := self._lines.flush()):
            yield _text(partial)


def _text(line: bytes) -> str:
    return line.decode(errors="surrogateescape")
