"""The logs of a run, read from its folder: which files are meant, their ends, and what is added to them.

Nothing is asked of the run for it: its logs can be read while it goes on, when it is over, and when it has died.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.runtime.run_folder.logs import File, Stream

BLOCK = 64 << 10
_TARGET = re.compile(r"(?P<role>[^/]+)(?:/(?P<index>\d+)(?:\.(?P<worker>\d+))?)?")


class Target(NamedTuple):
    """Whose logs: of a role, of one replica of it, or of one worker of that."""

    role: str
    replica: int | None = None
    worker: int | None = None


class Log(NamedTuple):
    """One file. Sorts by role in the order of the graph, then replica, attempt, worker, stdout first."""

    place: tuple[int, int, int, int, str]
    name: str  # trainer/0, or trainer/0.1 where there are several workers
    attempt: int
    stream: Stream
    path: Path


def parse_target(text: str, graph: RoleGraph) -> Target:
    """`ROLE[/REPLICA[.WORKER]]`; FlowdistError for what is not there."""
    match = _TARGET.fullmatch(text)
    roles = {spec.name: spec for spec in graph.roles}
    if match is None:
        raise FlowdistError(
            f"{text!r} names no logs", help="write ROLE, ROLE/REPLICA or ROLE/REPLICA.WORKER: trainer/0.1"
        )
    if match["role"] not in roles:
        close = difflib.get_close_matches(match["role"], roles, n=1)
        help = f"did you mean {close[0]!r}?" if close else f"roles: {', '.join(roles)}"
        raise FlowdistError(f"there is no role {match['role']!r} in this run", help=help)
    spec = roles[match["role"]]
    index, worker = (int(match[part]) if match[part] is not None else None for part in ("index", "worker"))
    if index is not None and index >= spec.max_replicas:
        last = f"{spec.name}/{spec.max_replicas - 1}"
        raise FlowdistError(f"there is no replica {spec.name}/{index}", help=f"the last one is {last}")
    if worker is not None and worker >= spec.procs:
        has = f"a replica of {spec.name} has {spec.procs} worker{'s' * (spec.procs != 1)}, from 0"
        raise FlowdistError(f"there is no worker {text}", help=has)
    return Target(spec.name, index, worker)


def find_logs(
    run_dir: Path, graph: RoleGraph, targets: Sequence[Target], streams: Sequence[Stream], attempt: int | None = None
) -> list[Log]:
    """The files that are there, in order; without `attempt` those of all attempts."""
    found: list[Log] = []
    for order, spec in enumerate(graph.roles):
        meant = [target for target in targets if target.role == spec.name]
        if targets and not meant:
            continue
        for index in _numbers(run_dir / spec.name):
            chosen = [target for target in meant if target.replica in (None, index)]
            if targets and not chosen:
                continue
            base = run_dir / spec.name / str(index)
            for number in _numbers(base, "attempt_"):
                if attempt not in (None, number):
                    continue
                for worker in _numbers(base / f"attempt_{number}"):
                    if targets and not any(target.worker in (None, worker) for target in chosen):
                        continue
                    name = f"{spec.name}/{index}" if spec.procs == 1 and not worker else f"{spec.name}/{index}.{worker}"
                    folder = base / f"attempt_{number}" / str(worker)
                    for stream in streams:
                        place = (order, index, number, worker, "0" if stream == "stdout" else "1")
                        found.append(Log(place, name, number, stream, folder / f"{stream}.log"))
    return sorted(found)


def latest_attempts(logs: Sequence[Log]) -> list[Log]:
    """Of each replica those of its last attempt."""
    last: dict[tuple[int, int], int] = {}
    for log in logs:
        last[log.place[:2]] = max(last.get(log.place[:2], 0), log.attempt)
    return [log for log in logs if log.attempt == last[log.place[:2]]]


def _numbers(folder: Path, prefix: str = "") -> list[int]:
    try:
        names = [entry.name.removeprefix(prefix) for entry in os.scandir(folder) if entry.name.startswith(prefix)]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def lines_of(path: Path, last: int | None = None) -> Iterator[str]:
    """The lines of a file, or only the last so many; one without an end as well."""
    try:
        with path.open("rb") as file:
            if last is not None:
                file.seek(start_of_last(path, last))
            for line in file:
                yield line.decode(errors="replace").rstrip("\r\n")
    except OSError:
        return


def start_of_last(path: Path, count: int) -> int:
    """Where the last so many lines begin."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if count <= 0 or end == 0:
            return end
        at, newlines = end, 0
        while at > 0:
            size = min(BLOCK, at)
            at -= size
            file.seek(at)
            block = file.read(size)
            if at + size == end and block.endswith(b"\n"):
                newlines -= 1  # the one at the very end begins nothing
            where = len(block)
            while (where := block.rfind(b"\n", 0, where)) >= 0:
                newlines += 1
                if newlines == count:
                    return at + where + 1
        return 0


class Follow:
    """What is added to logs from now on, to those of attempts that are yet to start as well.

    Files that are there already are read from `last` lines before their end.
    """

    def __init__(self, run_dir: Path, graph: RoleGraph, targets: Sequence[Target], streams: Sequence[Stream]) -> None:
        self._what = (run_dir, graph, targets, streams)
        self._files: dict[Log, File] = {}

    def begin(self, logs: Sequence[Log], last: int | None) -> None:
        """Start with these; whatever else is there has been told already."""
        for log in find_logs(*self._what):
            file = File(log.path, lambda line: None)
            if log in logs:
                file.skip(start_of_last(log.path, last) if last is not None and log.path.exists() else 0)
            else:
                file.skip(log.path.stat().st_size if log.path.exists() else 0)
            self._files[log] = file

    def look(self) -> None:
        """There may be new files."""
        for log in find_logs(*self._what):
            self._files.setdefault(log, File(log.path, lambda line: None))

    def new_lines(self, *, final: bool = False) -> Iterator[tuple[Log, str]]:
        """What was added since the last time. `final` gives half lines too."""
        for log, file in self._files.items():
            for line in file.new_lines(final):
                yield log, line
