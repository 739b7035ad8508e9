"""The controller's side of a small job, in states that never change: a controller with its sessions, or none at all.

Equal keys have the same number, and what an input does to a state is worked out once for each and kept. Times in
messages count from now, so that a message does not depend on how its sender came to be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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

REPLAYED_ONE_IN = 16  # of the controllers that are taken over from: replay takes as long as the path is


class Crash(msgspec.Struct, frozen=True):
    """The controller dies."""


class TakeOver(msgspec.Struct, frozen=True):
    """Another controller goes on from the record."""


News = ToController | NodeGone | CancelRequested | DrainRequested | TimePassed | Crash | TakeOver
Entry = tuple["Entry | None", Event, int]  # the record: what was before, the event, when


@dataclass(slots=True)
class Brain:
    """`now` is its clock, `record` what was written on one of the ways here."""

    controller: Controller
    sessions: Sessions
    now: int = START_NS
    is_down: bool = False
    record: Entry | None = None


@dataclass(slots=True, frozen=True)
class Decided:
    """What one input made of the controller: to whom it speaks, in order, and what it says of it to people.

    `gone` are processes that must not be there, by the controller's own word: replicas of the restart set of what it
    starts, with the last attempt of each that has to be over. `registers`: the connection is the node's from now on.
    """

    brain: int
    sends: tuple[tuple[NodeName, ToAgent], ...] = ()
    notes: tuple[str, ...] = ()
    gone: tuple[Process, ...] = ()
    registers: bool = False
    broken: str | None = None


@dataclass(slots=True, frozen=True)
class Outlook:
    """What a state of the controller means for what may come. Times are nanoseconds from now."""

    is_down: bool
    outcome: str | None
    waiting: tuple[str, ...]
    deadline_ns: int | None
    silence_ns: dict[NodeName, int]  # of each node that is watched: until it counts as silent
    watch_ns: dict[NodeName, int]  # the same, or until it is overdue if it is not that yet
    overdue: tuple[NodeName, ...] = ()  # of these: the next heartbeat is news


def first_controller(graph: RoleGraph) -> Controller:
    """Its clock has run for a while."""
    controller = Controller(graph, tuple(node.name for node in graph.cluster.nodes))
    for due in list(controller.state.due):
        controller.state.due.set(due, (controller.state.due.at(due) or 0) + START_NS)
    return controller


class Brains:
    """Every state of the controller that was met, and what follows from each input."""

    def __init__(self, graph: RoleGraph) -> None:
        self._graph, self._keys = graph, Keys(graph)
        self.known: Numbered[Brain] = Numbered()
        self.first = self._number(Brain(first_controller(graph), Sessions(graph.options)))
        self._outlook: dict[int, Outlook] = {}

    def _number(self, brain: Brain) -> int:
        key = self._keys.of_controller(brain.controller, brain.sessions, brain.now)
        return self.known.number(digest_of((key, brain.is_down)), brain)

    def decide(self, number: int, news: News) -> Decided:
        """What follows from a message, from the proof that a node is dead, or when a deadline has come."""
        before = self.known.items[number]
        brain = replace(before, controller=copy_of(before.controller), sessions=copy_of(before.sessions))
        turn = _Turn(brain, self._graph)
        try:
            turn.take(news, replays=number % REPLAYED_ONE_IN == 0)
        except Exception as error:  # whatever it is, it is what we look for
            return Decided(number, broken=f"{type(error).__name__}: {error}", notes=tuple(turn.notes))
        after = self._number(brain)
        if _is_late(before, news) and (after != number or turn.sends):
            return Decided(number, broken="news of an attempt that is over changes something", notes=tuple(turn.notes))
        return Decided(after, tuple(turn.sends), tuple(turn.notes), tuple(sorted(turn.gone)), turn.registers)

    def later(self, number: int, by_ns: int, heard: tuple[NodeName, ...]) -> int:
        """The same state after some time in which these nodes were heard to its end."""
        before = self.known.items[number]
        brain = replace(before, sessions=copy_of(before.sessions), now=before.now + by_ns)
        for node in heard:
            brain.sessions.note_heartbeat(node, brain.now)
        return self._number(brain)

    def outlook(self, number: int) -> Outlook:
        found = self._outlook.get(number)
        if found is None:
            found = self._outlook[number] = _outlook(self.known.items[number])
        return found


def _outlook(brain: Brain) -> Outlook:
    job = brain.controller.state
    if brain.is_down:
        return Outlook(True, job.outcome, ("a controller to take over",), None, {}, {})
    at = brain.controller.deadline()
    liveness = brain.sessions._detector
    silence = {node: until - brain.now for node, until in liveness._until_ns.items()}
    watch = {node: liveness._due(node) - brain.now for node in liveness._until_ns}
    waits, deadline_ns = tuple(waiting_for(job)), None if at is None else at - brain.now
    return Outlook(False, job.outcome, waits, deadline_ns, silence, watch, tuple(liveness._suspected))


_OF_NO_ATTEMPT = StoreOpened | StoreLost | CheckpointOffered | NodeWarm | GpuFailed


def _is_late(brain: Brain, news: News) -> bool:
    """News of an attempt that is not the present one, or is over (R20), at a moment at which nothing else is due."""
    if not isinstance(news, Report) or isinstance(news.event, _OF_NO_ATTEMPT):
        return False
    replica, due = brain.controller.state.replicas[news.event.replica], brain.controller.deadline()
    is_present = replica.attempt == news.event.attempt and replica.is_live
    return not is_present and (due is None or due > brain.now)


class _Turn:
    """One input of the controller, carried out as its driver does."""

    def __init__(self, brain: Brain, graph: RoleGraph) -> None:
        self._brain, self._graph = brain, graph
        self.sends: list[tuple[NodeName, ToAgent]] = []
        self.notes: list[str] = []
        self.gone: dict[Process, None] = {}
        self.registers = False

    def take(self, news: News, *, replays: bool) -> None:
        brain = self._brain
        match news:
            case NodeGone() | CancelRequested() | DrainRequested():
                brain.sessions.note(news)
                self._handle(news)
            case TimePassed():
                for silent in brain.sessions.expire(brain.now):
                    self._handle(silent)
                deadline = brain.controller.deadline()
                if deadline is not None and deadline <= brain.now:
                    self._handle(news)
            case Crash():
                brain.is_down, brain.sessions = True, Sessions(self._graph.options)
            case TakeOver():
                if replays:
                    self._replay()
                brain.is_down = False
                self._handle(brain.sessions.take_over(brain.controller.state, brain.now))
            case Join() | Heartbeat() | Report() | Preempted() | Leave():
                self._hear(news)

    def _replay(self) -> None:
        """A controller that is fed the record is where the last one was (R21)."""
        entries, entry = [], self._brain.record
        while entry is not None:
            entries.append(entry)
            entry = entry[0]
        fresh = first_controller(self._graph)
        for _, event, at in reversed(entries):
            fresh.handle(event, at)
        assert fresh.state == self._brain.controller.state, "a controller that replays the record is elsewhere"

    def _hear(self, message: ToController) -> None:
        sessions, node = self._brain.sessions, message.node
        heard = sessions.hear(message, self._brain.now)
        if isinstance(message, Join) and heard.answers:
            self.registers = True
            if self._brain.controller.state.outcome is not None:
                self.sends.append((node, sessions.dismiss(node)))
        self.sends += [(node, answer) for answer in heard.answers]
        for event in heard.events:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        brain = self._brain
        job = brain.controller.state
        if job.outcome is not None:
            return
        before = {replica.id: replica.attempt for replica in job.replicas.values()}
        effects = brain.controller.handle(event, brain.now)
        brain.record = (brain.record, event, brain.now)
        check_job(job)
        for effect in effects:
            match effect:
                case Notify():
                    self.notes.append(effect.text)
                case FinishJob():
                    self.sends += [(node, brain.sessions.dismiss(node)) for node in job.nodes]
                case _:
                    self.sends.append((effect.node, brain.sessions.order(effect)))
            if isinstance(effect, StartReplica) and effect.attempt > before[effect.replica]:  # not said again
                self._must_be_gone(effect)

    def _must_be_gone(self, start: StartReplica) -> None:
        """All of a restart set is gone before anything of it starts again (R6)."""
        job = self._brain.controller.state
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
