"""Immutable states of the controller with its sessions.

States with equal keys share one number. Times in messages are relative to now, so that equal messages compare equal
whenever they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import msgspec

from flowdist.control.connection.sessions import Sessions
from flowdist.control.controller import Controller
from flowdist.control.invariants.invariants import check_job
from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol.effects import FinishJob, Notify, StartReplica
from flowdist.control.protocol.events import (
    CancelRequested,
    CheckpointOffered,
    DrainRequested,
    Event,
    GpuFailed,
    NodeGone,
    NodeWarm,
    StoreLost,
    StoreOpened,
    TimePassed,
)
from flowdist.control.protocol.ids import NodeName
from flowdist.control.protocol.messages import Heartbeat, Join, Leave, Preempted, Report, ToAgent, ToController
from flowdist.graph import RoleGraph
from flowdist.proofs.explorer.common import START_NS, Numbered, Process
from flowdist.proofs.explorer.copies import Keys, copy_of, digest_of

REPLAYED_ONE_IN = 16  # of the states that are taken over from: a replay takes as long as the path


class Crash(msgspec.Struct, frozen=True):
    """Trigger: the controller dies."""


class TakeOver(msgspec.Struct, frozen=True):
    """Trigger: another controller takes over from the record."""


Trigger = ToController | NodeGone | CancelRequested | DrainRequested | TimePassed | Crash | TakeOver
Entry = tuple["Entry | None", Event, int]  # the record: earlier entries, the event, its time in ns


@dataclass(slots=True)
class ControllerState:
    """A controller with its sessions, its clock in ns, and the record of one path that leads to this state."""

    controller: Controller
    sessions: Sessions
    now: int = START_NS
    is_down: bool = False
    record: Entry | None = None


@dataclass(slots=True, frozen=True)
class Decided:
    """Result of one trigger.

    Args:
        controller: Number of the next controller state.
        sends: Messages with their nodes, in order.
        notes: Messages for the user.
        gone: Attempts that must have ended, with all earlier ones: those of the restart set of a started replica.
        registers: The node's Join was accepted on this connection.
        broken: The property that the controller violates.
    """

    controller: int
    sends: tuple[tuple[NodeName, ToAgent], ...] = ()
    notes: tuple[str, ...] = ()
    gone: tuple[Process, ...] = ()
    registers: bool = False
    broken: str | None = None


@dataclass(slots=True, frozen=True)
class Outlook:
    """Facts about a controller state that decide which steps are possible. Times are nanoseconds from now."""

    is_down: bool
    outcome: str | None
    waiting: tuple[str, ...]
    deadline_ns: int | None
    silence_ns: dict[NodeName, int]  # by watched node: until its lease expires
    watch_ns: dict[NodeName, int]  # by watched node: until it is suspected, or else its lease expires
    suspected: tuple[NodeName, ...] = ()  # the next heartbeat of each is an event


def first_controller(graph: RoleGraph) -> Controller:
    """Return a new controller whose clock starts at START_NS, its deadlines moved accordingly."""
    controller = Controller(graph, tuple(node.name for node in graph.cluster.nodes))
    for due in list(controller.state.due):
        controller.state.due.set(due, (controller.state.due.at(due) or 0) + START_NS)
    return controller


class ControllerStates:
    """Known controller states of one job, and the transitions from each. Facts about a state are computed once."""

    def __init__(self, graph: RoleGraph) -> None:
        self._graph, self._keys = graph, Keys(graph)
        self.known: Numbered[ControllerState] = Numbered()
        self.first = self._number(ControllerState(first_controller(graph), Sessions(graph.options)))
        self.outlook, self.pass_time = cache(self._outlook), cache(self._pass_time)

    def _number(self, snapshot: ControllerState) -> int:
        key = self._keys.of_controller(snapshot.controller, snapshot.sessions, snapshot.now)
        return self.known.number(digest_of((key, snapshot.is_down)), snapshot)

    def decide(self, number: int, trigger: Trigger) -> Decided:
        """Hand a message, a proof of death, an operator's request or a deadline to the controller."""
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
            after, tuple(handling.sends), tuple(handling.notes), tuple(sorted(handling.gone)), handling.registers
        )

    def _pass_time(self, number: int, by_ns: int, heard: tuple[NodeName, ...]) -> int:
        """Return the state after `by_ns`, with a heartbeat of each node in `heard` at the end."""
        before = self.known.items[number]
        snapshot = replace(before, sessions=copy_of(before.sessions), now=before.now + by_ns)
        for node in heard:
            snapshot.sessions.note_heartbeat(node, snapshot.now)
        return self._number(snapshot)

    def _outlook(self, number: int) -> Outlook:
        """Return the facts about a controller state."""
        snapshot = self.known.items[number]
        job = snapshot.controller.state
        if snapshot.is_down:
            return Outlook(True, job.outcome, ("a controller to take over",), None, {}, {})
        at = snapshot.controller.deadline()
        detector = snapshot.sessions._detector
        silence = {node: until - snapshot.now for node, until in detector._until_ns.items()}
        watch = {node: detector._due(node) - snapshot.now for node in detector._until_ns}
        waits, deadline_ns = tuple(waiting_for(job)), None if at is None else at - snapshot.now
        return Outlook(False, job.outcome, waits, deadline_ns, silence, watch, tuple(detector._suspected))


_WITHOUT_ATTEMPT = StoreOpened | StoreLost | CheckpointOffered | NodeWarm | GpuFailed


def _is_of_ended_attempt(snapshot: ControllerState, trigger: Trigger) -> bool:
    """Return whether this is a report of an ended attempt (R20) that arrives while no deadline is due."""
    if not isinstance(trigger, Report) or isinstance(trigger.event, _WITHOUT_ATTEMPT):
        return False
    replica, due = snapshot.controller.state.replicas[trigger.event.replica], snapshot.controller.deadline()
    is_present = replica.attempt == trigger.event.attempt and replica.is_live
    return not is_present and (due is None or due > snapshot.now)


class _Handling:
    """One trigger, handled with the sessions and the controller as the production driver does."""

    def __init__(self, snapshot: ControllerState, graph: RoleGraph) -> None:
        self._snapshot, self._graph = snapshot, graph
        self.sends: list[tuple[NodeName, ToAgent]] = []
        self.notes: list[str] = []
        self.gone: dict[Process, None] = {}
        self.registers = False

    def take(self, trigger: Trigger, *, replays: bool) -> None:
        snapshot = self._snapshot
        match trigger:
            case NodeGone() | CancelRequested() | DrainRequested():
                snapshot.sessions.note(trigger)
                self._handle(trigger)
            case TimePassed():
                for silent in snapshot.sessions.expire(snapshot.now):
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
        """Check that a fresh controller that replays the record reaches the same state (R21)."""
        entries, entry = [], self._snapshot.record
        while entry is not None:
            entries.append(entry)
            entry = entry[0]
        fresh = first_controller(self._graph)
        for _, event, at in reversed(entries):
            fresh.handle(event, at)
        assert fresh.state == self._snapshot.controller.state, "a replay leads to another state"

    def _receive(self, message: ToController) -> None:
        sessions, node = self._snapshot.sessions, message.node
        heard = sessions.hear(message, self._snapshot.now)
        if isinstance(message, Join) and heard.answers:
            self.registers = True
            if self._snapshot.controller.state.outcome is not None:
                self.sends.append((node, sessions.dismiss(node)))
        self.sends += [(node, answer) for answer in heard.answers]
        for event in heard.events:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        snapshot = self._snapshot
        job = snapshot.controller.state
        if job.outcome is not None:
            return
        before = {replica.id: replica.attempt for replica in job.replicas.values()}
        effects = snapshot.controller.handle(event, snapshot.now)
        snapshot.record = (snapshot.record, event, snapshot.now)
        check_job(job)
        for effect in effects:
            match effect:
                case Notify():
                    self.notes.append(effect.text)
                case FinishJob():
                    self.sends += [(node, snapshot.sessions.dismiss(node)) for node in job.nodes]
                case _:
                    self.sends.append((effect.node, snapshot.sessions.order(effect)))
            if isinstance(effect, StartReplica) and effect.attempt > before[effect.replica]:  # no resent order
                self._must_be_gone(effect)

    def _must_be_gone(self, start: StartReplica) -> None:
        """Note which attempts must have ended: all of the restart set, before any replica of it starts again (R6)."""
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
