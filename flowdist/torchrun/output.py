"""Output of workers with torchrun's options: lines on the terminal, filtered files, and torchrun's folders.

All streams are in files in any case. The options choose which of them are also shown, and how. The folders that
torchrun would make are links to those of the run.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import NamedTuple

from flowdist.control.protocol.effects import StartReplica
from flowdist.graph import RoleSpec
from flowdist.runtime.run_folder.logs import Sink, Stream

BITS: Mapping[Stream, int] = {"stdout": 1, "stderr": 2}


class Streams(NamedTuple):
    """torchrun's options for the output of workers. The value of a mask is 1 for stdout, 2 for stderr, 3 for both."""

    redirects: Mapping[int, int]  # -r: by local rank, the mask of streams that go to files alone
    tee: Mapping[int, int]  # -t: by local rank, the mask of streams that are shown with a prefix
    ranks: frozenset[int]  # local ranks that are shown on the terminal; empty: all
    filters: Mapping[Stream, tuple[str, ...]]  # lines with one of these texts are copied to a file; for -t alone
    role_name: str
    prefix: str  # template of the prefix, which may have ${role_name}, ${rank}, ${local_rank}, ${hostname}


class Output:
    """Factory of the functions that get the lines of workers, as torchrun's options demand."""

    def __init__(self, streams: Streams, run_dir: Path, show: Callable[[Stream, str], None]) -> None:
        self._streams, self._run_dir, self._show = streams, run_dir, show

    def open(self, start: StartReplica, role: RoleSpec, local_rank: int, stream: Stream) -> Sink | None:
        """Return a function that gets each line of one stream of a worker; None if lines go to their file alone.

        A link to the folder of the attempt is made where torchrun would have that folder.
        """
        attempt = self._run_dir / start.replica.role / str(start.replica.index) / f"attempt_{start.attempt}"
        self._link(attempt, start, role)
        streams, bit = self._streams, BITS[stream]
        if streams.ranks and local_rank not in streams.ranks:
            return None
        if not streams.tee.get(local_rank, 0) & bit:
            hidden = streams.redirects.get(local_rank, 0) & bit
            return None if hidden else lambda line: self._show(stream, line)
        values = {"role_name": streams.role_name, "rank": start.rank + local_rank, "local_rank": local_rank}
        values["hostname"] = socket.gethostname()
        prefix = Template(streams.prefix).safe_substitute(values)
        copy = attempt / f"filtered_{stream}.log"

        def sink(line: str) -> None:
            self._show(stream, prefix + line)
            if any(text in line for text in streams.filters[stream]):
                with copy.open("a", errors="surrogateescape") as file:
                    file.write(f"{prefix}{line}\n")

        return sink

    def _link(self, attempt: Path, start: StartReplica, role: RoleSpec) -> None:
        """Link `attempt_N` in the run's folder, or with several nodes in `node_K`, to the attempt's, unless it exists.

        As in torchrun, N is 0 in the first generation.
        """
        folder = self._run_dir if role.max_replicas == 1 else self._run_dir / f"node_{start.replica.index}"
        folder.mkdir(exist_ok=True)
        up = "" if role.max_replicas == 1 else "../"
        with contextlib.suppress(FileExistsError):
            (folder / f"attempt_{start.generation - 1}").symlink_to(f"{up}{attempt.relative_to(self._run_dir)}")
