"""The supervisor's messages to the controller, which survive the death of a controller (R21).

A message that becomes a line of the journal is kept until that line appears, and sent again to the next controller, but
not before that one has sent all lines of the last one: else a message could be handled twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from flowdist.control.protocol.events import ControllerStarted, NodeGone
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.runtime.wire.frames import Injected, Operate, encode


class Outbox:
    """A queue of messages to the controller: `attach` its connection, `observe` each line, `detach` it when it dies."""

    def __init__(self) -> None:
        self._kept: list[msgspec.Struct] = []  # not sent yet, or sent and not in the journal yet
        self._write: Callable[[bytes], None] | None = None
        self._is_ready = False  # the controller has sent all lines that the last one wrote

    def attach(self, write: Callable[[bytes], None]) -> None:
        """Use a new connection, to which `write` writes, as soon as a line of this controller's own was observed."""
        self._write, self._is_ready = write, False

    def detach(self) -> None:
        """Stop using the connection; messages from now on wait for the next controller."""
        self._write, self._is_ready = None, False

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to the controller; if none is ready, keep it until one is.

        Others than Operate and Injected, which become lines, are lost if the controller dies before it reads them.
        """
        if not self._is_ready or isinstance(message, Operate | Injected):
            self._kept.append(message)
        if self._is_ready and self._write is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._write(encode(message))

    def observe(self, line: Line) -> None:
        """Drop the oldest kept message that a new line records; send the kept ones at a controller's first line."""
        if isinstance(line, Header) or (isinstance(line, Record) and isinstance(line.event, ControllerStarted)):
            self._is_ready = self._write is not None
            waiting, self._kept = self._kept, []
            for message in waiting:
                self.send(message)
        for message in self._kept:
            if _is_recorded_by(line, message):
                self._kept.remove(message)
                break

    def withdraw_gone(self, node: str) -> None:
        """Drop kept messages that the node is gone: they would count for its new incarnation, which starts now."""
        self._kept = [message for message in self._kept if not _reports_gone(message, node)]


def _is_recorded_by(line: Line, message: msgspec.Struct) -> bool:
    match message, line:
        case Operate(), Record():
            return message.event == line.event
        case Injected(), FaultLine():
            return (message.spec, message.target) == (line.spec, line.target)
        case _:
            return False


def _reports_gone(message: msgspec.Struct, node: str) -> bool:
    return isinstance(message, Operate) and isinstance(message.event, NodeGone) and message.event.node == node
