"""A record in a few lines: when what went wrong began, what followed, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from flowdist.control.protocol.effects import Decided, FinishJob, StartReplica
from flowdist.control.protocol.events import (
    CheckpointOffered,
    ReplicaExited,
    ReplicaProgressed,
    ReplicaStalled,
    ReplicaStepped,
)
from flowdist.faults.grammar import KINDS, parse_fault
from flowdist.graph import SECOND, format_duration, parse_duration
from flowdist.record.journal import FaultLine, Line, Record

FIRST, LATER, LAST = 0, 1, 2  # how important a moment is; the least important are left out first
MISSED = {"start": "has reported no first step", "progress": "has reported no step", "output": "has written nothing"}


class Moment(NamedTuple):
    """One line of a short timeline: its time in ns, its text, and its importance (`FIRST` to `LAST`).

    `what` is the name of the decision that it tells of; empty: it tells of something else.
    """

    t_ns: int
    text: str
    rank: int
    what: str = ""


def brief_timeline(lines: Iterable[Line], most: int) -> list[str]:
    """Return what a record shows, in lines such as `12s  trainer/0 has reported no first step for 10s`.

    Faults, failures and the end of the job are more important than starts and stalls, and these more than steps and
    checkpoints. Moments that do not fit are left out, the least important and latest first.

    Args:
        lines: The record.
        most: Number of lines.
    """
    moments = list(_without_repeats(list(_moments(lines))))
    best = sorted(range(len(moments)), key=lambda i: (moments[i].rank, i))[:most]
    shown = [moments[i] for i in sorted(best)]
    stamps = [_stamp(moment.t_ns) for moment in shown]
    width = max(map(len, stamps), default=0)
    return [f"{stamp:>{width}}  {moment.text}" for stamp, moment in zip(stamps, shown, strict=True)]


def _without_repeats(moments: Sequence[Moment]) -> Iterator[Moment]:
    """Yield the moments, but of several that say the same of different replicas at one time only the first.

    A final failure is left out if the end of the job follows, which repeats it as its reason.
    """
    said: tuple[int, str] = (-1, "")
    for moment, later in zip_longest(moments, moments[1:]):
        says = (moment.t_ns, moment.text.partition(" ")[2])
        repeats = says == said and not moment.what
        if not repeats and not (moment.what == "failure_final" and later is not None and later.what == "job_failed"):
            yield moment
        said = says


def _stamp(ns: int) -> str:
    """Return a time in words, rounded to milliseconds in the first ten seconds, and to tenths of a second after."""
    digits = -6 if ns < 10 * SECOND else -8
    return format_duration(round(ns, digits))


def _moments(lines: Iterable[Line]) -> Iterator[Moment]:
    """Yield the moments of a record in their order."""
    stepped: set[tuple[str, int]] = set()  # attempts that have reported a step
    has_started = has_fault = False
    for line in lines:
        if isinstance(line, FaultLine):
            fault = parse_fault(line.spec)
            arg = format_duration(parse_duration(fault.arg)) if KINDS[fault.kind] == "duration" else fault.arg
            kind = f"{fault.kind}={arg}" if arg else fault.kind
            back = f", for {format_duration(fault.duration_ns)}" if fault.duration_ns else ""
            yield Moment(line.t_ns, f"fault {kind} hits {line.target}{back}", LATER if has_fault else FIRST)
            has_fault = True
        elif isinstance(line, Record):
            yield from _of_event(line, stepped)
            starts = [effect for effect in line.effects if isinstance(effect, StartReplica)]
            if starts:
                names = ", ".join(str(start.replica) for start in starts)
                yield Moment(line.t_ns, f"{names} start{'s' * (len(starts) == 1)}", LATER if has_started else FIRST)
                has_started = True
            yield from _of_effects(line)


def _of_event(line: Record, stepped: set[tuple[str, int]]) -> Iterator[Moment]:
    """Yield the moment that an event is: a stall, the first step of an attempt, a checkpoint, an end."""
    match line.event:
        case ReplicaStalled(replica=replica, by=by, for_ns=limit):
            yield Moment(line.t_ns, f"{replica} {MISSED[by]} for {format_duration(limit)}", LATER)
        case ReplicaProgressed(replica=replica, attempt=attempt, step=step) if step > 0:
            if (str(replica), attempt) not in stepped:
                stepped.add((str(replica), attempt))
                yield Moment(line.t_ns, f"{replica} reports step {step}", LAST)
        case ReplicaStepped(replica=replica, attempt=attempt, steps=steps):
            if (str(replica), attempt) not in stepped:
                stepped.add((str(replica), attempt))
                yield Moment(line.t_ns, f"{replica} has taken {steps} optimizer step{'s' * (steps > 1)}", LAST)
        case CheckpointOffered(replica=replica, path=path):
            yield Moment(line.t_ns, f"{replica} has saved {path}", LAST)
        case ReplicaExited(replica=replica, kind=kind) as event if kind is not None:
            how = f"signal SIG{event.signal}" if event.signal else f"exit code {event.exit_code}"
            yield Moment(line.t_ns, f"{replica} ends ({how}{f': {event.detail}' * bool(event.detail)})", LATER)
        case _:
            pass


def _of_effects(line: Record) -> Iterator[Moment]:
    """Yield what the controller tells the user in its own words, and the end of the job."""
    for effect in line.effects:
        match effect:
            case Decided(what=what, text=text, level=level):
                if level != "info":
                    yield Moment(line.t_ns, text, LAST if what == "node_suspect" else FIRST, what)
                elif effect.incident is not None or what in ("step_agreed", "replica_ready"):
                    yield Moment(line.t_ns, text, LATER, what)
            case FinishJob(outcome=outcome):
                yield Moment(line.t_ns, f"the job has {outcome}", LAST)
            case _:
                pass
