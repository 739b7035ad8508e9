"""Replay: the job that a record describes, rebuilt by a fresh controller from the events of the record (R21).

The controller is deterministic. A record that was edited, or written by a version that decided otherwise, means nothing
from the first event whose effects differ. `BadLine` names the line of an event that cannot be recorded or handled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple, Self

import msgspec

from flowdist.control.controller import Controller
from flowdist.control.job.state import JobState
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AnswerCheckpoint, Decided, Effect, FinishJob
from flowdist.control.protocol.ids import OfAttempt
from flowdist.errors import FlowdistError
from flowdist.record.journal import Header, Line, Record, record
from flowdist.record.reader import JOURNAL, BadLine
from flowdist.record.status import RecentDecisions
from flowdist.record.timesheet import Timesheet

HELP = "use the version of flowdist that wrote the record; flowdist replay shows what it holds"


class ReplayError(FlowdistError):
    """The controller of this version of flowdist decides otherwise than the record says."""


class Difference(NamedTuple):
    """Event of a record for which a fresh controller decided otherwise: on `decided` instead of on `line.effects`."""

    line: Record
    decided: tuple[Effect, ...]

    @property
    def is_wording(self) -> bool:
        """Return whether only messages differ, as between versions of flowdist, and every order is the same."""
        return _without_words(self.line.effects) == _without_words(self.decided)

    @property
    def text(self) -> str:
        """Return one line for people: the event, the first effect that differs, and what was decided instead."""
        pairs = zip_longest(self.line.effects, self.decided)
        recorded, decided = next((one, other) for one, other in pairs if one != other)
        where = f"event {self.line.n} ({type(self.line.event).__name__}) does not replay"
        said, now = _brief(recorded, decided), _brief(decided, recorded)
        return f"{where}: the record says {said}, this version of flowdist decides {now}"


class Replay:
    """Controller, time accounts and recent decisions of one job, rebuilt from its record one line at a time.

    `last` is the last event, `n` its number and `t_ns` its time; None, 0 and 0 before the first. `difference` is the
    first event whose recorded effects the controller did not repeat: with `strict` a ReplayError.
    """

    def __init__(self, header: Header, *, strict: bool = False, source: str = JOURNAL) -> None:
        self.controller = Controller(header.graph, header.known_nodes)
        self.sheet = Timesheet(self.controller.state)
        self.decisions = RecentDecisions()
        self.last: Record | None = None
        self.n = self.t_ns = 0
        self.difference: Difference | None = None
        self._is_strict = strict
        self._source, self._lines = source, 1

    @property
    def job(self) -> JobState:
        """Return the state of the job after the last event so far; the next line changes it in place."""
        return self.controller.state

    @property
    def n_different(self) -> int | None:
        """Return the number of the event in `difference`, the first that does not replay; None if all do."""
        return self.difference.line.n if self.difference is not None else None

    def hear(self, line: Line, *, counted_as: Line | None = None) -> Difference | None:
        """Give the next line to the controller and the timesheet, which gets `counted_as` instead if that is given.

        Return the recorded effects and those that the controller decided on now, if they differ; a ReplayError if
        strict. BadLine if the event cannot be replayed. After an error the state is that of no moment.
        """
        if isinstance(line, Header):
            return None
        self._lines += 1
        if not isinstance(line, Record):
            self.sheet.hear(line)
            return None
        if why := unknown_to(self.job, line.event):
            raise self._bad_line(f"event {line.n} ({type(line.event).__name__}) cannot be: {why}")
        decided = self._advance(line, counted_as)
        difference = Difference(line, decided) if decided != line.effects else None
        if self._is_strict and difference is not None and not difference.is_wording:
            raise ReplayError(difference.text, help=HELP)
        self.difference = self.difference or difference
        return difference

    def _advance(self, line: Record, counted_as: Line | None) -> tuple[Effect, ...]:
        """Let the controller handle the event of a line, note the line, and return the effects that it decided on now.

        If they differ from the recorded ones, the timesheet gets those of now, which fit the state.
        """
        try:
            decided = tuple(self.controller.handle(line.event, line.t_ns))
            counted = line if decided == line.effects else msgspec.structs.replace(line, effects=decided)
            self._note(line, counted_as or counted)
        except Exception as error:  # whatever has broken: the user has to learn which line it was
            what = f"event {line.n} ({type(line.event).__name__}) cannot be replayed"
            raise self._bad_line(f"{what}: {type(error).__name__}: {error}") from error
        return decided

    def _bad_line(self, why: str) -> BadLine:
        return BadLine(self._source, self._lines, why, events=self.n, t_ns=self.t_ns)

    def follow(self, lines: Iterable[Line]) -> Self:
        """Give all lines in order to `hear`, and return this replay."""
        for line in lines:
            self.hear(line)
        return self

    def decide(self, event: ev.Event, now: int) -> Record:
        """Let the controller decide about a new event; return the line, for the caller to record and carry out."""
        line = record(self.n + 1, now, event, self.controller.handle(event, now))
        self._note(line, line)
        return line

    def _note(self, line: Record, counted: Line) -> None:
        """Add an event to the timesheet (as `counted`) and to the recent decisions, and make it the last one."""
        self.sheet.hear(counted)
        self.decisions.hear(line)
        self.last, self.n, self.t_ns = line, line.n, line.t_ns


def unknown_to(job: JobState, event: ev.Event) -> str:
    """Return what the event names although the job does not have it, in words; empty if the job has all of it.

    Roles of orders, and nodes that may be named before they have joined, are left to the controller.
    """
    match event:
        case ev.NodeJoined():
            replicas = [item.replica for item in event.inventory]
            replicas += [item.exited.replica for item in event.inventory if item.exited is not None]
        case ev.StoreOpened() | ev.StoreLost():
            return "" if event.world in job.worlds else f"the job has no world {event.world!r}"
        case (
            ev.NodeWarm()
            | ev.NodeSuspected()
            | ev.NodeSilent()
            | ev.NodeHeard()
            | ev.GpuFailed()
            | ev.NodeStandsStill()
        ):
            return "" if event.node in job.nodes else f"no node {event.node!r} has joined"
        case _:
            replicas = [event.replica] if isinstance(event, OfAttempt) else []
    unknown = [replica for replica in replicas if replica not in job.replicas]
    return f"the job has no replica {str(unknown[0])!r}" if unknown else ""


def _without_words(effects: Sequence[Effect]) -> list[Effect]:
    return [
        msgspec.structs.replace(each, reason="") if isinstance(each, AnswerCheckpoint | FinishJob) else each
        for each in effects
        if not isinstance(each, Decided)
    ]


def _brief(effect: Effect | None, other: Effect | None) -> str:
    """Return the effect in a few words (None: "nothing more"), with the fields in which it differs from `other`."""
    if effect is None:
        return "nothing more"
    if isinstance(effect, Decided):
        return repr(effect.text)
    about = getattr(effect, "replica", None) or getattr(effect, "world", None)
    text = f"{type(effect).__name__} {about or ''}".rstrip()
    if type(effect) is not type(other):
        return text
    fields = {name: getattr(effect, name) for name in effect.__struct_fields__}
    return f"{text} with " + ", ".join(f"{k}={v}" for k, v in fields.items() if v != getattr(other, k))
