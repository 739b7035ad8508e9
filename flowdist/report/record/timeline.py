"""Timeline of a run or a simulation: attempts with their phases, generations, incidents, faults and nodes.

It is built from a replay, and ends at the first event that does not replay: later lines would tell of another state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from flowdist.control.job.parts import Replica
from flowdist.control.job.state import JobState
from flowdist.control.protocol import effects as fx
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.graph.role_graph import RoleKind
from flowdist.record.journal import AccountLine, FaultLine, Header, Line, Record, UnsavedLine
from flowdist.record.reader import JOURNAL
from flowdist.record.replay import Replay
from flowdist.record.work_segments import ClosedSegment
from flowdist.report.curves import Curves
from flowdist.report.record.trace import event_text

How = Literal["alive", "succeeded", "failed", "stopped", "lost"]

# An event of these types changes only its own replica, and the replicas that start or stop because of it.
_LOCAL = (
    *(ev.ReplicaStarted, ev.ReplicaReady, ev.ReplicaProgressed, ev.ReplicaExited, ev.ReplicaStopped),
    *(ev.ReplicaStalled, ev.ReplicaRevived, ev.StepTold, ev.ReplicaLeftStep, ev.CheckpointOffered),
    *(ev.StoreOpened, ev.StoreLost),
)
_SHOWN = (fx.OpenStore, fx.StartReplica, fx.StopReplica)


@dataclass(slots=True)
class Attempt:
    """One attempt of a replica. Times are ns since the job's start, None for never; decisions are numbers of events."""

    replica: ReplicaId
    number: int
    node: NodeName
    world: WorldName
    generation: int
    rank: int
    started_ns: int
    running_ns: int | None = None
    ready_ns: int | None = None
    stopping_ns: int | None = None
    ended_ns: int | None = None
    how: How = "alive"
    because: int | None = None  # the decision that stopped it, or the event that ended it without a stop
    step: int = -1  # the last step that the replica reported; -1: none
    left_at: int | None = None  # the step at which the replica left in order, so that nothing is lost
    lost_from_ns: int | None = None  # the work from here on was not kept: it is lost, or `is_unsaved`
    lost_to_ns: int | None = None  # up to here
    is_unsaved: bool = False  # nothing does that work again, because the job ended

    def phases(self, end_ns: int) -> list[tuple[str, int, int]]:
        """Return the phases that the attempt reached with their begin and end (ns); the last one ends at `end_ns`."""
        begun = [("starting", self.started_ns), ("running", self.running_ns), ("ready", self.ready_ns)]
        known = [(phase, ns) for phase, ns in [*begun, ("stopping", self.stopping_ns)] if ns is not None]
        ends = [ns for _, ns in known[1:]] + [end_ns]
        return [(phase, ns, over) for (phase, ns), over in zip(known, ends, strict=True)]


@dataclass(slots=True)
class Generation:
    """Generation of a world, from the choice of its members (the event `formed_by`) to its end, if any, in ns."""

    world: WorldName
    number: int
    from_ns: int
    formed_by: int
    members: int
    to_ns: int | None = None
    attempts: list[Attempt] = field(default_factory=list)


@dataclass(slots=True)
class Decision:
    """Event that had a consequence, in short, and the controller's reason for its decision."""

    n: int
    t_ns: int
    event: str
    reason: str


@dataclass(slots=True)
class Checkpoint:
    """Checkpoint that was accepted as the latest of its world."""

    world: WorldName
    t_ns: int
    step: int


@dataclass(slots=True)
class Presence:
    """Time in which a node could be used. `to_ns` is None if it still can at the end."""

    node: NodeName
    from_ns: int
    to_ns: int | None = None


@dataclass(slots=True)
class Timeline:
    """Timeline of a record. `job` is the replayed state at its end, and `end_ns` the time of the last line.

    It ends with the event `differs_at`, the first with other orders than a replay's; None if there is none.
    """

    header: Header
    job: JobState
    curves: Curves
    end_ns: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    faults: list[FaultLine] = field(default_factory=list)
    unsaved: list[UnsavedLine] = field(default_factory=list)  # checkpoints that were not completed
    presences: list[Presence] = field(default_factory=list)
    clock: list[tuple[int, datetime]] = field(default_factory=list)  # the wall clock, at the start and at take-overs
    opened_by: dict[int, int] = field(default_factory=dict)  # the number of the event that opened each incident
    differs_at: int | None = None
    lost_ns: int = 0  # work that was lost: the time of its worlds, as in the time accounts
    unsaved_ns: int = 0  # the same of work that was not saved at the end

    def nodes(self) -> list[NodeName]:
        """Return all nodes that were expected or joined, in the order of placement."""
        return sorted(self.job.node_order, key=lambda name: self.job.node_order[name])

    def hit(self, fault: FaultLine) -> tuple[NodeName | None, ReplicaId | None]:
        """Return the node that a fault hit, and the replica if it hit one; None for neither, as for the controller."""
        if fault.target in self.job.node_order:
            return fault.target, None
        name = fault.target.partition("/attempt_")[0]  # a real worker is named after its folder
        started = (a for a in reversed(self.attempts) if a.started_ns <= fault.t_ns and str(a.replica) == name)
        return next(((attempt.node, attempt.replica) for attempt in started), (None, None))


def timeline_of(header: Header, lines: Iterable[Line], source: str = JOURNAL) -> Timeline:
    """Build the timeline of a record, up to the first event with other orders than in the record.

    `source` is the file of the record, for messages. BadLine: an event cannot be replayed.
    """
    builder = _Builder(header, source)
    for line in lines:
        if not isinstance(line, Record):
            builder.note_other(line)
        elif not builder.hear(line):
            break
    builder.finish()
    return builder.timeline


class _Builder:
    """Builder of a timeline from the changes of a replayed state. `finish` has to be called after the last line."""

    def __init__(self, header: Header, source: str) -> None:
        self._replay = Replay(header, source=source)
        self._segments = self._replay.sheet.ended = []
        self._worked: list[tuple[ClosedSegment, list[Attempt]]] = []  # segments of work with the attempts of members
        self._job = self._replay.job
        self._curves = Curves(self._job, self._replay.sheet)
        self.timeline = Timeline(header, self._job, self._curves)
        self._note_clock(0, header.began_at)
        self._alive: dict[ReplicaId, Attempt] = {}
        self._generations: dict[WorldName, Generation] = {}
        self._presences: dict[NodeName, Presence] = {}
        self._leaving: dict[ReplicaId, int] = {}  # the step at which a replica is to leave
        self._unsaved: dict[WorldName, int] = {}  # the step of the last checkpoint that was not completed
        self._because: dict[int, None] = {}  # numbers of events that ended an attempt

    def note_other(self, line: Line) -> None:
        """Add a line that is no event: a fault, a checkpoint that was not completed, or the end of a trace."""
        self._replay.hear(line)
        if isinstance(line, FaultLine):
            self.timeline.faults.append(line)
        elif isinstance(line, UnsavedLine):
            self.timeline.unsaved.append(line)
            self._unsaved[line.world] = line.step
        if not isinstance(line, Header):
            self.timeline.end_ns = max(self.timeline.end_ns, line.t_ns)

    def hear(self, line: Record) -> bool:
        """Add one event to the timeline if it replays, and return that. Other words in messages are no difference."""
        self._curves.look(line.t_ns)
        difference = self._replay.hear(line)
        self.timeline.end_ns = line.t_ns
        if difference is not None and not difference.is_wording:
            self.timeline.differs_at = line.n
            return False
        self._curves.hear(line)
        for number in range(len(self.timeline.opened_by) + 1, len(self._job.incidents) + 1):
            self.timeline.opened_by[number] = line.n
        for effect in line.effects:
            if isinstance(effect, fx.OpenStore):
                self._form(line, effect)
            elif isinstance(effect, fx.CloseStore):
                self._close(effect.world, line.t_ns)
            elif isinstance(effect, fx.AnswerCheckpoint) and effect.accepted:
                world = self._job.replicas[effect.replica].world
                self.timeline.checkpoints.append(Checkpoint(world, line.t_ns, effect.step))
        for segment in self._segments[len(self._worked) :]:
            self._worked.append((segment, [self._alive[each] for each in segment.members if each in self._alive]))
        for replica in self._changed(line):
            self._update(line, self._job.replicas[replica])
        self._note(line)
        if line.reason or line.n in self._because or any(isinstance(effect, _SHOWN) for effect in line.effects):
            self.timeline.decisions.append(Decision(line.n, line.t_ns, event_text(line), line.reason))
        return True

    def _form(self, line: Record, effect: fx.OpenStore) -> None:
        """Begin a generation of a world, and end the one before; a repeated order changes nothing."""
        now = self._generations.get(effect.world)
        if now is not None and now.number == effect.generation:
            return  # the order was repeated
        self._close(effect.world, line.t_ns)
        self._unsaved.pop(effect.world, None)
        members = len(self._job.worlds[effect.world].members)
        generation = Generation(effect.world, effect.generation, line.t_ns, line.n, members)
        self._generations[effect.world] = generation
        self.timeline.generations.append(generation)

    def _close(self, world: WorldName, now: int) -> None:
        """End the present generation of a world, if it has not ended."""
        generation = self._generations.get(world)
        if generation is not None and generation.to_ns is None:
            generation.to_ns = now

    def _changed(self, line: Record) -> Iterator[ReplicaId]:
        """Yield the replicas whose phase the event may have changed, some of them twice."""
        if not isinstance(line.event, _LOCAL):
            yield from list(self._alive)
        elif (replica := getattr(line.event, "replica", None)) in self._job.replicas:
            yield replica
        for effect in line.effects:
            if isinstance(effect, fx.StartReplica | fx.StopReplica) and effect.replica in self._job.replicas:
                yield effect.replica

    def _update(self, line: Record, replica: Replica) -> None:
        """Begin, continue or end the attempt of a replica by its present phase."""
        attempt = self._alive.get(replica.id)
        if attempt is not None and (attempt.number != replica.attempt or not replica.is_live):
            self._end(line, attempt, replica)
            attempt = None
        if not replica.is_live:
            return
        if attempt is None:
            attempt = self._begin(line, replica)
        if replica.phase == "running" and attempt.running_ns is None:
            attempt.running_ns = line.t_ns
        elif replica.phase == "ready" and attempt.ready_ns is None:
            attempt.running_ns = line.t_ns if attempt.running_ns is None else attempt.running_ns
            attempt.ready_ns = line.t_ns
        elif replica.phase == "stopping" and attempt.stopping_ns is None:
            attempt.stopping_ns, attempt.because = line.t_ns, line.n

    def _begin(self, line: Record, replica: Replica) -> Attempt:
        """Add an attempt for the replica's last start to the timeline and to its generation."""
        order, generation = replica.order, self._generations[replica.world]
        assert order is not None, f"{replica.id} runs without an order"
        where = (order.node, order.world, order.generation, order.rank)
        attempt = Attempt(replica.id, order.attempt, *where, line.t_ns)
        self._alive[replica.id] = attempt
        generation.attempts.append(attempt)
        self.timeline.attempts.append(attempt)
        return attempt

    def _end(self, line: Record, attempt: Attempt, replica: Replica) -> None:
        """Record how, when and why an attempt ended, and the step at which it left in order."""
        del self._alive[attempt.replica]
        role = self._job.role_of(replica.id).spec
        attempt.ended_ns = line.t_ns
        attempt.how = _how(line.event, attempt, replica, role.kind)
        step = self._leaving.pop(attempt.replica, None)
        if attempt.world in self._unsaved and step == self._unsaved[attempt.world]:
            step = attempt.left_at = None  # the replica left in order, but its checkpoint was not saved
        if attempt.because is None:
            attempt.because = line.n
            self._because[line.n] = None
            if isinstance(line.event, ev.ReplicaStopped):
                attempt.left_at = step

    def _note(self, line: Record) -> None:
        """Record reported steps, the steps at which replicas are to leave or have left, and usable nodes."""
        match line.event:
            case ev.ReplicaProgressed(replica=replica, attempt=number, step=step):
                if (attempt := self._alive.get(replica)) is not None and attempt.number == number:
                    attempt.step = step
            case ev.ReplicaLeftStep(replica=replica, attempt=number):
                if (attempt := self._alive.get(replica)) is not None and attempt.number == number:
                    attempt.left_at = self._leaving.get(replica)
            case ev.NodeJoined() | ev.NodeLeft() | ev.NodeGone() | ev.NodeSilent() | ev.ReplicaUnkillable():
                self._update_nodes(line.t_ns)
            case ev.ControllerStarted(at=at):  # the time of the job stood still until the run was resumed
                self._note_clock(line.t_ns, at)
        for effect in line.effects:
            if isinstance(effect, fx.StopAtStep) and effect.step is not None:
                self._leaving[effect.replica] = effect.step

    def _update_nodes(self, now: int) -> None:
        """Begin or end the presence of each node that can be used since this event, or cannot any more."""
        for name, node in self._job.nodes.items():
            presence = self._presences.get(name)
            if node.usable and presence is None:
                self._presences[name] = Presence(name, now)
                self.timeline.presences.append(self._presences[name])
            elif not node.usable and presence is not None:
                self._presences.pop(name).to_ns = now

    def _note_clock(self, now: int, text: str) -> None:
        """Record what the wall clock showed, if the record says so."""
        with contextlib.suppress(ValueError):
            self.timeline.clock.append((now, datetime.fromisoformat(text)))

    def finish(self) -> None:
        """Record the work that was not kept, as the time accounts have it: a later generation may have shown more."""
        sheet = self._replay.sheet
        self._curves.close(self.timeline.end_ns)
        self.timeline.lost_ns, self.timeline.unsaved_ns = sheet.unkept("lost work"), sheet.unkept("unsaved at the end")
        if sheet.told is not None:
            self._note_unkept(sheet.told)
            return
        for segment, attempts in self._worked:
            if segment.unkept_ns is not None:
                for attempt in attempts:
                    attempt.lost_from_ns, attempt.lost_to_ns = segment.unkept_ns
                    attempt.is_unsaved = segment.unkept == "unsaved at the end"

    def _note_unkept(self, told: AccountLine) -> None:
        """Record the work that a simulation has not kept, as work of all members of the generation.

        Survivors may have had more in memory than their attempt did: that was work of earlier attempts.
        """
        for work in told.unkept:
            for attempt in self.timeline.attempts:
                is_member = (attempt.world, attempt.generation) == (work.world, work.generation)
                if is_member and attempt.started_ns < work.until_ns:
                    attempt.lost_from_ns = max(work.until_ns - work.ns, attempt.started_ns)
                    attempt.lost_to_ns = work.until_ns
                    attempt.is_unsaved = work.is_unsaved


def _how(event: ev.Event, attempt: Attempt, replica: Replica, kind: RoleKind) -> How:
    """Return how an attempt has ended: by this event, or by the inventory of an agent that connects again."""
    if isinstance(event, ev.NodeJoined):
        items = [item for item in event.inventory if (item.replica, item.attempt) == (attempt.replica, attempt.number)]
        event = next((item.exited for item in items if item.exited is not None), event)
    if replica.phase == "succeeded":
        return "succeeded"
    if isinstance(event, ev.ReplicaExited) and event.kind is None and kind == "task":
        return "succeeded"
    if isinstance(event, ev.NodeGone | ev.NodeSilent | ev.NodeLeft | ev.NodeJoined):
        return "lost"
    if isinstance(event, ev.ReplicaExited | ev.ReplicaUnkillable) and attempt.stopping_ns is None:
        return "failed"
    return "stopped"
