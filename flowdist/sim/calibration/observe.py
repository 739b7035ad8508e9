"""Observation of a record: the starts, steps, checkpoints and ends of the workers, generation by generation.

The unit is a role in one generation of a world: its members start together, step together and end together. The
controller is replayed beside it, since a record is worth nothing if it does not replay, and for its incidents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from flowdist.control.job.facts import Incident
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica, StopReplica
from flowdist.control.protocol.ids import Activity, NodeName, ReplicaId, WorldName
from flowdist.graph.role_graph import JobOptions
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.record.replay import Replay

# How the workers of a replica start. "cold": first on its node, before the node has imported their modules; "warm":
# later, or on a node that has; "rejoin": all of them were suspended, and stayed in place.
StartKind = Literal["cold", "warm", "rejoin"]
COLDEST: tuple[StartKind, ...] = ("cold", "warm", "rejoin")


class Mark(NamedTuple):
    """Report of a worker at the time `at_ns`: `step` steps are done, or with `is_count`, so many since the start."""

    at_ns: int
    step: int
    is_count: bool = False


@dataclass(slots=True)
class Generation:
    """Members of one role in one generation of a world, and what they reported. Times are ns since the job began."""

    role: str
    world: WorldName
    number: int
    size: int  # workers of the role
    ordered_ns: int  # when the last member was ordered to start
    resumed: int | None  # step from which it resumes; None: unknown, as from memory or from a script's own checkpoint
    starts: dict[ReplicaId, StartKind] = field(default_factory=dict)
    begun: dict[ReplicaId, int] = field(default_factory=dict)  # when a member could start: the imports of its node
    ready: dict[ReplicaId, int] = field(default_factory=dict)
    marks: dict[ReplicaId, list[Mark]] = field(default_factory=dict)
    counted: Mark | None = None  # the first count of steps, which is reported at once
    offers: list[tuple[int, int]] = field(default_factory=list)  # accepted checkpoints: when, and their step
    spent: dict[Activity, list[tuple[int, int]]] = field(default_factory=dict)  # when, and the most of a member so far
    exits: dict[ReplicaId, int] = field(default_factory=dict)  # successful ends

    @property
    def kind(self) -> StartKind:
        """Return how the coldest member started, for which the others wait."""
        return min(self.starts.values(), key=COLDEST.index)

    @property
    def begun_ns(self) -> int:
        """Return when the last member could start: ordered, and with the imports of its node done if it waited."""
        return max([self.ordered_ns, *self.begun.values()])

    @property
    def clock(self) -> list[Mark]:
        """Return the marks of the member that has most of them, or reports by itself; it stands for all."""
        return max(self.marks.values(), key=lambda marks: (not marks[0].is_count, len(marks)), default=[])

    @property
    def is_done(self) -> bool:
        """Return whether all members have ended with success."""
        return bool(self.exits) and len(self.exits) == len(self.starts)

    @property
    def first(self) -> Mark | None:
        """Return the first sign of a step, reported or counted; None if there is none."""
        firsts = [marks[0] for marks in self.marks.values()] + ([self.counted] if self.counted is not None else [])
        return min(firsts, key=lambda mark: mark.at_ns, default=None)

    @property
    def reached(self) -> int:
        """Return the highest step that a member reported by itself; 0 if none did."""
        return max((mark.step for marks in self.marks.values() for mark in marks if not mark.is_count), default=0)

    def note(self, member: ReplicaId, mark: Mark) -> None:
        """Add a report of a member. Once it reports steps itself, counts are no marks; `counted` stays known."""
        if mark.is_count and self.counted is None:
            self.counted = mark
        marks = self.marks.setdefault(member, [])
        if marks and marks[-1].is_count and not mark.is_count:
            marks.clear()
        if not marks or marks[-1].is_count == mark.is_count:
            marks.append(mark)

    def spent_by(self, on: Activity, at_ns: int) -> int:
        """Return how long, in ns, the members had saved or restored by a time: as long as the one that spent most."""
        return max((ns for when, ns in self.spent.get(on, ()) if when <= at_ns), default=0)

    def offers_within(self, first_ns: int, last_ns: int) -> int:
        """Return how many checkpoints were accepted after one time and not after another."""
        return sum(first_ns < at <= last_ns for at, _ in self.offers)


class Import(NamedTuple):
    """Imports of a node."""

    took_ns: int
    is_late: bool  # the job ran already when the node arrived
    before: tuple[str, ...]  # roles whose workers ran on the node before, so that they need none of the imports


@dataclass(slots=True)
class Observed:
    """All that one record shows about times."""

    header: Header
    generations: list[Generation] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    # Durations in ns, by role, from an order to stop, which left time to obey, to the end of the workers.
    stops: dict[str, list[int]] = field(default_factory=dict)
    arrivals: list[int] = field(default_factory=list)  # when each node joined before the first start
    incidents: list[Incident] = field(default_factory=list)
    faults: dict[str, list[int]] = field(default_factory=dict)  # when they were injected, by target
    # From and to in ns: an incident was open or a worker stalled, so that a step may take longer there.
    disturbed: list[tuple[int, int]] = field(default_factory=list)


def observe(header: Header, lines: Iterable[Line]) -> Observed:
    """Return what the lines of a record, or its first part, show about times; BadLine if one cannot be replayed."""
    observer = Observer(header)
    for line in lines:
        observer.hear(line)
    return observer.end()


class Observer:
    """One pass through a record, in which `replay` is a controller that handles its events."""

    def __init__(self, header: Header) -> None:
        self.replay, self._found = Replay(header), Observed(header)
        self._generations: dict[tuple[WorldName, int, str], Generation] = {}
        self._of: dict[tuple[ReplicaId, int], Generation] = {}  # by attempt
        self._node: dict[ReplicaId, NodeName] = {}
        self._suspended: dict[ReplicaId, None] = {}
        self._joined: dict[NodeName, tuple[int, bool]] = {}  # when a node arrived, and whether the job ran already
        self._has_modules: dict[tuple[NodeName, str], None] = {}  # roles that have come up on a node
        self._imported: dict[NodeName, int] = {}  # when the imports of a node were done
        self._before: dict[NodeName, dict[str, None]] = {}  # roles that ran on a node before its imports were done
        self._incarnations: dict[NodeName, int] = {}
        self._saved: dict[WorldName, int] = {}  # the step of the newest checkpoint
        self._ran: dict[tuple[ReplicaId, int], None] = {}  # attempts whose processes have run
        self._ordered: dict[tuple[ReplicaId, int], int] = {}  # orders to stop attempts that ran
        self._stalled: dict[ReplicaId, int] = {}
        self._has_started = False

    def hear(self, line: Line) -> None:
        """Note what a line says."""
        self.replay.hear(line)
        if isinstance(line, FaultLine):
            self._found.faults.setdefault(line.hit, []).append(line.t_ns)
        if not isinstance(line, Record):
            return
        self._note_node(line.event, line.t_ns)
        self._note_end(line.event, line.t_ns)
        self._note_report(line)
        for effect in line.effects:
            if isinstance(effect, StartReplica):
                self._start(effect, line.t_ns)
            elif isinstance(effect, StopReplica) and not effect.in_place and effect.grace_ns > 0:
                key = (effect.replica, effect.attempt)
                self._ordered |= {key: line.t_ns} if key in self._ran else {}  # else there is nothing to stop

    def end(self) -> Observed:
        """Return what was noted. Called after the last line."""
        job = self.replay.job
        self._found.disturbed += [(since, job.now) for since in self._stalled.values()]
        for incident in job.incidents:
            end = job.now if (took := incident.recovered_ns) is None else incident.opened_ns + took
            hit = fault_before(self._found.faults, incident, job.graph.options)
            self._found.disturbed.append((incident.opened_ns if hit is None else min(hit, incident.opened_ns), end))
        found = self._found
        found.generations, found.incidents = list(self._generations.values()), list(job.incidents)
        for one in found.generations:
            if one.number > 1 and one.world not in self._saved:
                one.resumed = None  # nothing was committed: the script may have a checkpoint of its own
        return found

    def _note_node(self, event: ev.Event, now: int) -> None:
        match event:
            case ev.NodeJoined():
                if not self._has_started:
                    self._found.arrivals.append(now)
                if event.incarnation != self._incarnations.get(event.node):
                    self._incarnations[event.node] = event.incarnation
                    for key in [key for key in self._has_modules if key[0] == event.node]:
                        del self._has_modules[key]
                    self._imported.pop(event.node, None)
                    self._before[event.node] = {}
                    if event.is_warming:
                        self._joined[event.node] = now, self._has_started
            case ev.NodeWarm() if event.node in self._joined:
                since, is_late = self._joined.pop(event.node)
                self._found.imports.append(Import(now - since, is_late, tuple(self._before[event.node])))
                self._imported[event.node] = now
            case _:
                pass

    def _start(self, start: StartReplica, now: int) -> None:
        role = start.replica.role
        key = start.world, start.generation, role
        is_same_node = self._node.get(start.replica) == start.node
        stays = self._suspended.pop(start.replica, start) is None and is_same_node
        self._node[start.replica] = start.node
        self._has_started = True
        has_modules = start.node in self._imported or (start.node, role) in self._has_modules
        kind: StartKind = "rejoin" if stays else "warm" if has_modules else "cold"
        generation = self._generations.get(key)
        if generation is None:
            resumed = self._saved.get(start.world, 0)
            generation = Generation(role, start.world, start.generation, start.role_world_size, now, resumed)
            self._generations[key] = generation
        generation.starts[start.replica] = kind
        generation.ordered_ns = now
        if kind == "rejoin":
            generation.resumed = None
        self._of[start.replica, start.attempt] = generation

    def _note_end(self, event: ev.Event, now: int) -> None:
        match event:
            case ev.ReplicaStopped() | ev.ReplicaExited():
                ordered = self._ordered.pop((event.replica, event.attempt), None)
                if event.suspended:
                    self._suspended[event.replica] = None
                elif isinstance(event, ev.ReplicaStopped) and ordered is not None:
                    self._found.stops.setdefault(event.replica.role, []).append(now - ordered)
                generation = self._of.get((event.replica, event.attempt))
                if generation is not None and isinstance(event, ev.ReplicaExited) and event.kind is None:
                    generation.exits[event.replica] = now
            case ev.ReplicaStalled():
                self._stalled.setdefault(event.replica, now - event.for_ns)
            case ev.ReplicaRevived() if event.replica in self._stalled:
                self._found.disturbed.append((self._stalled.pop(event.replica), now))
            case _:
                pass

    def _note_report(self, line: Record) -> None:
        """Note what a worker reports about its work."""
        event, now = line.event, line.t_ns
        if isinstance(event, ev.ReplicaStarted):
            self._note_started(event)
        if not isinstance(event, ev.ReplicaReady | ev.ReplicaProgressed | ev.ReplicaStepped | ev.ReplicaSpent):
            if isinstance(event, ev.CheckpointOffered):
                self._note_offer(event, line)
            return
        generation = self._of.get((event.replica, event.attempt))
        if generation is None:
            return
        match event:
            case ev.ReplicaReady():
                generation.ready.setdefault(event.replica, now)
                self._note_up(event.replica)
            case ev.ReplicaProgressed():
                generation.note(event.replica, Mark(now, event.step))
                self._note_up(event.replica)
            case ev.ReplicaStepped():
                generation.note(event.replica, Mark(now, event.steps, is_count=True))
                self._note_up(event.replica)
            case ev.ReplicaSpent():
                generation.spent.setdefault(event.on, []).append((now, event.ns))

    def _note_started(self, event: ev.ReplicaStarted) -> None:
        """Note that processes run. If the imports of the node ended since the order, they waited, and start warm."""
        self._ran[event.replica, event.attempt] = None
        generation, node = self._of.get((event.replica, event.attempt)), self._node.get(event.replica, "")
        if generation is None or generation.starts.get(event.replica) != "cold":
            return
        if node in self._joined:
            self._before[node][event.replica.role] = None
        elif self._imported.get(node, 0) > generation.ordered_ns:
            generation.starts[event.replica], generation.begun[event.replica] = "warm", self._imported[node]

    def _note_offer(self, event: ev.CheckpointOffered, line: Record) -> None:
        generation = self._of.get((event.replica, event.attempt))
        if generation is not None and line.accepts:
            generation.offers.append((line.t_ns, event.step))
            self._saved[generation.world] = event.step

    def _note_up(self, replica: ReplicaId) -> None:
        if replica in self._node:
            self._has_modules[self._node[replica], replica.role] = None


def fault_before(faults: dict[str, list[int]], incident: Incident, options: JobOptions) -> int | None:
    """Return when, in ns, the fault was injected shortly before that an incident noticed; None: there is none.

    A process that dies is noticed at once, and a node that falls silent when its lease is over. `faults` has the times
    of injected faults by target: a node, a replica, or a worker of it.
    """
    window_ns = options.cause_window_ns + options.silent_after_ns
    hits = [at for target, times in faults.items() for at in times if target.partition(".")[0] == incident.root]
    return max((at for at in hits if 0 <= incident.opened_ns - at <= window_ns), default=None)
