"""Output of workers with torchrun's options: lines on the terminal, filtered files, and torchrun's folders.

All streams are in files in any case. The options choose which of them are also shown, and how. The folders that
torchrun would make are links to those of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import NamedTuple

from flowdist.control.protocol.effects import StartReplica
from flowdist.graph import RoleSpec
from flowdist.runtime.run_folder.logs import Sink, Stream

BITS: Mapping[Stream, int] = {"stdout": 1, "stderr": 2}


class Streams(NamedTuple):
    """Options for output: -r, -t, the filters and the prefix.

    Masks are by local rank: 1 is stdout, 2 stderr, 3 both. `prefix` may have ${role_name}, ${rank} and ${local_rank}.
    """

    redirects: Mapping[int, int]
    tee: Mapping[int, int]
    ranks: frozenset[int]  # local ranks that are shown on the terminal; empty: all
    filters: Mapping[Stream, tuple[str, ...]]
    role_name: str
    prefix: str


class Output:
    """Factory of sinks for the streams of workers.

    Args:
        show: Prints a line of a stream on the terminal.
    """

    def __init__(self, streams: Streams, run_dir: Path, show: Callable[[Stream, str], None]) -> None:
        self._streams, self._run_dir, self._show = streams, run_dir, show

    def open(self, start: StartReplica, role: RoleSpec, local_rank: int, stream: Stream) -> Sink | None:
        """Return the sink for the lines of one stream of a worker; None if they go to their file alone."""
        attempt = self._run_dir / start.replica.role / str(start.replica.index) / f"attempt_{start.attempt}"
        self._link(attempt, start, role)
        streams, bit = self._streams, BITS[stream]
        if streams.ranks and local_rank not in streams.ranks:
            return None
        if not streams.tee.get(local_rank, 0) & bit:
            hidden = streams.redirects.get(local_rank, 0) & bit
            return None if hidden else lambda line: self._show(stream, line)
        values = {"role_name": streams.role_name, "rank": start.rank + local_rank, "local_rank": local_rank}
        prefix = Template(streams.prefix).safe_substitute(values)
        copy = attempt / f"filtered_{stream}.log"

        def sink(line: str) -> None:
            self._show(stream, prefix + line)
            if any(text in line for text in streams.filters[stream]):
                with copy.open("a") as file:
                    file.write(f"{prefix}{line}\n")

        return sink

    def _link(self, attempt: Path, start: StartReplica, role: RoleSpec) -> None:
        """Link `attempt_0`, as torchrun calls the first generation, to the attempt; with several nodes in `node_K`."""
        folder = self._run_dir if role.max_replicas == 1 else self._run_dir / f"node_{start.replica.index}"
        folder.mkdir(exist_ok=True)
        up = "" if role.max_replicas == 1 else "../"
        with contextlib.suppress(FileExistsError):
            (folder / f"attempt_{start.generation - 1}").symlink_to(f"{up}{attempt.relative_to(self._run_dir)}")
