"""The record of a job: a journal when it was real, a trace when it was simulated. The same lines for both.

JSON lines. The first is the header; then one line an event with all that followed from it, and a `fault` line for
each fault that was carried out, which replay skips: control is never told of a fault and must notice. So it does with
`unsaved` lines, of checkpoints that came to nothing: nobody offers them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from flowdist.control.protocol.effects import Effect, Notify
from flowdist.control.protocol.events import Event
from flowdist.control.protocol.ids import NodeName, WorldName
from flowdist.graph import RoleGraph


class Header(msgspec.Struct, frozen=True, tag="header"):
    """What a fresh controller needs to make the same decisions. `options` is free for the driver."""

    graph: RoleGraph
    known_nodes: tuple[NodeName, ...]
    run_id: str = ""
    options: dict[str, str] = {}
    seed: int = 0
    epoch: int = 1
    format: int = 1


class Record(msgspec.Struct, frozen=True, gc=False, tag="event"):
    """One event and what followed from it. `reason` is what the controller said about its decision."""

    n: int
    t_ns: int
    event: Event
    effects: tuple[Effect, ...] = ()
    reason: str = ""


class FaultLine(msgspec.Struct, frozen=True, tag="fault"):
    """A fault was carried out here. `spec` is its spelling in the fault grammar."""

    t_ns: int
    spec: str
    target: str = ""


class UnsavedLine(msgspec.Struct, frozen=True, tag="unsaved"):
    """A checkpoint was to be written here, and is not whole. `reason` is for people."""

    t_ns: int
    world: WorldName
    step: int
    reason: str = ""

    @property
    def text(self) -> str:
        return f"the checkpoint of {self.world} at step {self.step} is not saved: {self.reason}"


Line = Header | Record | FaultLine | UnsavedLine

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(Line)


def record(n: int, t_ns: int, event: Event, effects: Iterable[Effect]) -> Record:
    """The line for one event; its reason is what the effects say in words."""
    effects = tuple(effects)
    reason = "; ".join([effect.text for effect in effects if type(effect) is Notify]) if effects else ""
    return Record(n, t_ns, event, effects, reason)


def encode_line(line: Line) -> bytes:
    """One JSON object and a newline."""
    return _ENCODER.encode(line) + b"\n"


def encode_lines(lines: Sequence[Line]) -> bytes:
    """As `encode_line` does one by one, in a third of the time."""
    return _ENCODER.encode_lines(lines)


def decode_lines(data: Iterable[bytes]) -> Iterator[Line]:
    """Raises msgspec.DecodeError for what is no record; a half-written last line is the caller's to cut."""
    for line in data:
        if line.strip():
            yield _DECODER.decode(line)


def read_whole_lines(data: bytes) -> tuple[list[Line], int]:
    """The lines of a record, and how many bytes they are; what a crash has left of a last one does not count.

    Raises msgspec.DecodeError for a line that is whole and no record.
    """
    whole = data.rfind(b"\n") + 1
    return list(decode_lines(data[:whole].splitlines())), whole


def digest(lines: Iterable[bytes]) -> str:
    """SHA-256 of all encoded lines but the header, as hex."""
    total = hashlib.sha256()
    for number, line in enumerate(lines):
        if number:
            total.update(line)
    return total.hexdigest()
