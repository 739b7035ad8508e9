"""Fetching of other hosts' logs for a user, through the controller: what a host sends is checked and bounded here.

A host may send anything: logs of others, wrong sizes, lines without end, one byte at a time. It gets no more than the
bytes, lines and requests that an honest host needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.runtime.run_folder.logs import CUT, PIECE_BYTES
from flowdist.runtime.run_folder.runs import ControllerLink
from flowdist.runtime.wire.frames import encode
from flowdist.runtime.wire.framing import LineBuffer
from flowdist.runtime.wire.log_messages import (
    ASKED_MAX,
    LISTED_MAX,
    Attempt,
    ListedLog,
    ListLogs,
    LogAnswer,
    LogList,
    LogName,
    LogPieces,
    LogRequest,
    NoLogs,
    ReadLogs,
)
from flowdist.runtime.wire.log_messages import PIECE_BYTES as ANSWER_BYTES

BYTES_MAX = 16 << 20  # of one log, unless the user wants more
LINES_MAX = 1_000_000  # of one log, in one command that does not follow it
WORKERS_MAX = 1 << 12  # of a replica
ATTEMPTS_AT_ONCE = 100  # in one request for a list
READS_AT_ONCE = 16  # requests to one host for one look at logs that grow


Ask = Callable[[LogRequest], LogList | LogPieces | NoLogs]  # raises FlowdistError if no controller answers


class NotFetched(FlowdistError):
    """Logs of a host cannot be fetched, or no more of them. The text begins with the host."""


Place = tuple[int, int, int, int, str]  # role, replica, attempt, worker and stream, as in `log_reader.Log`


class RemoteLog(NamedTuple):
    """One log of another host. `place` and `text` are as those of a `Log` of this host: its order, and its worker."""

    place: Place
    text: str
    node: NodeName
    name: LogName
    size: int
    start: int  # where the lines begin that are wanted


def asker(link: ControllerLink) -> Ask:
    """Return a function that asks one host through the controller. The caller closes the link."""

    def ask_host(request: LogRequest) -> LogList | LogPieces | NoLogs:
        answer = link.ask(encode(request))
        assert isinstance(answer, LogAnswer)
        return answer.content

    return ask_host


class HostLogs:
    """The logs of the host of one node that are `wanted`, at most the last `bytes_max` bytes of each."""

    def __init__(
        self,
        ask: Ask,
        graph: RoleGraph,
        node: NodeName,
        bytes_max: int = BYTES_MAX,
        wanted: Callable[[LogName], bool] = lambda name: True,
    ) -> None:
        self._ask_host, self.node, self._bytes_max, self._wanted = ask, node, bytes_max, wanted
        self._order = {role.name: (number, role.procs) for number, role in enumerate(graph.roles)}

    def find(self, attempts: Sequence[Attempt], last: int | None) -> list[RemoteLog]:
        """Return the logs of these attempts, with the `last` lines of each (None: all); NotFetched if that fails."""
        found: dict[LogName, RemoteLog] = {}
        for first in range(0, len(attempts), ATTEMPTS_AT_ONCE):
            asked = tuple(attempts[first : first + ATTEMPTS_AT_ONCE])
            content = self._ask(ListLogs(asked, self._bytes_max, last))
            if not isinstance(content, LogList) or len(content.logs) > LISTED_MAX:
                raise self._error("sends something else than its logs")
            if not content.is_whole:
                raise self._error("has too many logs: name replicas or an attempt")
            for listed in content.logs:
                found[listed.name] = self._checked(listed, asked)
        return sorted(log for name, log in found.items() if self._wanted(name))

    def _checked(self, listed: ListedLog, asked: Iterable[Attempt]) -> RemoteLog:
        name, (replica, number) = listed.name, (listed.name.attempt.replica, listed.name.attempt.number)
        if name.attempt not in asked or not 0 <= name.worker < WORKERS_MAX or not 0 <= listed.start <= listed.size:
            raise self._error("names logs that it cannot have")
        order, procs = self._order[replica.role]
        text = f"{replica}" if procs == 1 and not name.worker else f"{replica}.{name.worker}"
        place = (order, replica.index, number, name.worker, "0" if name.stream == "stdout" else "1")
        return RemoteLog(place, text, self.node, name, listed.size, listed.start)

    def lines(self, log: RemoteLog) -> Iterator[str]:
        """Yield the lines of a log from its `start` on, an incomplete one included; NotFetched if the host fails."""
        reader, count, fetched = _Reader(log.start), 0, 0
        for _ in range(2 * self._bytes_max // ANSWER_BYTES + 4):
            pieces = self.read([(log.name, reader)], final=True)
            if not pieces or fetched > self._bytes_max:
                yield from reader.rest()
                return
            for _, data, lines in pieces:
                fetched += data
                count += len(lines)
                yield from lines
            if count > LINES_MAX:
                raise self._error(f"has more than {LINES_MAX:,} lines in {log.text}: see the last ones with -n")
        raise self._error("sends too little at a time")

    def read(
        self, readers: Sequence[tuple[LogName, _Reader]], *, final: bool, follows: bool = False
    ) -> list[tuple[LogName, int, list[str]]]:
        """Read a piece of each of the logs that has more; return its name, its size in bytes and its lines."""
        wanted = dict(readers)
        places = tuple((name, reader.offset) for name, reader in readers)
        content = self._ask(ReadLogs(places, final, follows))
        if not isinstance(content, LogPieces):
            raise self._error("sends something else than its logs")
        found = []
        for piece in content.pieces:
            reader = wanted.pop(piece.name, None)
            if reader is None or piece.end <= reader.offset or not piece.data:
                raise self._error("sends something else than its logs")
            found.append((piece.name, len(piece.data), reader.feed(piece.data, piece.end)))
        return found

    def _ask(self, query: ListLogs | ReadLogs) -> LogList | LogPieces:
        try:
            content = self._ask_host(LogRequest(self.node, query))
        except FlowdistError as error:
            raise NotFetched(f"{self.node} cannot be asked: {error.message}") from None
        if isinstance(content, NoLogs):
            raise self._error(content.why)
        return content

    def _error(self, why: str) -> NotFetched:
        return NotFetched(f"{self.node} {why[:200]}")


class _Reader:
    """The place up to which a log was read, and the line of it that is not complete yet."""

    def __init__(self, offset: int) -> None:
        self.offset, self._lines = offset, LineBuffer()

    def feed(self, data: bytes, end: int) -> list[str]:
        self.offset = end
        lines = [line.decode(errors="surrogateescape") for line in self._lines.feed(data)]
        if self._lines.waiting >= PIECE_BYTES:
            lines.append(self._lines.flush().decode(errors="surrogateescape") + CUT)
        return lines

    def rest(self) -> list[str]:
        partial = self._lines.flush()
        return [partial.decode(errors="surrogateescape")] if partial else []


class HostTail:
    """New lines in the logs of one host."""

    def __init__(self, logs: HostLogs) -> None:
        self._host = logs
        self._readers: dict[LogName, tuple[RemoteLog, _Reader]] = {}  # those that were read longest ago come first
        self._left: set[LogName] = set()  # of attempts that have a successor: they are read once more

    def start(self, logs: Iterable[RemoteLog]) -> None:
        """Follow these logs from their `start` on."""
        self._readers |= {log.name: (log, _Reader(log.start)) for log in logs}

    def follows(self, latest: dict[ReplicaId, int]) -> bool:
        """Return whether one of these logs is of the last attempt of its replica."""
        return any(latest.get(name.attempt.replica) == name.attempt.number for name in self._readers)

    def find_new(self, attempts: Sequence[Attempt], latest: dict[ReplicaId, int]) -> set[Place]:
        """Follow the logs of these attempts, too, and of replaced ones no longer; return all places, or NotFetched."""
        gone = {name for name in self._readers if latest.get(name.attempt.replica) != name.attempt.number}
        for name in gone & self._left:
            del self._readers[name]
        self._left = gone - self._left
        running = [each for each in attempts if latest.get(each.replica) == each.number]
        self.start(log for log in self._host.find(running, None) if log.name not in self._readers)
        return {log.place for log, _ in self._readers.values()}

    def new_lines(self, *, final: bool = False) -> Iterator[tuple[RemoteLog, str]]:
        """Yield the lines since the last call, with `final` incomplete ones, too; NotFetched without an answer."""
        for _ in range(READS_AT_ONCE):
            places = [(name, reader) for name, (_, reader) in list(self._readers.items())[:ASKED_MAX]]
            found = self._host.read(places, final=final, follows=True) if places or final else []
            for name, _, lines in found:
                entry = self._readers[name] = self._readers.pop(name)  # the next turn is that of other logs
                for line in lines:
                    yield entry[0], line
            if not found:
                break
        for log, reader in self._readers.values() if final else ():
            for line in reader.rest():
                yield log, line
