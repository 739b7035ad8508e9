"""Lines of a record: the journal of a real job, or the trace of a simulated one.

A record is a file of JSON lines. The first line is the header. Then comes one line per event, with the effects that
followed. Three kinds of line are no events and never reach the controller: `fault`, a fault that was injected,
`unsaved`, a checkpoint that was not completed, and at the end of a trace `account`, where the time of the job went. The
controller has to notice faults by itself.

The lines of a journal also have a check at their end, see `reader`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from flowdist.control.protocol.effects import AnswerCheckpoint, Decided, Effect
from flowdist.control.protocol.events import Event
from flowdist.control.protocol.ids import NodeName, WorldName
from flowdist.graph import RoleGraph

# of the lines that are written, and the only one that is read: a new name in an event, an effect or the graph makes it
# a new one. That of the first release is 1.
FORMAT = 1


class Header(msgspec.Struct, frozen=True, tag="header"):
    """First line of a record: what a fresh controller needs to make the same decisions, and how the record was made.

    `known_nodes` are the nodes that the job waits for before its first start. `seed` is the seed of a simulation (0 for
    a run). `options` holds the settings of the simulation or macro mode; the controller does not read it. `format` is
    the version of the lines, see `FORMAT`. `began_at` is the time of the start by the clock of the controller's host,
    `2026-11-25T22:46:58.120+01:00`; empty in a simulation.
    """

    graph: RoleGraph
    known_nodes: tuple[NodeName, ...]
    run_id: str = ""
    options: dict[str, str] = {}
    seed: int = 0
    epoch: int = 1
    format: int = FORMAT
    began_at: str = ""


class Record(msgspec.Struct, frozen=True, gc=False, tag="event"):
    """One event, and the effects by which the controller answered it. `reason` joins the texts of its decisions.

    `n` is the number of the event, from 1 on. `t_ns` is its time in nanoseconds since the start of the job.
    """

    n: int
    t_ns: int
    event: Event
    effects: tuple[Effect, ...] = ()
    reason: str = ""

    @property
    def accepts(self) -> bool:
        """Return whether the event offers a checkpoint, and the controller has accepted it."""
        return any(type(effect) is AnswerCheckpoint and effect.accepted for effect in self.effects)


class FaultLine(msgspec.Struct, frozen=True, tag="fault"):
    """Fault that was injected `t_ns` nanoseconds after the start of the job.

    `spec` is the fault in the fault grammar (`node2@30s`). `target` is what was hit: a node, a replica, a worker or a
    file; if empty, `spec` names it.
    """

    t_ns: int
    spec: str
    target: str = ""

    @property
    def hit(self) -> str:
        """Return the node, replica (`trainer/1`) or worker (`trainer/1.0`) that was hit.

        The target in the journal of a run also names the attempt, `trainer/1/attempt_2/0`: then this is the replica.
        """
        return (self.target or self.spec.partition("@")[0]).partition("/attempt_")[0]


class UnsavedLine(msgspec.Struct, frozen=True, tag="unsaved"):
    """Checkpoint of a world that was due `t_ns` nanoseconds after the start and was not saved, with the reason."""

    t_ns: int
    world: WorldName
    step: int
    reason: str = ""

    @property
    def text(self) -> str:
        """Return the line as a sentence for people."""
        return f"the checkpoint of {self.world} at step {self.step} is not saved: {self.reason}"


class AccountLine(msgspec.Struct, frozen=True, tag="account"):
    """Last line of the trace of a simulation: where the time went up to `t_ns`, as the simulator knows it.

    `spent` is in ns by role and bucket, without zeros. `lost_ns` is the work that was done again, by role: the time of
    its worlds, however many members each has. `unkept` is the work of each generation that was not kept.
    """

    t_ns: int
    spent: dict[str, dict[str, int]]
    lost_ns: dict[str, int] = {}
    unkept: tuple[UnkeptWork, ...] = ()


class UnkeptWork(msgspec.Struct, frozen=True, array_like=True):
    """Work of a generation that was not kept: `ns` of it, up to `until_ns`. `is_unsaved`: nothing does it again."""

    world: WorldName
    generation: int
    until_ns: int
    ns: int
    is_unsaved: bool = False


Line = Header | Record | FaultLine | UnsavedLine | AccountLine

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(Line)


class UnknownFormat(msgspec.DecodeError):
    """The record was written in a format that this version of flowdist does not read."""


class _Version(msgspec.Struct):
    type: str = ""
    format: int = 0


def record(n: int, t_ns: int, event: Event, effects: Iterable[Effect]) -> Record:
    """Build, and do not write, the line of event `n` at `t_ns`; its reason joins the texts of the `Decided` effects."""
    effects = tuple(effects)
    reason = "; ".join([effect.text for effect in effects if type(effect) is Decided]) if effects else ""
    return Record(n, t_ns, event, effects, reason)


def encode_line(line: Line) -> bytes:
    """Return the line as one JSON object with a newline at its end."""
    return _ENCODER.encode(line) + b"\n"


def encode_lines(lines: Sequence[Line]) -> bytes:
    """Return the bytes of all lines in order: the same as joining `encode_line` of each, in a third of the time."""
    return _ENCODER.encode_lines(lines)


def decode_line(data: bytes) -> Line:
    """Decode one line of a record.

    Raises UnknownFormat for the header of another format, DecodeError or UnicodeDecodeError for what is no line of a
    record, and RecursionError for values that are nested too deeply.
    """
    if b'"header"' in data:  # the version alone is decoded first: another format may differ in the other fields as well
        version = msgspec.json.decode(data, type=_Version)
        if version.type == "header" and version.format != FORMAT:
            raise UnknownFormat(f"its format is {version.format}, and this version of flowdist reads format {FORMAT}")
    line: Line = _DECODER.decode(data)
    return line


def digest(lines: Iterable[bytes]) -> str:
    """Return the SHA-256, as hex, of the encoded lines of a record without the first one, the header."""
    total = hashlib.sha256()
    for number, line in enumerate(lines):
        if number:
            total.update(line)
    return total.hexdigest()
