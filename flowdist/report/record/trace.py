"""Text of a record, line by line: the time, what happened and what was decided."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from flowdist.control.protocol.effects import Decided, FinishJob, StartReplica
from flowdist.control.protocol.events import CheckpointOffered, ReplicaExited
from flowdist.record.journal import AccountLine, FaultLine, Header, Line, Record, UnsavedLine
from flowdist.text.printable import one_line

STAMP = 12  # characters of the time that lines begin with
NOT_SHOWN = ("spec", "inventory", "ports")  # fields of events
ROW = 4  # so many checkpoints in a row, and more, share a line


def trace_lines(lines: Iterable[Line]) -> Iterator[str]:
    """Yield the record as lines of text: its decisions, faults, unsaved checkpoints, starts and ends, with times."""
    return (text for line in lines for text, _ in _rows(line))


def _rows(line: Line) -> Iterator[tuple[str, bool]]:
    """Yield each text of a line of the record, and whether it is loud: a fault, a warning or part of an incident."""
    match line:
        case FaultLine():
            yield one_line(f"{stamp(line.t_ns)}  !! {line.spec} hits {line.target}"), True
        case UnsavedLine():
            yield one_line(f"{stamp(line.t_ns)}  !! {line.text}"), True
        case Record():
            yield from ((one_line(f"{stamp(line.t_ns)}  {text}"), is_loud) for text, is_loud in _texts(line))
        case Header() | AccountLine():
            pass


def stamp(ns: int) -> str:
    """Return a time in nanoseconds as ` 1:02:03.456`, with the same width for any time below 100 hours."""
    seconds, ms = divmod(ns // 1_000_000, 1000)
    return f"{seconds // 3600:2d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}"


def _texts(record: Record) -> Iterator[tuple[str, bool]]:
    """Yield the consequences of an event and its effects, if any, without the time, and whether each text is loud."""
    event = record.event
    if isinstance(event, ReplicaExited) and event.kind is None:
        yield f"{event.replica} finished", False
    if isinstance(event, CheckpointOffered) and record.effects:
        yield f"{event.replica} checkpoint {event.path}", False
    starts = [effect for effect in record.effects if isinstance(effect, StartReplica)]
    if starts:
        first = starts[0]
        names = ", ".join(f"{start.replica}@{start.node}" for start in starts)
        workers = f"{first.world_size} worker{'s' * (first.world_size != 1)}"
        yield f"start {names} (generation {first.generation}, {workers})", False
    for effect in record.effects:
        if isinstance(effect, Decided):
            yield effect.text, effect.level != "info" or effect.incident is not None
        elif isinstance(effect, FinishJob):
            yield f"the job has {effect.outcome}" if effect.outcome != "cancelled" else "the job is cancelled", False


def event_lines(line: Line) -> Iterator[str]:
    """Yield an event in short, and below it what followed; for a fault or unsaved checkpoint, its one line."""
    if isinstance(line, Record):
        yield f"{stamp(line.t_ns)}  #{line.n} {event_text(line)}"
        yield from (f"{' ' * 14}-> {text[14:]}" for text in trace_lines([line]))
    else:
        yield from trace_lines([line])


def event_text(record: Record) -> str:
    """Return an event as `ReplicaExited replica=trainer/1 attempt=1 kind=exit`, without fields that say nothing."""
    event = record.event
    fields = {name: getattr(event, name) for name in event.__struct_fields__ if name not in NOT_SHOWN}
    parts = [f"{name}={value}" for name, value in fields.items() if value not in (None, "", 0, ())]
    return one_line(" ".join([type(event).__name__, *parts]))


def shown_lines(lines: Iterable[Line], most: int) -> list[str]:
    """Return the lines of `trace_lines`, shortened to about `most`, and as many faults and incidents in between."""
    texts = [(text, is_loud, line) for line in lines for text, is_loud in _rows(line)]
    if len(texts) <= most:
        return [text for text, _, _ in texts]
    rows = list(_in_rows(texts))
    half = most // 2
    between = rows[half:-half] if len(rows) > most else []
    loud = [text for text, is_loud in between if is_loud]
    shown = [text for text, _ in rows]
    if between:
        more = [f"... and {len(loud) - most} more faults and incidents ..."] if len(loud) > most else []
        of_these = f", of these the faults and incidents: {len(loud)}" if loud else ""
        note = f"... {len(between)} lines{of_these} (--full shows all) ..."
        end = ["... and the end ..."] if loud else []
        return [*shown[:half], note, *loud[:most], *more, *end, *shown[-half:]]
    return shown


def _in_rows(texts: Iterable[tuple[str, bool, Line]]) -> Iterator[tuple[str, bool]]:
    """Yield each text, and whether it is loud; of `ROW` and more checkpoints in a row, the first and a count."""
    for is_checkpoint, group in itertools.groupby(texts, key=lambda row: _is_checkpoint(row[2])):
        row = list(group)
        if not is_checkpoint or len(row) < ROW:
            yield from ((text, is_loud) for text, is_loud, _ in row)
        else:
            yield row[0][0], False
            yield f"{' ' * 14}... {len(row) - 1} more checkpoints, the last at {row[-1][0][:STAMP].strip()}", False


def _is_checkpoint(line: Line) -> bool:
    return isinstance(line, Record) and isinstance(line.event, CheckpointOffered)
