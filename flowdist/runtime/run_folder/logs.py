"""The workers' output on the terminal, each line behind the name of its worker.

Workers write straight into their log files, so that flowdist never delays them. This module follows the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from flowdist.control.protocol.effects import StartReplica
from flowdist.graph import RoleSpec
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.wire.line_buffer import LineBuffer

Stream = Literal["stdout", "stderr"]
Sink = Callable[[str], None]
OpenSink = Callable[[StartReplica, RoleSpec, int, Stream], Sink | None]


def last_output_ns(attempt_dir: Path) -> int | None:
    """Return when any worker of an attempt last wrote output, in ns on the clock `boot_ns`; None if none has.

    Args:
        attempt_dir: The folder of the attempt, with the logs of its workers.
    """
    stats = [path.stat() for path in attempt_dir.glob("*/std*.log")]
    times = [stat.st_mtime_ns for stat in stats if stat.st_size]
    return boot_ns() - max(0, time.time_ns() - max(times)) if times else None


class Follower:
    """Reader of the logs of the attempts that run, which shows their new lines on the terminal.

    It shows whole lines. An incomplete line waits for its end, at most until the attempt is over.

    Args:
        run_dir: The folder of the run.
        show: Shows a line of a stream. The line begins with the name of its worker.
        open_sink: Called for each stream of each worker. It returns a function that gets the lines instead of `show`,
            or None to drop the lines.
    """

    def __init__(self, run_dir: Path, show: Callable[[Stream, str], None], open_sink: OpenSink | None = None) -> None:
        self._run_dir, self._show = run_dir, show
        self._open_sink = open_sink or self._open_named
        self._files: dict[Path, tuple[LogFile, Sink]] = {}

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

    def read(self, *, final: bool = False) -> None:
        """Show the lines that were added since the last call to the logs that are followed.

        With `final`, incomplete lines are shown too.
        """
        for file, sink in self._files.values():
            for line in file.new_lines(final):
                sink(line)

    def end(self, start: StartReplica) -> None:
        """Show the rest of an attempt that is over, incomplete lines too, and follow it no longer."""
        base = self._run_dir / start.replica.role / str(start.replica.index) / f"attempt_{start.attempt}"
        for path in [path for path in self._files if path.is_relative_to(base)]:
            file, sink = self._files.pop(path)
            for line in file.new_lines(final=True):
                sink(line)


class LogFile:
    """A log file that grows. `new_lines` begins at `offset` bytes, and continues where its last call ended.

    Bytes that are not UTF-8 become lone surrogates, so that `print_worker_line` can write them unchanged.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset = path, offset
        self._lines = LineBuffer()

    def new_lines(self, final: bool) -> list[str]:
        """Return the complete lines that are new since the last call; with `final` an incomplete one too.

        A file that does not exist has no lines.
        """
        try:
            if self._path.stat().st_size == self._offset and not final:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        self._offset += len(data)
        lines = self._lines.feed(data)
        if final and (partial := self._lines.flush()):
            lines.append(partial)
        return [line.decode(errors="surrogateescape") for line in lines]
