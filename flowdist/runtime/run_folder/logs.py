"""The workers' output on the terminal: each line behind the name of who said it.

Workers write straight into their files, so that nothing of ours is ever in their way; here the files are followed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from flowdist.control.protocol.effects import StartReplica
from flowdist.graph import RoleSpec
from flowdist.runtime.clock import boot_ns

Stream = Literal["stdout", "stderr"]
Sink = Callable[[str], None]
OpenSink = Callable[[StartReplica, RoleSpec, int, Stream], Sink | None]


def last_output_ns(attempt_dir: Path) -> int | None:
    """When a worker of the attempt wrote output last, on the clock of the runtime; None if none ever did."""
    stats = [path.stat() for path in attempt_dir.glob("*/std*.log")]
    times = [stat.st_mtime_ns for stat in stats if stat.st_size]
    return boot_ns() - max(0, time.time_ns() - max(times)) if times else None


class Follower:
    """`show(stream, text)` gets whole lines; a half line waits for its end, at most until the attempt is over.

    `open_sink` may say for each stream of each worker, by its local rank, where its lines go instead; None: nowhere.
    """

    def __init__(self, run_dir: Path, show: Callable[[Stream, str], None], open_sink: OpenSink | None = None) -> None:
        self._run_dir, self._show = run_dir, show
        self._open_sink = open_sink or self._open_named
        self._files: dict[Path, File] = {}

    def follow(self, start: StartReplica, role: RoleSpec) -> None:
        """An attempt was started: follow its workers' files, and let those of the one before go when they are dry."""
        base = self._run_dir / start.replica.role / str(start.replica.index)
        for local_rank in range(role.procs):
            streams: tuple[Stream, ...] = ("stdout", "stderr")
            for stream in streams:
                path = base / f"attempt_{start.attempt}" / str(local_rank) / f"{stream}.log"
                if (sink := self._open_sink(start, role, local_rank, stream)) is not None:
                    self._files[path] = File(path, sink)

    def _open_named(self, start: StartReplica, role: RoleSpec, local_rank: int, stream: Stream) -> Sink:
        """Each line behind the name of its worker."""
        name = str(start.replica) if role.procs == 1 else f"{start.replica}.{local_rank}"
        return lambda line: self._show(stream, f"[{name}] {line}")

    def read(self, *, final: bool = False) -> None:
        """Show what is new. `final` shows half lines too."""
        for file in self._files.values():
            for line in file.new_lines(final):
                file.sink(line)

    def end(self, start: StartReplica) -> None:
        """The attempt is over: show what is left of it, half lines too. Nothing more will come."""
        base = self._run_dir / start.replica.role / str(start.replica.index) / f"attempt_{start.attempt}"
        for path in [path for path in self._files if path.is_relative_to(base)]:
            file = self._files.pop(path)
            for line in file.new_lines(final=True):
                file.sink(line)


class File:
    """A file that grows, read from where it was read last."""

    def __init__(self, path: Path, sink: Sink) -> None:
        self.path, self.sink = path, sink
        self._offset = 0
        self._rest = b""

    def skip(self, offset: int) -> None:
        """What is before that is of no interest."""
        self._offset = offset

    def new_lines(self, final: bool) -> list[str]:
        """Whole lines; with `final` half ones too. A file that is not there yet has none."""
        try:
            if self.path.stat().st_size == self._offset and not (final and self._rest):
                return []
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if final and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace").rstrip("\r") for line in lines]
