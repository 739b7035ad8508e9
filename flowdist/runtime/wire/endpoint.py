"""Where hosts meet: the place of the controller, and the last words of a guardian to it.

Without asyncio: a guardian is small.
"""

from __future__ import annotations

import contextlib
import socket

import msgspec

from flowdist.control.protocol.ids import NodeName
from flowdist.runtime.wire.addresses import Endpoint
from flowdist.runtime.wire.handshake import CALLING, FRAME_MAX, Accepted, ClientHandshake, TurnedAway, encode

INCARNATIONS = 1000  # of a node's agent, within one life of its guardian
LAST_WORDS_S = 2.0
UNACKED_MS = 10_000  # what was sent and nobody has acknowledged for so long ends the connection


class DeathProof(msgspec.Struct, frozen=True, tag=True):
    """The guardian of a node on another host: nothing of its incarnations up to this one runs any more."""

    node: NodeName
    incarnation: int
    cause: str


class Meeting(msgspec.Struct, frozen=True):
    """Where the controller listens, for which job, in which run; without a run: whichever there is."""

    host: str
    port: int
    job: str
    run: str = ""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)


def keep_alive(connection: socket.socket) -> None:
    """A connection whose other end has gone without a word ends by itself, and small frames go at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_MS)


def say_gone(meeting: Meeting, token: str, node: str, incarnation: int, cause: str) -> None:
    """The last words of a guardian: nothing of its node runs any more (R19). If nobody hears, the lease will tell."""
    with contextlib.suppress(OSError, TurnedAway, ValueError):
        _say(meeting, token, DeathProof(node, incarnation, cause))


def _say(meeting: Meeting, token: str, gone: DeathProof) -> None:
    with socket.create_connection((meeting.host, meeting.port), LAST_WORDS_S) as connection:
        caller = ClientHandshake(meeting.job, meeting.run, token)
        connection.sendall(encode(caller.hello))
        connection.sendall(encode(caller.answer(CALLING.decode(_frame(connection)))))
        if not isinstance(CALLING.decode(_frame(connection)), Accepted):
            return
        connection.sendall(encode(gone))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 12):  # it hangs up when it has heard
            pass


def _frame(connection: socket.socket) -> bytes:
    length = int.from_bytes(_exactly(connection, 4), "big")
    if length > FRAME_MAX:
        raise ValueError("that is no greeting")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("it hung up")
        data += more
    return data
