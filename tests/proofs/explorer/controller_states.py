"""States of the controller with its sessions, which never change once they are numbered.

States with equal keys (`copies.Keys`) share one number. Times in messages are relative to now, so that equal messages
compare equal whenever they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import msgspec

from flowdist.control.connection.sessions import Sessions
from flowdist.control.controller import Controller
from flowdist.control.invariants import check_job
from flowdist.control.job.state import Replica
from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol.effects import Decided as Decision
from flowdist.control.protocol.effects import FinishJob, SetBuddies, StartReplica
from flowdist.control.protocol.events import (
    CancelRequested,
    CheckpointOffered,
    DrainRequested,
    Event,
    GpuFailed,
    NodeGone,
    NodeStandsStill,
    NodeWarm,
    ReplicaAcknowledged,
    ReplicaPublished,
    StoreLost,
    StoreOpened,
    TimePassed,
)
from flowdist.control.protocol.ids import NodeName, SnapshotRef
from flowdist.control.protocol.messages import (
    Acked,
    Heartbeat,
    Join,
    Leave,
    OfVault,
    Preempted,
    Report,
    ToAgent,
    ToController,
)
from flowdist.control.snapshots.checks import check_start
from flowdist.graph import RoleGraph, VersionEdge
from tests.proofs.explorer.common import START_NS, Numbered, Process
from tests.proofs.explorer.copies import Keys, copy_of, digest_of
from tests.proofs.explorer.vaults import has_vaults, judge_starts

REPLAYED_ONE_IN = 16  # a replay is checked for one in so many states that are taken over: it takes as long as the path


class Crash(msgspec.Struct, frozen=True):
    """Trigger: the controller process dies."""


class TakeOver(msgspec.Struct, frozen=True):
    """Trigger: a new controller process takes over from the record."""


Trigger = ToController | NodeGone | CancelRequested | DrainRequested | TimePassed | Crash | TakeOver
Entry = tuple["Entry | None", Event, int]  # the record: earlier entries, the event, its time in ns


@dataclass(slots=True)
class ControllerState:
    """State of a controller with its sessions. `now` is its clock in ns; `record` is that of one path to this state.

    While `is_down`, no controller process runs, and `controller` is what the record says.
    """

    controller: Controller
    sessions: Sessions
    now: int = START_NS
    is_down: bool = False
    record: Entry | None = None


@dataclass(slots=True, frozen=True)
class Decided:
    """Result of one trigger.

    Args:
        controller: The number of the next controller state.
        sends: The messages that the controller sends, each with its node, in order.
        notes: Texts for the user.
        gone: Attempts that must have ended by now, with all earlier ones of the same replicas, because a replica of
            their restart set is ordered to start.
        reads: Snapshots that start orders name: the nodes that they name have to hold them now.
        registers: The trigger is a Join that the controller accepts: it sends to that connection from now on.
        broken: The property that the controller violates, in words; None if it violates none.
    """

    controller: int
    sends: tuple[tuple[NodeName, ToAgent], ...] = ()
    notes: tuple[str, ...] = ()
    gone: tuple[Process, ...] = ()
    reads: tuple[SnapshotRef, ...] = ()
    registers: bool = False
    broken: str | None = None


@dataclass(slots=True, frozen=True)
class Outlook:
    """Facts about a controller state that decide which steps are possible. Times are nanoseconds from now."""

    is_down: bool
    outcome: str | None
    waiting: tuple[str, ...]
    deadline_ns: int | None
    silence_ns: dict[NodeName, int]  # by watched node: until it is silent
    watch_ns: dict[NodeName, int]  # by watched node: until it is suspected, or silent if it is suspected already
    buddies: tuple[SetBuddies, ...] = ()  # what the vaults of running worlds have been told
    suspected: tuple[NodeName, ...] = ()  # the next heartbeat of each is an event


def first_controller(graph: RoleGraph) -> Controller:
    """Return a new controller of the job whose clock begins at START_NS instead of 0, like all of its deadlines."""
    controller = Controller(graph, tuple(node.name for node in graph.cluster.nodes))
    for due in list(controller.state.due):
        controller.state.due.set(due, (controller.state.due.at(due) or 0) + START_NS)
    return controller


class ControllerStates:
    """All known controller states of one job by number, and what follows from each.

    `first` is the number of the state before the first event. `outlook` and `pass_time` compute each result once.
    """

    def __init__(self, graph: RoleGraph) -> None:
        self._graph, self._keys = graph, Keys(graph)
        self.known: Numbered[ControllerState] = Numbered()
        self.first = self._number(ControllerState(first_controller(graph), Sessions(graph.options)))
        self.outlook, self.pass_time = cache(self._outlook), cache(self._pass_time)

    def _number(self, snapshot: ControllerState) -> int:
        key = self._keys.of_controller(snapshot.controller, snapshot.sessions, snapshot.now)
        return self.known.number(digest_of((key, snapshot.is_down)), snapshot)

    def decide(self, number: int, trigger: Trigger) -> Decided:
        """Return what the controller in state `number` does with a trigger; that state itself does not change.

        An exception of the controller, and an effect of a report about an ended attempt, are violations.
        """
        before = self.known.items[number]
        snapshot = replace(before, controller=copy_of(before.controller), sessions=copy_of(before.sessions))
        handling = _Handling(snapshot, self._graph)
        try:
            handling.take(trigger, replays=number % REPLAYED_ONE_IN == 0)
        except Exception as error:  # any exception of the controller is a finding
            return Decided(number, broken=f"{type(error).__name__}: {error}", notes=tuple(handling.notes))
        after = self._number(snapshot)
        if _is_of_ended_attempt(before, trigger) and (after != number or handling.sends):
            return Decided(number, broken="a report of an ended attempt has an effect", notes=tuple(handling.notes))
        return Decided(
            controller=after,
            sends=tuple(handling.sends),
            notes=tuple(handling.notes),
            gone=tuple(sorted(handling.gone)),
            reads=tuple(handling.reads),
            registers=handling.registers,
        )

    def _pass_time(self, number: int, by_ns: int, heard: tuple[NodeName, ...]) -> int:
        """Return the number of the state after `by_ns` in which no deadline is handled.

        At the end, a heartbeat of each node in `heard` has arrived.
        """
        before = self.known.items[number]
        snapshot = replace(before, sessions=copy_of(before.sessions), now=before.now + by_ns)
        for node in heard:
            snapshot.sessions.detector.heard(node, snapshot.now, snapshot.now)
        return self._number(snapshot)

    def _outlook(self, number: int) -> Outlook:
        """Return the facts about a controller state."""
        snapshot = self.known.items[number]
        job = snapshot.controller.state
        if snapshot.is_down:
            return Outlook(True, job.outcome, ("a controller to take over",), None, {}, {})
        at = snapshot.controller.deadline()
        detector = snapshot.sessions.detector
        silence = {node: until - snapshot.now for node, until in detector._until_ns.items()}
        watch = {node: detector._due(node) - snapshot.now for node in detector._until_ns}
        waits, deadline_ns = tuple(waiting_for(job)), None if at is None else at - snapshot.now
        running = [world for world in job.worlds.values() if world.phase == "running" and job.ending is None]
        buddies = tuple(order for world in running for order in world.buddies.values())
        suspected = tuple(detector._suspected)
        return Outlook(False, job.outcome, waits, deadline_ns, silence, watch, buddies, suspected)


_WITHOUT_ATTEMPT = StoreOpened | StoreLost | CheckpointOffered | NodeWarm | GpuFailed | NodeStandsStill | OfVault


def _is_of_ended_attempt(snapshot: ControllerState, trigger: Trigger) -> bool:
    """Return whether the trigger is a report about an attempt that is over (R20), and no deadline is due with it.

    Such a report must have no effect.
    """
    if not isinstance(trigger, Report) or isinstance(trigger.event, _WITHOUT_ATTEMPT):
        return False
    replica, due = snapshot.controller.state.replicas[trigger.event.replica], snapshot.controller.deadline()
    is_present = replica.attempt == trigger.event.attempt and replica.is_live
    return not is_present and (due is None or due > snapshot.now)


class _Handling:
    """Driver for one trigger: it uses sessions and controller of `snapshot`, a copy, as the production driver does.

    It changes the snapshot, and collects what the controller sends and says, see `Decided`.
    """

    def __init__(self, snapshot: ControllerState, graph: RoleGraph) -> None:
        self._snapshot, self._graph = snapshot, graph
        self.sends: list[tuple[NodeName, ToAgent]] = []
        self.notes: list[str] = []
        self.gone: dict[Process, None] = {}
        self.reads: dict[SnapshotRef, None] = {}
        self.registers = False

    def take(self, trigger: Trigger, *, replays: bool) -> None:
        """Handle the trigger. `replays`: before a take-over, check that a replay of the record reaches this state.

        Raises:
            Exception: Any exception of controller or sessions, and AssertionError for a broken invariant.
        """
        snapshot = self._snapshot
        match trigger:
            case NodeGone() | CancelRequested() | DrainRequested():
                snapshot.sessions.note(trigger)
                self._handle(trigger)
            case TimePassed():
                for silent in snapshot.sessions.detector.expire(snapshot.now):
                    self._handle(silent)
                deadline = snapshot.controller.deadline()
                if deadline is not None and deadline <= snapshot.now:
                    self._handle(trigger)
            case Crash():
                snapshot.is_down, snapshot.sessions = True, Sessions(self._graph.options)
            case TakeOver():
                if replays:
                    self._replay()
                snapshot.is_down = False
                self._handle(snapshot.sessions.take_over(snapshot.controller.state, snapshot.now))
            case Join() | Heartbeat() | Report() | Preempted() | Leave():
                self._receive(trigger)

    def _replay(self) -> None:
        """Check that a fresh controller that replays the record reaches the same state (R21).

        Raises:
            AssertionError: It reaches another state.
        """
        fresh = first_controller(self._graph)
        for event, at in self._entries():
            fresh.handle(event, at)
        assert fresh.state == self._snapshot.controller.state, "a replay leads to another state"

    def _entries(self) -> list[tuple[Event, int]]:
        """Return the events of the record with their times, in order."""
        entries, entry = [], self._snapshot.record
        while entry is not None:
            before, event, at = entry
            entries.append((event, at))
            entry = before
        return entries[::-1]

    def _receive(self, message: ToController) -> None:
        """Pass a message of an agent to the sessions, collect the answers, and handle the events that follow.

        Times in messages are relative to now.
        """
        sessions, node = self._snapshot.sessions, message.node
        now = self._snapshot.now
        if isinstance(message, Heartbeat):
            message = msgspec.structs.replace(message, answered_ns=message.answered_ns + now)
        heard = sessions.hear(message, now)
        if isinstance(message, Join) and heard.answers:
            self.registers = True
            if self._snapshot.controller.state.outcome is not None:
                self.sends.append((node, sessions.dismiss(node)))
        for answer in heard.answers:
            relative = msgspec.structs.replace(answer, at_ns=0) if isinstance(answer, Acked) else answer
            self.sends.append((node, relative))
        for event in heard.events:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        """Have the controller handle an event, and collect the messages that its effects send to agents in `sends`.

        Nothing happens once the job is over.

        Raises:
            AssertionError: if an invariant of the job does not hold afterwards.
        """
        snapshot = self._snapshot
        job = snapshot.controller.state
        if job.outcome is not None:
            return
        before = {replica.id: replica.attempt for replica in job.replicas.values()}
        unready = [replica for replica in job.replicas.values() if replica.phase != "ready"]
        effects = snapshot.controller.handle(event, snapshot.now)
        snapshot.record = (snapshot.record, event, snapshot.now)
        check_job(job)
        for replica in unready:
            edge = job.role_of(replica.id).spec.versions
            if edge is not None and replica.phase == "ready":
                self._check_version(replica, edge)
        for effect in effects:
            match effect:
                case Decision():
                    self.notes.append(effect.text)
                case FinishJob():
                    self.sends += [(node, snapshot.sessions.dismiss(node)) for node in job.nodes]
                case _:
                    self.sends.append((effect.node, snapshot.sessions.order(effect)))
            if isinstance(effect, StartReplica) and effect.snapshot is not None:
                check_start(job, effect, effect.snapshot)
                self.reads[effect.snapshot] = None
        starts = [effect for effect in effects if isinstance(effect, StartReplica)]
        starts = [effect for effect in starts if effect.attempt > before[effect.replica]]  # no resent orders
        for start in starts:
            self._must_be_gone(start)
        if starts and has_vaults(self._graph):
            judge_starts(self._graph, first_controller(self._graph), self._entries())

    def _check_version(self, replica: Replica, edge: VersionEdge) -> None:
        """Check, on the record, that the attempt of a replica that gets ready has a published version (R23).

        Raises:
            AssertionError: The attempt has acknowledged none, or one that its publisher has never published.
        """
        acknowledged, published, entry = list[int](), list[int](), self._snapshot.record
        while entry is not None:
            match entry[1]:
                case ReplicaAcknowledged() as event if (event.replica, event.attempt) == (replica.id, replica.attempt):
                    acknowledged.append(event.version)
                case ReplicaPublished() as event if event.replica.role == edge.role:
                    published.append(event.version)
            entry = entry[0]
        assert acknowledged, f"{replica.id} is ready, and attempt {replica.attempt} of it has acknowledged no version"
        assert acknowledged[0] in published, f"{replica.id} is ready with version {acknowledged[0]}, never published"

    def _must_be_gone(self, start: StartReplica) -> None:
        """Record, in `gone`, the attempts that must have ended before this start: those of its restart set (R6).

        Without an incident, these are the earlier attempts of its world.
        """
        job = self._snapshot.controller.state
        world = job.worlds[start.world]
        if world.incident is not None:
            incident = job.incident(world.incident)
            worlds, restarted = list(incident.worlds), list(incident.restarted)
        else:
            worlds, restarted = [world.name], list(world.members)
        for name in worlds:
            for replica in job.worlds[name].pool:
                last = job.replicas[replica].attempt - (replica in restarted)
                if last > 0:
                    self.gone[replica, last] = None
