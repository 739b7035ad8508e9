"""Messages by which the logs of another host are fetched: a command asks, the controller relays, the host answers.

A log has a structured name and no path: the host makes that itself, in its own folder of the run. Each request has one
answer of bounded size, so that no process between them has to keep a log.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flowdist.control.protocol.ids import NodeName, ReplicaId

PIECE_BYTES = 64 << 10  # of logs in one answer, before secrets are masked
LISTED_MAX = 4000  # logs in one answer
ASKED_MAX = 1000  # attempts or logs in one request
FOLLOWED_S = 3.0  # logs that a follower has asked for so recently are followed
LAST_S = 1.5  # how long controller and hosts wait at the end of a job for the last requests of followers
LINES_SOUGHT_BYTES = 16 << 20  # how far a host looks back for the last lines of a log

Stream = Literal["stdout", "stderr"]


class Attempt(msgspec.Struct, frozen=True):
    """One attempt of a replica."""

    replica: ReplicaId
    number: int


class LogName(msgspec.Struct, frozen=True):
    """The name of one log: the output of one worker of an attempt, by its local rank."""

    attempt: Attempt
    worker: int
    stream: Stream


class ListLogs(msgspec.Struct, frozen=True, tag=True):
    """Query for the logs of these attempts: the `last` lines (None: all) of their last `bytes_max` bytes."""

    attempts: tuple[Attempt, ...]
    bytes_max: int
    last: int | None = None


class ReadLogs(msgspec.Struct, frozen=True, tag=True):
    """Query for what these logs have from these offsets on, in bytes; with `final`, an incomplete last line too.

    An asker that `follows` asks until the job is over, and then with `final` until there is no more.
    """

    places: tuple[tuple[LogName, int], ...]
    final: bool = False
    follows: bool = False


class LogRequest(msgspec.Struct, frozen=True, tag=True):
    """A query about the logs on the host of a node. The controller gives it a number, which the host repeats."""

    node: NodeName
    query: ListLogs | ReadLogs
    number: int = 0


class ListedLog(msgspec.Struct, frozen=True):
    """One log: its name, its size in bytes, and the offset at which the lines begin that are wanted."""

    name: LogName
    size: int
    start: int


class LogList(msgspec.Struct, frozen=True, tag=True):
    """Answer to `ListLogs`. If there are too many logs, `is_whole` is false."""

    logs: tuple[ListedLog, ...]
    is_whole: bool = True


class LogPiece(msgspec.Struct, frozen=True):
    """A piece of a log, with secrets masked, and the offset in the log at which it ends."""

    name: LogName
    data: bytes
    end: int


class LogPieces(msgspec.Struct, frozen=True, tag=True):
    """Answer to `ReadLogs`: pieces of those logs that have more, PIECE_BYTES in all. None: there is no more."""

    pieces: tuple[LogPiece, ...]


class NoLogs(msgspec.Struct, frozen=True, tag=True):
    """Answer that a host cannot answer a query of logs, with a predicate about it: "is not connected"."""

    why: str


class LogAnswer(msgspec.Struct, frozen=True, tag=True):
    """Answer to the `LogRequest` of this number."""

    number: int
    content: LogList | LogPieces | NoLogs
