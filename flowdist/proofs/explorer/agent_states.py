"""A node's side of a small job, in states that never change: its agent, and the processes that it started."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.messages import Acked, Heartbeat, Join, ToAgent, ToController
from flowdist.graph import NodeSpec, RoleGraph
from flowdist.proofs.explorer.common import START_NS, Hears, Life, Numbered, Process
from flowdist.proofs.explorer.copies import Keys, copy_of, digest_of

STORE_PORT = 29_500
STEP = 7  # that a worker asks about when somebody wants to know


ALIVE = ("up", "ready", "asked", "waits", "saving", "left")


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

    def __init__(self, graph: RoleGraph, spec: NodeSpec, *, asks: bool, elastic: bool) -> None:
        """`asks`: workers ask should_stop() before each step. `elastic`: they are in elastic code from the start."""
        self._graph, self._spec, self._keys = graph, spec, Keys(graph)
        self._asks, self._elastic = asks, elastic
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

    def message(self, number: int, message: ToAgent) -> Did:
        """A message of the controller arrives."""
        if isinstance(message, Acked):
            sent_ns = message.sent_ns + self.known.items[number].now
            message = msgspec.structs.replace(message, sent_ns=sent_ns)
        return self.tell(number, message)

    def live(self, number: int, process: Process, life: Life, *events: io.AgentInput) -> Did:
        """A process goes on to its next phase, and the agent is told."""
        body = copy_of(self.known.items[number])
        body.lives[process] = life
        return self._after(number, body, events)

    def begin(self, number: int, process: Process, ports: tuple[tuple[str, int], ...]) -> Did:
        """The process runs, or goes on in another generation."""
        elastic = (io.WorkerElastic(*process, 0),) if self._elastic else ()
        return self.live(number, process, "up", io.WorkersSpawned(*process, ports), *elastic)

    def suspend(self, number: int, process: Process) -> Did:
        """The process has left its generation, and waits."""
        return self.live(number, process, "suspended", io.WorkerSuspended(*process, 0))

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

    def leave_step(self, number: int, process: Process) -> Did:
        """The worker has saved at the agreed step, and goes on from there."""
        return self.live(number, process, "left", io.WorkerLeftStep(*process, 0))

    def wait(self, number: int, process: Process) -> Did:
        """The worker asks should_stop() again, and waits for the step to be named."""
        body = copy_of(self.known.items[number])
        body.lives[process] = "waits"
        return Did(self._number(body))

    def later(self, number: int, by_ns: int, hears: Hears, *, may_beat: bool) -> Did:
        """After some time. What is answered was acknowledged just now; what may beat has sent its last heartbeat.

        All heartbeats of that time are one: to hear of the last is to hear of all.
        """
        before = self.known.items[number]
        body = copy_of(before)
        lease, period = body.agent.lease, self._graph.options.heartbeat_ns
        end = before.now + by_ns
        sends: list[ToController] = []
        if hears == "answered":
            lease.acked(end)
            lease.beat_at_ns = end + period
        elif hears == "refused":
            lease.refused(end)
        elif lease.beat_at_ns is not None and lease.beat_at_ns <= end:
            if may_beat:
                fence = body.agent._fence_at_ns()
                last = end if fence is None else min(end, fence - 1)
                if lease.beat_at_ns <= last:
                    body.now = last - (last - lease.beat_at_ns) % period
                    sends = self._carry_out(body, (io.AgentTimePassed(),))
            lease.beat_at_ns = end + period
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
                        _spawn(body, output)
                    case io.LeaveGeneration():
                        if body.lives.get((output.replica, output.attempt)) in ALIVE:
                            body.lives[output.replica, output.attempt] = "leaving"
                    case io.SignalWorkers():
                        _signal(body, (output.replica, output.attempt), output.signal)
                    case io.BindStore():
                        inputs.append(io.StoreBound(output.world, output.generation, STORE_PORT + output.generation))
                    case io.EndAgent():  # its guardian kills what is left
                        body.lives = dict.fromkeys(body.lives, "killed")
                    case io.AskWorkers():
                        inputs.append(self._asked(body, (output.replica, output.attempt)))
                    case io.TellWorkers():
                        if body.lives.get((output.replica, output.attempt)) in ("asked", "waits"):
                            body.lives[output.replica, output.attempt] = "saving"
                    case io.KillStore() | io.WritePeers() | io.AnswerWorker() | io.LookForSigns():
                        pass
        return sends

    def _asked(self, body: Body, process: Process) -> io.WorkersAsked:
        if not self._asks or body.lives.get(process) not in ALIVE:
            return io.WorkersAsked(*process, None)
        if body.lives[process] in ("up", "ready"):
            body.lives[process] = "asked"
        return io.WorkersAsked(*process, STEP)


def _relative(messages: list[ToController], now: int) -> tuple[ToController, ...]:
    """With their times counted from now."""
    return tuple(
        msgspec.structs.replace(message, sent_ns=message.sent_ns - now)
        if isinstance(message, Join | Heartbeat)
        else message
        for message in messages
    )


def _spawn(body: Body, output: io.SpawnWorkers) -> None:
    """A process that waits for the next generation of its replica goes on as another attempt."""
    start = output.start
    if output.kept:
        body.lives = {process: life for process, life in body.lives.items() if process[0] != start.replica}
    body.lives[start.replica, start.attempt] = "spawning"


def _signal(body: Body, process: Process, signal: str) -> None:
    life = body.lives.get(process)
    if life in ("suspended", "parting"):  # it has nothing to do with what runs
        body.lives[process] = "parting"
    elif life is not None and life != "killed":
        body.lives[process] = "killed" if signal == "KILL" else "told"
