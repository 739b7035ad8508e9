"""The two halves of a small job, each a pure machine with what its driver would hold, in states that never change.

`Brain` is the controller with liveness, `Body` the agent of one node with its processes. Both are kept by number: equal
keys have the same number, and what an input does to a state is worked out once. Times in messages count from now, so
that a message does not depend on how its sender came to be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

from flowdist.control import agent_io as io
from flowdist.control.agent import Agent
from flowdist.control.controller import Controller
from flowdist.control.effects import FinishJob, Notify, StartReplica, StopReplica
from flowdist.control.events import CancelRequested, Event, NodeGone, NodeJoined, NodeLeft, TimePassed
from flowdist.control.ids import NodeName, ReplicaId
from flowdist.control.liveness import Liveness
from flowdist.control.messages import (
    Acked,
    Dismissed,
    Heartbeat,
    Join,
    Leave,
    Ordered,
    Rejoin,
    Report,
    ToAgent,
    ToController,
)
from flowdist.control.waiting import waiting_for
from flowdist.graph import HOUR, NodeSpec, RoleGraph
from flowdist.testing.explorer_copies import Keys, copy_of, digest_of

EPOCH = 1
START_NS = HOUR  # of every clock: no time is zero
STORE_PORT = 29_500
WORKER_PORT = 20_000


@dataclass(slots=True, frozen=True)
class How:
    """What is left out unless it is asked for.

    `cancels`: the operator may cancel the job, with its grace or at once; that counts as a fault. `reorders`: messages
    overtake each other on one connection, which is a stream. `obeys_late`: agents hear what was meant for an earlier
    incarnation of theirs. `loses_stops`: a stop that a connection took along is not said again.
    """

    cancels: bool = False
    reorders: bool = False
    obeys_late: bool = False
    loses_stops: bool = False


class Stamped(msgspec.Struct, frozen=True):
    """A message of the controller, with the incarnation of the agent that it is meant for."""

    incarnation: int
    message: ToAgent


Process = tuple[ReplicaId, int]  # one attempt: its only worker
News = ToController | NodeGone | CancelRequested | TimePassed  # what the controller's driver is told
Life = Literal[
    "spawning",
    "up",
    "ready",
    "told",  # has got SIGTERM
    "killed",  # has got SIGKILL
]


T = TypeVar("T")


class Numbered(Generic[T]):
    """States by number; those with equal keys share one."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any, item: T) -> int:
        """`item` is kept if its key is new."""
        found = self._numbers.setdefault(key, len(self.items))
        if found == len(self.items):
            self.items.append(item)
        return found

    def of(self, item: T) -> int:
        """Of something that is its own key."""
        return self.number(item, item)


@dataclass(slots=True)
class Brain:
    """The controller's side. `now` is its clock, `incarnations` the highest heard of each node."""

    controller: Controller
    liveness: Liveness
    incarnations: dict[NodeName, int] = field(default_factory=dict)
    now: int = START_NS


@dataclass(slots=True, frozen=True)
class Decided:
    """What one input made of the controller: to whom it speaks, in order, and what it says of it to people.

    `gone` are processes that must not be there, by the controller's own word: replicas of the restart set of what it
    starts, with the last attempt of each that has to be over. `registers`: the connection is the node's from now on.
    """

    brain: int
    sends: tuple[tuple[NodeName, Stamped], ...] = ()
    notes: tuple[str, ...] = ()
    gone: tuple[Process, ...] = ()
    registers: bool = False
    broken: str | None = None


def first_brain(graph: RoleGraph) -> Brain:
    names = tuple(node.name for node in graph.cluster.nodes)
    controller = Controller(graph, names)
    controller.state.due = copy_of(controller.state.due)
    for due in list(controller.state.due):
        controller.state.due.set(due, (controller.state.due.at(due) or 0) + START_NS)
    return Brain(controller, Liveness(graph.options.lease_ns, graph.options.lease_margin_ns))


class Brains:
    """Every state of the controller that was met, and what follows from each input."""

    def __init__(self, graph: RoleGraph, how: How) -> None:
        self._how, self._keys = how, Keys(graph)
        self.known: Numbered[Brain] = Numbered()
        self.first = self._number(first_brain(graph))
        self._outlook: dict[int, Outlook] = {}

    def _number(self, brain: Brain) -> int:
        key = self._keys.of_controller(brain.controller, brain.liveness, brain.now)
        return self.known.number(digest_of((key, sorted(brain.incarnations.items()))), brain)

    def decide(self, number: int, news: News) -> Decided:
        """What follows from a message, from the proof that a node is dead, or when a deadline has come."""
        brain = copy_of(self.known.items[number])
        turn = _Turn(brain, self._how)
        try:
            turn.take(news)
        except Exception as error:  # whatever it is, it is what we look for
            return Decided(number, broken=f"{type(error).__name__}: {error}", notes=tuple(turn.notes))
        return Decided(
            self._number(brain), tuple(turn.sends), tuple(turn.notes), tuple(sorted(turn.gone)), turn.registers
        )

    def later(self, number: int, by_ns: int, heard: tuple[NodeName, ...]) -> int:
        """The same state after some time in which these nodes were heard to its end."""
        before = self.known.items[number]
        brain = Brain(before.controller, copy_of(before.liveness), before.incarnations, before.now + by_ns)
        for node in heard:
            brain.liveness.heard(node, brain.now)
        return self._number(brain)

    def outlook(self, number: int) -> Outlook:
        found = self._outlook.get(number)
        if found is None:
            found = self._outlook[number] = _outlook(self.known.items[number])
        return found


@dataclass(slots=True, frozen=True)
class Outlook:
    """What a state of the controller means for what may come. Times are nanoseconds from now."""

    outcome: str | None
    waiting: tuple[str, ...]
    deadline_ns: int | None
    silence_ns: dict[NodeName, int]  # of each node that is watched: until it counts as silent


def _outlook(brain: Brain) -> Outlook:
    job, liveness = brain.controller.state, brain.liveness
    at = brain.controller.deadline()
    silent_after = liveness._silent_after_ns
    silence = {node: heard + silent_after - brain.now for node, heard in liveness._heard_ns.items()}
    return Outlook(job.outcome, tuple(waiting_for(job)), None if at is None else at - brain.now, silence)


class _Turn:
    """One input of the controller, carried out as its driver does."""

    def __init__(self, brain: Brain, how: How) -> None:
        self._brain, self._loses_stops = brain, how.loses_stops
        self.sends: list[tuple[NodeName, Stamped]] = []
        self.notes: list[str] = []
        self.gone: dict[Process, None] = {}
        self.registers = False

    def take(self, news: News) -> None:
        brain = self._brain
        match news:
            case NodeGone():
                brain.liveness.forget(news.node)
                self._handle(news)
            case CancelRequested():
                self._handle(news)
            case TimePassed():
                for silent in brain.liveness.expire(brain.now):
                    self._handle(silent)
                deadline = brain.controller.deadline()
                if deadline is not None and deadline <= brain.now:
                    self._handle(news)
            case _:
                if news.incarnation >= brain.incarnations.get(news.node, 0):
                    self._hear(news)

    def _hear(self, message: ToController) -> None:
        brain, node = self._brain, message.node
        match message:
            case Join():
                brain.incarnations[node] = message.incarnation
                self.registers = True
                brain.liveness.watch(node, brain.now)
                self._send(node, Acked(EPOCH, message.sent_ns))
                stops = [] if self._loses_stops else self._stops_again(message)
                self._handle(NodeJoined(node, message.spec, message.address, message.incarnation, message.inventory))
                for stop in stops:
                    self._send(node, Ordered(EPOCH, stop))
            case Heartbeat() if brain.liveness.is_watched(node):
                brain.liveness.heard(node, brain.now)
                self._send(node, Acked(EPOCH, message.sent_ns))
            case Heartbeat():
                for heard in brain.liveness.heard(node, brain.now):
                    self._handle(heard)
                self._send(node, Rejoin(EPOCH))
            case Report():
                self._handle(message.event)
            case Leave():
                brain.liveness.forget(node)
                self._handle(NodeLeft(node))

    def _stops_again(self, message: Join) -> list[StopReplica]:
        """For what was told to stop before the connection was lost, and runs."""
        job = self._brain.controller.state
        stops = []
        for item in message.inventory:
            replica = job.replicas[item.replica]
            is_same = replica.node == message.node and replica.attempt == item.attempt
            if is_same and replica.phase == "stopping" and item.phase in ("starting", "running", "ready"):
                grace_ns = job.role_of(replica.id).spec.stop_grace_ns
                stops.append(StopReplica(message.node, replica.id, replica.attempt, grace_ns))
        return stops

    def _handle(self, event: Event) -> None:
        brain = self._brain
        job = brain.controller.state
        if job.outcome is not None:
            return
        before = {replica.id: replica.attempt for replica in job.replicas.values()}
        effects = brain.controller.handle(event, brain.now)
        job.check()
        for effect in effects:
            match effect:
                case Notify():
                    self.notes.append(effect.text)
                case FinishJob():
                    for name in brain.incarnations:
                        self._send(name, Dismissed(EPOCH))
                case _:
                    self._send(effect.node, Ordered(EPOCH, effect))
            if isinstance(effect, StartReplica) and effect.attempt > before[effect.replica]:  # not said again
                self._must_be_gone(effect)

    def _send(self, node: NodeName, message: ToAgent) -> None:
        self.sends.append((node, Stamped(self._brain.incarnations.get(node, 0), message)))

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


@dataclass(slots=True)
class Body:
    """A node's side. A dead node holds the agent that it will start with when it comes back."""

    agent: Agent
    lives: dict[Process, Life] = field(default_factory=dict)
    is_alive: bool = True
    starts: int = 1
    now: int = START_NS


@dataclass(slots=True, frozen=True)
class Did:
    """What one input made of a node, and what it says to the controller."""

    body: int
    sends: tuple[ToController, ...] = ()
    broken: str | None = None


class Bodies:
    """Every state of one node that was met, and what follows from each input."""

    def __init__(self, graph: RoleGraph, spec: NodeSpec, how: How) -> None:
        self._graph, self._spec, self._obeys_late, self._keys = graph, spec, how.obeys_late, Keys(graph)
        self.known: Numbered[Body] = Numbered()
        self.first = self._number(Body(self._agent(starts=1)))

    def _agent(self, starts: int) -> Agent:
        """As in production: a thousand incarnations for each start."""
        return Agent(self._spec, self._graph, incarnation=1000 * (starts - 1) + 1)

    def _number(self, body: Body) -> int:
        key = self._keys.of_agent(body.agent, body.now)
        lives = [(*process, life) for process, life in body.lives.items()]
        return self.known.number(digest_of((key, lives, body.is_alive, body.starts)), body)

    def tell(self, number: int, *events: io.AgentInput) -> Did:
        """Inputs for the agent, now."""
        body = copy_of(self.known.items[number])
        return self._after(number, body, events)

    def message(self, number: int, stamped: Stamped) -> Did:
        """A message of the controller arrives. Unless `obeys_late`, one for an earlier incarnation is not heard."""
        message = stamped.message
        incarnation = self.known.items[number].agent.incarnation
        if stamped.incarnation < incarnation and not self._obeys_late and not isinstance(message, Dismissed):
            return Did(number)
        if isinstance(message, Acked):
            sent_ns = message.sent_ns + self.known.items[number].now
            message = msgspec.structs.replace(message, sent_ns=sent_ns)
        return self.tell(number, message)

    def live(self, number: int, process: Process, life: Life, event: io.AgentInput) -> Did:
        """A process goes on to its next phase, and the agent is told."""
        body = copy_of(self.known.items[number])
        body.lives[process] = life
        return self._after(number, body, (event,))

    def end(self, number: int, process: Process, event: io.WorkerExited | io.SpawnFailed) -> Did:
        """A process ends, or never came to be, and the agent is told."""
        body = copy_of(self.known.items[number])
        del body.lives[process]
        return self._after(number, body, (event,))

    def die(self, number: int) -> Did:
        """Power off."""
        starts = self.known.items[number].starts + 1
        return Did(self._number(Body(self._agent(starts), is_alive=False, starts=starts)))

    def come_back(self, number: int) -> Did:
        body = copy_of(self.known.items[number])
        body.is_alive = True
        return self._after(number, body, (io.Connected(),))

    def later(self, number: int, by_ns: int, *, is_heard: bool, may_beat: bool) -> Did:
        """After some time. What is heard has just been acknowledged; what may beat has sent its last heartbeat of it.

        All heartbeats of that time are one: to hear of the last is to hear of all.
        """
        before = self.known.items[number]
        body = copy_of(before)
        agent, period = body.agent, self._graph.options.heartbeat_ns
        end = before.now + by_ns
        sends: list[ToController] = []
        if is_heard:
            agent.acked_ns, agent.beat_at_ns = end, end + period
        elif agent.beat_at_ns is not None and agent.beat_at_ns <= end:
            if may_beat:
                fence = agent._fence_at_ns()
                last = end if fence is None else min(end, fence - 1)
                if agent.beat_at_ns <= last:
                    body.now = last - (last - agent.beat_at_ns) % period
                    sends = self._carry_out(body, (io.AgentTimePassed(),))
            agent.beat_at_ns = end + period
        body.now = end
        return Did(self._number(body), _relative(sends, end))

    def _after(self, number: int, body: Body, events: tuple[io.AgentInput, ...]) -> Did:
        try:
            sends = self._carry_out(body, events)
        except Exception as error:  # whatever it is, it is what we look for
            return Did(number, broken=f"the agent of {self._spec.name}: {type(error).__name__}: {error}")
        return Did(self._number(body), _relative(sends, body.now))

    def _carry_out(self, body: Body, events: tuple[io.AgentInput, ...]) -> list[ToController]:
        sends: list[ToController] = []
        inputs = list(events)
        while inputs:
            for output in body.agent.handle(inputs.pop(0), body.now):
                match output:
                    case io.Send():
                        sends.append(output.message)
                    case io.SpawnWorkers():
                        body.lives[output.start.replica, output.start.attempt] = "spawning"
                    case io.SignalWorkers():
                        _signal(body, (output.replica, output.attempt), output.signal)
                    case io.BindStore():
                        inputs.append(io.StoreBound(output.world, output.generation, STORE_PORT + output.generation))
                    case io.EndAgent():  # its guardian kills what is left
                        body.lives = dict.fromkeys(body.lives, "killed")
                    case io.KillStore() | io.WritePeers() | io.AnswerWorker():
                        pass
        return sends


def _relative(messages: list[ToController], now: int) -> tuple[ToController, ...]:
    """With their times counted from now."""
    return tuple(
        msgspec.structs.replace(message, sent_ns=message.sent_ns - now)
        if isinstance(message, Join | Heartbeat)
        else message
        for message in messages
    )


def _signal(body: Body, process: Process, signal: str) -> None:
    life = body.lives.get(process)
    if life is not None and life != "killed":
        body.lives[process] = "killed" if signal == "KILL" else "told"
