"""Reading of a run's logs from its folder: choosing the files, their last lines, and lines as they are added.

It needs nothing but the folder, whether the run is running, is over, or has died.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.runtime.left_files import open_regular
from flowdist.runtime.run_folder.logs import LogFile, Stream

BLOCK = 64 << 10
_TARGET = re.compile(r"(?P<role>[^/]+)(?:/(?P<index>\d+)(?:\.(?P<worker>\d+))?)?")


class Target(NamedTuple):
    """The workers whose logs are wanted: those of a role, of one replica, or one worker alone."""

    role: str
    replica: int | None = None  # None: all replicas
    worker: int | None = None  # the local rank; None: all workers of the replica


class Log(NamedTuple):
    """One log file. Logs sort by role in the order of the graph, then by replica, attempt, worker and stream."""

    place: tuple[int, int, int, int, str]  # role, replica, attempt, worker and stream, by which logs sort
    name: str  # trainer/0, or trainer/0.1 if a replica has several workers
    attempt: int
    stream: Stream
    path: Path


def parse_target(text: str, graph: RoleGraph) -> Target:
    """Return the workers that a text `ROLE[/REPLICA[.WORKER]]` names; FlowdistError if malformed or unknown."""
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
    """Return the logs in a run's folder, in order; empty `targets`: all workers; `attempt=None`: all attempts."""
    found: list[Log] = []
    for order, spec in enumerate(graph.roles):
        meant = [target for target in targets if target.role == spec.name] if targets else [Target(spec.name)]
        for index in _numbers(run_dir / spec.name) if meant else []:
            workers = [target.worker for target in meant if target.replica in (None, index)]
            found += _logs_of_replica(run_dir, (order, index), spec, workers, streams, attempt)
    return sorted(found)


def _logs_of_replica(
    run_dir: Path,
    replica: tuple[int, int],
    spec: RoleSpec,
    workers: Sequence[int | None],
    streams: Sequence[Stream],
    attempt: int | None,
) -> Iterator[Log]:
    """Yield the logs of one replica; `workers` are the local ranks that are wanted, None among them: all."""
    index = replica[1]
    base = run_dir / spec.name / str(index)
    for number in _numbers(base, "attempt_") if workers else []:
        if attempt not in (None, number):
            continue
        for worker in _numbers(base / f"attempt_{number}"):
            if None not in workers and worker not in workers:
                continue
            name = f"{spec.name}/{index}" if spec.procs == 1 and not worker else f"{spec.name}/{index}.{worker}"
            for stream in streams:
                place = (*replica, number, worker, "0" if stream == "stdout" else "1")
                yield Log(place, name, number, stream, base / f"attempt_{number}" / str(worker) / f"{stream}.log")


def latest_attempts(logs: Sequence[Log]) -> list[Log]:
    """Return those of the logs that belong to the last attempt of their replica in the list."""
    last: dict[tuple[int, int], int] = {}
    for log in logs:
        last[log.place[:2]] = max(last.get(log.place[:2], 0), log.attempt)
    return [log for log in logs if log.attempt == last[log.place[:2]]]


def _numbers(folder: Path, prefix: str = "") -> list[int]:
    """Return the sorted numbers of the folders `<prefix><number>`. Links are left out: they may lead out of the run."""
    if folder.is_symlink():
        return []
    try:
        folders = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    names = [name.removeprefix(prefix) for name in folders if name.startswith(prefix)]
    return sorted(int(name) for name in names if name.isdecimal())


def lines_of(path: Path, last: int | None = None) -> Iterator[str]:
    """Yield the last `last` lines of a file, an incomplete one included; None: all. A missing file has no lines.

    A line of more than 1 MiB is yielded in pieces. Bytes that are not UTF-8 become lone surrogates, so that
    `print_worker_line` can write them unchanged.
    """
    yield from LogFile(path, start_of_last(path, last)).new_lines(final=True)


def start_of_last(path: Path, count: int | None, bytes_max: int | None = None) -> int:
    """Return the offset, in bytes, of the last `count` lines of a file; 0: the whole file (None), or no file.

    The file is searched from its end, `bytes_max` bytes at most: fewer lines follow the offset if that is not enough.
    """
    if count is None or (fd := open_regular(path)) is None:
        return 0
    with os.fdopen(fd, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        if count <= 0 or end == 0:
            return end
        at, newlines = end, 0
        least = 0 if bytes_max is None else max(0, end - bytes_max)
        while at > least:
            size = min(BLOCK, at)
            at -= size
            file.seek(at)
            block = file.read(size)
            if at + size == end and block.endswith(b"\n"):
                newlines -= 1  # no line begins after the newline at the end of the file
            where = len(block)
            while (where := block.rfind(b"\n", 0, where)) >= 0:
                newlines += 1
                if newlines == count:
                    return at + where + 1
        return at


class LogTail:
    """The lines that are added to logs from now on, also to logs of later attempts; arguments as for `find_logs`."""

    def __init__(self, run_dir: Path, graph: RoleGraph, targets: Sequence[Target], streams: Sequence[Stream]) -> None:
        self._what = (run_dir, graph, targets, streams)
        self._files: dict[Log, LogFile] = {}

    def start(self, logs: Sequence[Log], last: int | None) -> None:
        """Begin in `logs` at their last `last` lines (None: all), and in all other logs that exist at their end."""
        for log in find_logs(*self._what):
            self._files[log] = LogFile(log.path, start_of_last(log.path, last if log in logs else 0))

    def find_new_files(self) -> None:
        """Add the logs of attempts that have started since the last call. They are read from their beginning."""
        for log in find_logs(*self._what):
            self._files.setdefault(log, LogFile(log.path))

    def new_lines(self, *, final: bool = False) -> Iterator[tuple[Log, str]]:
        """Yield each line that was added to a log since the last call, with its log; with `final` incomplete lines too.

        Logs that `find_new_files` has not found yet are left out.
        """
        for log, file in self._files.items():
            for line in file.new_lines(final):
                yield log, line
