"""The intake of a controller from other hosts: it opens, reads and ends their connections, within `limits`."""

from __future__ import annotations

import asyncio
import contextlib
from weakref import WeakSet

from flowdist.runtime.controller.host_registry import HostRegistry, address_of
from flowdist.runtime.controller.limits import (
    FRAME_MAX,
    UNREAD_MAX,
    UNSENT_MAX,
    WAITING_MAX,
    ByteBudget,
    Connections,
    Pace,
)
from flowdist.runtime.controller.refusals import Refusals
from flowdist.runtime.wire.frames import TO_CONTROLLER, ToControllerFrame
from flowdist.runtime.wire.framing import read_frame
from flowdist.runtime.wire.handshake import HANDSHAKE_S

CLOSE_S = 2.0  # how long a peer has to read what was sent to it, once its connection is over


class Intake:
    """The connections of other hosts, each of which the caller opens, reads and ends here."""

    def __init__(self, hosts: HostRegistry, refusals: Refusals) -> None:
        self._hosts, self._refusals = hosts, refusals
        self._connections: Connections[asyncio.StreamWriter] = Connections(waiting_max=WAITING_MAX)
        self._turns: dict[asyncio.StreamWriter, asyncio.Future[None]] = {}  # of those that wait
        self._budget: ByteBudget[asyncio.StreamWriter] = ByteBudget()
        self._pace = Pace()
        self._dropped: WeakSet[asyncio.StreamWriter] = WeakSet()  # what has arrived on them is not read any more

    async def open(self, writer: asyncio.StreamWriter) -> bool:
        """Add a connection and wait for its turn; return whether there is room. Another may be closed for it."""
        victim = self._connections.opened(writer, address_of(writer))
        if victim is not None:
            self.drop(victim, "too many connections have not joined")
        if victim is writer:
            return False
        turn = self._turns[writer] = asyncio.get_running_loop().create_future()
        self._take_turns()
        if not turn.done():
            assert isinstance(writer.transport, asyncio.Transport)
            writer.transport.pause_reading()
            await turn
            writer.transport.resume_reading()
        return writer not in self._dropped

    def _take_turns(self) -> None:
        """Let connections in for which there is room now."""
        for writer in self._connections.next_turns():
            if (turn := self._turns.pop(writer, None)) is not None and not turn.done():
                turn.set_result(None)

    def admit(self, writer: asyncio.StreamWriter) -> None:
        """Record that a connection has passed the handshake."""
        writer.transport.set_write_buffer_limits(UNREAD_MAX)
        self.note_node(writer)

    def note_node(self, writer: asyncio.StreamWriter) -> None:
        """Record if a connection has a node now, or close it if its address has too many such connections."""
        if not self._hosts.node_of(writer):
            return
        if not self._connections.joined(writer):
            self.drop(writer, "its address has too many connections")
        self._take_turns()

    async def read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ToControllerFrame | None:
        """Wait for the next frame of another host and return its message; None if the connection has ended.

        MsgspecError if it is too long, or no message to the controller; TimeoutError if one without a node is late.
        """
        address, clock = address_of(writer), asyncio.get_running_loop().time

        def note(size: int) -> None:
            if writer in self._dropped:
                raise ConnectionAbortedError
            for each in self._budget.note(writer, address, size):
                self.drop(each, "too many unfinished frames")

        if wait_s := self._pace.wait_s(address, clock()):
            await asyncio.sleep(wait_s)
        if self._hosts.node_of(writer):
            body = await read_frame(reader, FRAME_MAX, note)
        else:
            async with asyncio.timeout(HANDSHAKE_S):
                body = await read_frame(reader, FRAME_MAX, note)
        if body is None or (self._dropped and writer in self._dropped):
            return None
        self._pace.charge(address, len(body), clock())
        return TO_CONTROLLER.decode(body)

    def drop(self, writer: asyncio.StreamWriter, why: str) -> None:
        """Close a connection at once, whatever it still has to send, and note the reason."""
        self._refusals.note(self._hosts.source_of(writer), why)
        self._dropped.add(writer)
        writer.transport.abort()
        if (turn := self._turns.pop(writer, None)) is not None and not turn.done():
            turn.set_result(None)

    async def end(self, writer: asyncio.StreamWriter) -> None:
        """Close a connection that is over. A peer that does not read the rest of its answer loses it."""
        try:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):  # TimeoutError is an OSError
                async with asyncio.timeout(CLOSE_S):
                    await writer.wait_closed()
        finally:
            writer.transport.abort()
            self._budget.forget(writer)
            self._connections.closed(writer)
            self._turns.pop(writer, None)
            self._take_turns()

    def may_send(self, writer: asyncio.StreamWriter) -> bool:
        """Return whether a message may be sent; a peer that has left UNSENT_MAX bytes unread is dropped instead."""
        if not writer.is_closing() and writer.transport.get_write_buffer_size() > UNSENT_MAX:
            self.drop(writer, "it does not read what is sent to it")
        return not writer.is_closing()
