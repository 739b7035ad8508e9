"""The logs of a joined host, as it sends them to the host with the controller: bounded, masked, and no other file."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from flowdist.graph import RoleGraph, RoleSpec
from flowdist.runtime.left_files import read_from, size_of
from flowdist.runtime.run_folder.log_reader import start_of_last
from flowdist.runtime.wire.log_messages import (
    ASKED_MAX,
    FOLLOWED_S,
    LAST_S,
    LINES_SOUGHT_BYTES,
    LISTED_MAX,
    PIECE_BYTES,
    Attempt,
    ListedLog,
    ListLogs,
    LogAnswer,
    LogList,
    LogName,
    LogPiece,
    LogPieces,
    LogRequest,
    NoLogs,
    ReadLogs,
    Stream,
)
from flowdist.runtime.worker_env.secret_values import Mask

SHARE_BYTES = PIECE_BYTES // 16  # at least so much of a log that has more, so that a line is seldom cut
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


class LogServer:
    """Answers requests for the logs in the folder of a run; `mask` hides the values of secrets.

    A request names roles, replicas and workers, which are checked against the graph, and no paths. A log that a worker
    has replaced by a link out of the folder is left out.
    """

    def __init__(self, run_dir: Path, graph: RoleGraph, mask: Mask) -> None:
        self._run_dir, self._mask = run_dir.resolve(), mask
        self._followed_s = -math.inf  # when a follower has asked last, on the monotonic clock
        self._is_read = asyncio.Event()  # a follower has read all after the end of the job
        self._roles: dict[str, RoleSpec] = {role.name: role for role in graph.roles}

    def answer(self, request: LogRequest) -> LogAnswer:
        """Return the answer to a request. It is `NoLogs` if the request asks for too much at once."""
        content: LogList | LogPieces | NoLogs
        match request.query:
            case ListLogs(attempts) as query if len(attempts) <= ASKED_MAX:
                content = self._list(query)
            case ReadLogs(places) as query if len(places) <= ASKED_MAX:
                content = self._read(query)
                self._note_follower(query, content)
            case _:
                content = NoLogs(f"answers for {ASKED_MAX} attempts or logs at once")
        return LogAnswer(request.number, content)

    def _note_follower(self, query: ReadLogs, content: LogPieces) -> None:
        if query.follows:
            self._followed_s = time.monotonic()
            if query.final and not content.pieces:
                self._is_read.set()

    async def wait_for_last(self) -> None:
        """Wait until followers have fetched the last lines, at most LAST_S: this host would often be gone before."""
        if time.monotonic() - self._followed_s < FOLLOWED_S:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_read.wait(), LAST_S)

    def _list(self, query: ListLogs) -> LogList:
        logs: list[ListedLog] = []
        sought = LINES_SOUGHT_BYTES
        for name, path in self._logs_of(query.attempts):
            if len(logs) == LISTED_MAX:
                return LogList(tuple(logs), is_whole=False)
            size = size_of(path)
            start = start_of_last(path, query.last, max(sought, PIECE_BYTES))
            sought -= size - start if query.last is not None else 0
            logs.append(ListedLog(name, size, _line_after(path, max(start, size - query.bytes_max, 0))))
        return LogList(tuple(logs))

    def _logs_of(self, attempts: Iterable[Attempt]) -> Iterator[tuple[LogName, Path]]:
        for attempt in attempts:
            role = self._roles.get(attempt.replica.role)
            for worker in range(role.procs) if role is not None else ():
                for stream in STREAMS:
                    name = LogName(attempt, worker, stream)
                    if (path := self._path(name)) is not None:
                        yield name, path

    def _path(self, name: LogName) -> Path | None:
        """Return the path of a log; None if the job has no such worker, or nothing of it is in the folder."""
        replica, number = name.attempt.replica, name.attempt.number
        role = self._roles.get(replica.role)
        if role is None or not (
            0 <= replica.index < role.max_replicas and number > 0 and 0 <= name.worker < role.procs
        ):
            return None
        folder = self._run_dir / role.name / str(replica.index) / f"attempt_{number}" / str(name.worker)
        try:
            path = (folder / f"{name.stream}.log").resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # RuntimeError: a link to itself
            return None
        return path if path.is_relative_to(self._run_dir) else None

    def _read(self, query: ReadLogs) -> LogPieces:
        growing = []
        for name, offset in query.places:
            path = self._path(name)
            if path is not None and 0 <= offset < size_of(path):
                growing.append((name, path, offset))
        share, left = max(SHARE_BYTES, PIECE_BYTES // max(1, len(growing))), PIECE_BYTES
        pieces = []
        for name, path, offset in growing:
            data = self._piece(path, offset, share, query.final)
            if data and len(data) <= left:
                left -= len(data)
                pieces.append(LogPiece(name, self._masked(data), offset + len(data)))
            elif data:
                break
        return LogPieces(tuple(pieces))

    def _piece(self, path: Path, offset: int, share: int, final: bool) -> bytes:
        """Return whole lines of a log from `offset` on, about `share` bytes. A line of over PIECE_BYTES is cut."""
        data = read_from(path, offset, share) or b""
        if len(data) == share and b"\n" not in data:
            data = read_from(path, offset, PIECE_BYTES * 2) or b""
            if b"\n" not in data[:PIECE_BYTES] and len(data) > PIECE_BYTES:
                return data[: self._cut(data)]
            data = data[:PIECE_BYTES]
            return data[: data.find(b"\n") + 1] or (data if final else b"")
        is_end = final and len(data) < share
        return data if is_end else data[: data.rfind(b"\n") + 1]

    def _cut(self, data: bytes) -> int:
        """Return where to cut a long line, at most at PIECE_BYTES: in no character and in no value of a secret."""
        at = PIECE_BYTES
        while at > PIECE_BYTES - 4 and data[at] & 0xC0 == 0x80:  # inside of a character of UTF-8
            at -= 1
        before = data[:at].decode(errors="surrogateescape")
        text = data.decode(errors="surrogateescape")
        kept = text[: self._mask.cut(text, len(before))]
        return len(kept.encode(errors="surrogateescape"))

    def _masked(self, data: bytes) -> bytes:
        text = data.decode(errors="surrogateescape")
        return self._mask(text).encode(errors="surrogateescape")


def _line_after(path: Path, offset: int) -> int:
    """Return where the first line begins at `offset` or later; `offset` itself if that is inside of a long line."""
    if offset == 0:
        return 0
    before = read_from(path, offset - 1, PIECE_BYTES) or b""
    return offset + before.find(b"\n") if b"\n" in before else offset
