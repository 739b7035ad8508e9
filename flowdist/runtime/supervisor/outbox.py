"""What a supervisor tells the controllers, one after the other (R21).

A controller may die before it has read what was written to it. What becomes a line of the journal is kept until that
line comes, and what the next controller finds missing is told again; nothing is told to it before it has shown all that
the last one wrote, so that nothing is done or written twice.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

import msgspec

from flowdist.control.protocol.events import ControllerStarted, NodeGone
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.runtime.wire.frames import Injected, Operate, encode


class Writer(Protocol):
    def write(self, data: bytes, /) -> None: ...


class Outbox:
    """`attach` a controller, tell it of every line that is read from it, and `detach` it when it is gone."""

    def __init__(self) -> None:
        self._kept: list[msgspec.Struct] = []  # for the next controller
        self._writer: Writer | None = None
        self._listens = False  # it has shown what the last one wrote

    def attach(self, writer: Writer) -> None:
        self._writer, self._listens = writer, False

    def detach(self) -> None:
        """It reads nothing more: what is said now is for the next one."""
        self._writer, self._listens = None, False

    def say(self, message: msgspec.Struct) -> None:
        """To the controller, as soon as there is one that listens."""
        if not self._listens or isinstance(message, Operate | Injected):
            self._kept.append(message)
        if self._listens:
            self._write(message)

    def hear(self, line: Line) -> None:
        """A line that is new in the journal. After the first that a controller writes itself it is told things."""
        if isinstance(line, Header) or (isinstance(line, Record) and isinstance(line.event, ControllerStarted)):
            self._begin()
        for message in self._kept:
            if _shows(line, message):
                self._kept.remove(message)
                break

    def take_back_gone(self, node: str) -> None:
        """It is started again: that it was gone would be taken for news of its new time."""
        self._kept = [said for said in self._kept if not _says_gone(said, node)]

    def _begin(self) -> None:
        if self._writer is None:
            return
        self._listens = True
        said, self._kept = self._kept, []
        for message in said:
            self.say(message)

    def _write(self, message: msgspec.Struct) -> None:
        if self._writer is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._writer.write(encode(message))


def _shows(line: Line, message: msgspec.Struct) -> bool:
    match message, line:
        case Operate(), Record():
            return message.event == line.event
        case Injected(), FaultLine():
            return (message.spec, message.target) == (line.spec, line.target)
        case _:
            return False


def _says_gone(message: msgspec.Struct, node: str) -> bool:
    return isinstance(message, Operate) and isinstance(message.event, NodeGone) and message.event.node == node
