"""A record as lines for people: the time, what happened, what was decided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flowdist.control.effects import FinishJob, Notify, StartReplica
from flowdist.control.events import CheckpointOffered, ReplicaExited
from flowdist.control.history import FaultLine, Header, Line, Record, UnsavedLine


def trace_lines(lines: Iterable[Line]) -> Iterator[str]:
    """Decisions, faults, starts and ends; what merely runs is left out."""
    for line in lines:
        match line:
            case FaultLine():
                yield f"{stamp(line.t_ns)}  !! {line.spec} hits {line.target}"
            case UnsavedLine():
                yield f"{stamp(line.t_ns)}  !! {line.text}"
            case Record():
                yield from (f"{stamp(line.t_ns)}  {text}" for text in _texts(line))
            case Header():
                pass


def stamp(ns: int) -> str:
    """`1:02:03.456`, as wide for any time below 100 hours."""
    seconds, ms = divmod(ns // 1_000_000, 1000)
    return f"{seconds // 3600:2d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}"


def _texts(record: Record) -> Iterator[str]:
    event = record.event
    if isinstance(event, ReplicaExited) and event.kind is None:
        yield f"{event.replica} finished"
    if isinstance(event, CheckpointOffered) and record.effects:
        yield f"{event.replica} checkpoint {event.path}"
    starts = [effect for effect in record.effects if isinstance(effect, StartReplica)]
    if starts:
        first = starts[0]
        names = ", ".join(f"{start.replica}@{start.node}" for start in starts)
        yield f"start {names} (generation {first.generation}, {first.world_size} workers)"
    for effect in record.effects:
        if isinstance(effect, Notify):
            yield effect.text
        elif isinstance(effect, FinishJob):
            yield f"the job has {effect.outcome}" if effect.outcome != "cancelled" else "the job is cancelled"


def event_lines(line: Line) -> Iterator[str]:
    """The event in short, then what followed from it; what is no event by itself."""
    if isinstance(line, Record):
        yield f"{stamp(line.t_ns)}  #{line.n} {event_text(line)}"
        yield from (f"{' ' * 14}-> {text[14:]}" for text in trace_lines([line]))
    else:
        yield from trace_lines([line])


def event_text(record: Record) -> str:
    """`ReplicaExited replica=trainer/1 attempt=1 kind=exit`: the name and what is not the default."""
    event = record.event
    parts = []
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name in ("spec", "inventory", "ports") or value in (None, "", 0, ()):
            continue
        parts.append(f"{name}={value}")
    return " ".join([type(event).__name__, *parts])


def summarise_quiet(lines: list[str], most: int) -> list[str]:
    """The first and last lines of a long trace, and how many lie between."""
    if len(lines) <= most:
        return lines
    half = most // 2
    return [*lines[:half], f"... {len(lines) - 2 * half} lines more (--full shows them) ...", *lines[-half:]]
