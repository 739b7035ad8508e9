"""The controller's part in fetching logs: it passes each request on to the host, and the host's answer to the asker.

A host has one request at a time, and all hosts together a few: an answer counts against the pace of its host's address
(see `controller.limits`), whose heartbeats must not wait behind logs. Nothing of an answer is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from flowdist.control.protocol.ids import NodeName
from flowdist.runtime.wire.log_messages import FOLLOWED_S, LAST_S, LogAnswer, LogPieces, LogRequest, NoLogs, ReadLogs

ANSWER_S = 5.0  # how long a host may take to answer a request
ASKED_AT_ONCE = 16  # hosts that are asked at one time
WAITING_MAX = 4096  # requests that wait for their turn

Send = Callable[[asyncio.StreamWriter, msgspec.Struct], None]


@dataclass(slots=True, eq=False)
class _Asked:
    """A request that a host has and has not answered yet."""

    request: LogRequest
    connection: asyncio.StreamWriter  # of the host
    asker: asyncio.StreamWriter
    timeout: asyncio.TimerHandle


class LogRelay:
    """The requests for logs of other hosts; `connection_of` a node's host is None if it is not connected."""

    def __init__(self, connection_of: Callable[[NodeName], asyncio.StreamWriter | None], send: Send) -> None:
        self._connection_of, self._send = connection_of, send
        self._asked: dict[NodeName, _Asked] = {}
        self._waiting: dict[int, tuple[LogRequest, asyncio.StreamWriter]] = {}  # by number, the oldest first
        self._last_number = 0
        self._followed_s: dict[NodeName, float] = {}  # when a follower has asked last
        self._read_out: set[NodeName] = set()  # hosts of which a follower has read all after the end of the job

    def ask(self, request: LogRequest, asker: asyncio.StreamWriter) -> None:
        """Pass a request on as soon as it is its turn; the asker gets an answer in any case."""
        if len(self._waiting) >= WAITING_MAX:
            self._send(asker, LogAnswer(0, NoLogs("is not asked: too many requests for logs wait here")))
            return
        self._last_number += 1
        self._waiting[self._last_number] = (request, asker)
        self._ask_next()

    def answer(self, answer: LogAnswer, connection: asyncio.StreamWriter) -> None:
        """Pass an answer on to the asker. One that nobody waits for, because it comes too late, is dropped."""
        for node, asked in self._asked.items():
            if asked.connection is connection and asked.request.number == answer.number:
                self._end(node, answer)
                return

    def disconnected(self, connection: asyncio.StreamWriter) -> None:
        """Answer in the place of a host whose connection has ended."""
        for node in [node for node, asked in self._asked.items() if asked.connection is connection]:
            self._end(node, LogAnswer(0, NoLogs("has lost its connection")))

    async def wait_for_last(self) -> None:
        """Wait until followers have fetched the last lines of all hosts that they follow, at most LAST_S."""
        clock = asyncio.get_running_loop().time
        now = clock()
        followed = {node for node, asked_s in self._followed_s.items() if now - asked_s < FOLLOWED_S}
        while followed - self._read_out and clock() < now + LAST_S:
            await asyncio.sleep(0.01)

    def _ask_next(self) -> None:
        """Pass on each waiting request whose host has no other, as long as not too many hosts are asked."""
        for number, (request, asker) in list(self._waiting.items()):
            if len(self._asked) >= ASKED_AT_ONCE:
                return
            if request.node in self._asked:
                continue
            del self._waiting[number]
            if asker.is_closing():
                continue
            connection = self._connection_of(request.node)
            if connection is None:
                self._send(asker, LogAnswer(0, NoLogs("is not connected")))
                continue
            late = LogAnswer(0, NoLogs(f"has not answered for {ANSWER_S:g} s"))
            timeout = asyncio.get_running_loop().call_later(ANSWER_S, self._end, request.node, late)
            if isinstance(request.query, ReadLogs) and request.query.follows:
                self._followed_s[request.node] = asyncio.get_running_loop().time()
            numbered = msgspec.structs.replace(request, number=number)
            self._asked[request.node] = _Asked(numbered, connection, asker, timeout)
            self._send(connection, numbered)

    def _end(self, node: NodeName, answer: LogAnswer) -> None:
        asked = self._asked.pop(node)
        asked.timeout.cancel()
        query, has_more = asked.request.query, isinstance(answer.content, LogPieces) and answer.content.pieces
        if isinstance(query, ReadLogs) and query.follows and query.final and not has_more:
            self._read_out.add(node)
        self._send(asked.asker, msgspec.structs.replace(answer, number=0))
        self._ask_next()
