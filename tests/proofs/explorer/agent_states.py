"""States of one node's software, its agent and the processes that the agent started; a numbered state never changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.messages import Acked, Heartbeat, Join, ToAgent, ToController
from flowdist.graph import NodeSpec, RoleGraph
from tests.proofs.explorer.common import START_NS, Contact, Life, Numbered, Process
from tests.proofs.explorer.copies import Keys, copy_of, digest_of
from tests.proofs.explorer.vaults import VAULT_PORT, VaultState, has_vaults

STORE_PORT = 29_500
STEP = 7  # the answer of each worker that is asked for its step
ALIVE = ("up", "ready", "asked", "waits", "saving", "left")  # phases of a process in its generation, without any signal


@dataclass(slots=True)
class AgentState:
    """Agent and processes of a node. For a dead node, `agent` and `vault` are those that start when it comes back.

    `lives` is the phase of each process, `starts` how often the node has started, and `now` the agent's clock in ns.
    """

    agent: Agent
    vault: VaultState
    lives: dict[Process, Life] = field(default_factory=dict)
    is_alive: bool = True
    starts: int = 1
    now: int = START_NS


@dataclass(slots=True, frozen=True)
class Reaction:
    """Result of one step of an agent: the number of the next state, and the messages that it sends to the controller.

    `broken` describes an exception of the agent; None if there was none.
    """

    agent_state: int
    sends: tuple[ToController, ...] = ()
    broken: str | None = None


class AgentStates:
    """All known agent states of one node by number, and what follows from each.

    `first` is the number of the state before the agent connects. The methods change no state: each returns the next one
    with what the agent sends.
    """

    def __init__(self, graph: RoleGraph, spec: NodeSpec, *, asks: bool, elastic: bool) -> None:
        """Create the first state.

        Args:
            graph: The job.
            spec: The node.
            asks: Workers call should_stop() before each step.
            elastic: Workers can be suspended, from their start on.
        """
        self._graph, self._spec, self._keys = graph, spec, Keys(graph)
        self._asks, self._elastic = asks, elastic
        self.known: Numbered[AgentState] = Numbered()
        self.first = self._number(self._started(starts=1))

    def _started(self, starts: int) -> AgentState:
        """Return the node's start number `starts`. The incarnations of its agent begin at the next thousand.

        Its vault listens from the beginning.
        """
        agent = Agent(self._spec, self._graph, incarnation=1000 * (starts - 1) + 1)
        vault = VaultState(VAULT_PORT if has_vaults(self._graph) else 0)
        if vault.port:
            agent.handle(io.VaultBound(vault.port), START_NS)
        return AgentState(agent, vault, starts=starts)

    def _number(self, snapshot: AgentState) -> int:
        key = self._keys.of_agent(snapshot.agent, snapshot.now)
        lives = [(*process, life) for process, life in snapshot.lives.items()]
        vault = self._keys.of_vault(snapshot.vault)
        return self.known.number(digest_of((key, lives, vault, snapshot.is_alive, snapshot.starts)), snapshot)

    def send(self, number: int, *events: io.AgentInput) -> Reaction:
        """Have the agent in state `number` handle these inputs, in order."""
        snapshot = copy_of(self.known.items[number])
        return self._after(number, snapshot, events)

    def message(self, number: int, message: ToAgent) -> Reaction:
        """Have the agent handle a message of the controller, whose times are relative to now."""
        if isinstance(message, Acked):
            now = self.known.items[number].now
            message = msgspec.structs.replace(message, sent_ns=message.sent_ns + now, at_ns=message.at_ns + now)
        return self.send(number, message)

    def set_life(self, number: int, process: Process, life: Life, *events: io.AgentInput) -> Reaction:
        """Set the phase of a process, and have the agent handle these events."""
        snapshot = copy_of(self.known.items[number])
        snapshot.lives[process] = life
        return self._after(number, snapshot, events)

    def begin(self, number: int, process: Process, ports: tuple[tuple[str, int], ...]) -> Reaction:
        """Let a spawning process run with these ports, in elastic code if its job has that, and tell the agent."""
        snapshot = copy_of(self.known.items[number])
        snapshot.lives[process] = "up"
        if snapshot.vault.port:
            snapshot.vault.expect_own(snapshot.agent.attempts[process[0]].order)
        elastic = (io.WorkerElastic(*process, 0),) if self._elastic else ()
        return self._after(number, snapshot, (io.WorkersSpawned(*process, ports), *elastic))

    def end(self, number: int, process: Process, event: io.WorkerExited | io.SpawnFailed) -> Reaction:
        """Remove a process that has ended or could not be started, and have the agent handle the event."""
        snapshot = copy_of(self.known.items[number])
        del snapshot.lives[process]
        return self._after(number, snapshot, (event,))

    def die(self, number: int) -> Reaction:
        """Return the state of the dead node: without processes, and with the agent of its next start."""
        dead = self._started(self.known.items[number].starts + 1)
        dead.is_alive = False
        return Reaction(self._number(dead))

    def store(self, number: int, shard: io.CopyStored) -> Reaction:
        """Have the vault hold a copy that was to come."""
        snapshot = copy_of(self.known.items[number])
        snapshot.vault.hold(shard)
        return self._after(number, snapshot, (shard,))

    def damage(self, number: int, shard: io.CopyStored) -> Reaction:
        """Have the vault find a copy damaged, and drop it."""
        snapshot = copy_of(self.known.items[number])
        del snapshot.vault.held[shard]
        damaged = io.CopyDamaged(shard.world, shard.generation, shard.step, shard.rank)
        return self._after(number, snapshot, (damaged,))

    def end_vault(self, number: int) -> Reaction:
        """Let the process of the vault die, with all that it has and was to get."""
        snapshot = copy_of(self.known.items[number])
        snapshot.vault = VaultState(number=snapshot.vault.number)
        return self._after(number, snapshot, (io.VaultExited(),))

    def begin_vault(self, number: int) -> Reaction:
        """Let a new vault listen. It may get the shards of others, whose vaults are told of it."""
        snapshot = copy_of(self.known.items[number])
        following = snapshot.vault.number + 1
        snapshot.vault = VaultState(VAULT_PORT + following, following)
        for attempt in snapshot.agent.attempts.values():
            snapshot.vault.expect_others(attempt.order)
        return self._after(number, snapshot, (io.VaultBound(snapshot.vault.port),))

    def come_back(self, number: int) -> Reaction:
        """Return the state after a dead node has started again and its agent has connected."""
        snapshot = copy_of(self.known.items[number])
        snapshot.is_alive = True
        return self._after(number, snapshot, (io.Connected(),))

    def pass_time(self, number: int, by_ns: int, contact: Contact, *, may_beat: bool) -> Reaction:
        """Return the state after `by_ns`, with at most one heartbeat sent.

        Only the last heartbeat matters, because an answer to the last one renews the lease as far as all of them.

        Args:
            number: The state.
            by_ns: How much time passes.
            contact: What happens to the heartbeats. Answered ones are not sent, but renew the lease at the end.
            may_beat: An unanswered heartbeat is sent; False while an earlier one is in flight.
        """
        before = self.known.items[number]
        snapshot = copy_of(before)
        lease, period = snapshot.agent.lease, self._graph.options.heartbeat_ns
        end = before.now + by_ns
        sends: list[ToController] = []
        if contact == "answered":
            lease.acked(end, end)
            lease.beat_at_ns = end + period
        elif contact == "refused":
            lease.refused(end)
        elif lease.beat_at_ns is not None and lease.beat_at_ns <= end:
            if may_beat:
                fence = snapshot.agent.fence_at_ns()
                last = end if fence is None else min(end, fence - 1)
                if lease.beat_at_ns <= last:
                    snapshot.now = last - (last - lease.beat_at_ns) % period
                    sends = self._carry_out(snapshot, (io.AgentTimePassed(),))
            lease.beat_at_ns = end + period
        snapshot.now = end
        return Reaction(self._number(snapshot), self._relative(sends, end))

    def _after(self, number: int, snapshot: AgentState, events: tuple[io.AgentInput, ...]) -> Reaction:
        """Have the agent of `snapshot`, a changed copy of state `number`, handle the events; number the result."""
        try:
            sends = self._carry_out(snapshot, events)
        except Exception as error:  # any exception of the agent is a finding
            return Reaction(number, broken=f"the agent of {self._spec.name}: {type(error).__name__}: {error}")
        return Reaction(self._number(snapshot), self._relative(sends, snapshot.now))

    def _carry_out(self, snapshot: AgentState, events: tuple[io.AgentInput, ...]) -> list[ToController]:
        """Have the agent handle the events and all that follows at once; carry out its outputs on the snapshot.

        Returns:
            The messages to the controller, with absolute times.
        """
        sends: list[ToController] = []
        inputs = list(events)
        while inputs:
            for output in snapshot.agent.handle(inputs.pop(0), snapshot.now):
                match output:
                    case io.Send():
                        sends.append(output.message)
                    case io.SpawnWorkers():
                        _spawn(snapshot, output)
                    case io.LeaveGeneration():
                        if snapshot.lives.get((output.replica, output.attempt)) in ALIVE:
                            snapshot.lives[output.replica, output.attempt] = "leaving"
                    case io.SignalWorkers():
                        _signal(snapshot, (output.replica, output.attempt), output.signal)
                    case io.BindStore():
                        inputs.append(io.StoreBound(output.world, output.generation, STORE_PORT + output.generation))
                    case io.EndAgent():  # the guardian kills all workers
                        snapshot.lives = dict.fromkeys(snapshot.lives, "killed")
                    case io.AskWorkers():
                        inputs.append(self._asked(snapshot, (output.replica, output.attempt)))
                    case io.TellWorkers():
                        if snapshot.lives.get((output.replica, output.attempt)) in ("asked", "waits"):
                            snapshot.lives[output.replica, output.attempt] = "saving"
                    case io.VaultOrder():
                        snapshot.vault.obey(output.order)
                    case io.KillStore() | io.WritePeers() | io.AnswerWorker() | io.LookForSigns():
                        pass
        return sends

    def _asked(self, snapshot: AgentState, process: Process) -> io.WorkersAsked:
        """Return the answer of a process that is asked for its step; one that runs is in phase `asked` from now on.

        The step is None if the process has ended, or never calls should_stop().
        """
        if not self._asks or snapshot.lives.get(process) not in ALIVE:
            return io.WorkersAsked(*process, None)
        if snapshot.lives[process] in ("up", "ready"):
            snapshot.lives[process] = "asked"
        return io.WorkersAsked(*process, STEP)

    def _relative(self, messages: list[ToController], now: int) -> tuple[ToController, ...]:
        """Return the messages with their times relative to `now`: one in the past is negative.

        The agent keeps the time of the last answer on its own clock. One lease ago is as good as never.
        """
        oldest, relative = -self._graph.options.lease_ns, list[ToController]()
        for message in messages:
            if isinstance(message, Heartbeat):
                message = msgspec.structs.replace(message, answered_ns=max(message.answered_ns - now, oldest))
            if isinstance(message, Join | Heartbeat):
                message = msgspec.structs.replace(message, sent_ns=message.sent_ns - now)
            relative.append(message)
        return tuple(relative)


def _spawn(snapshot: AgentState, output: io.SpawnWorkers) -> None:
    """Add the spawning process of a start order. With `kept` it replaces the replica's suspended process."""
    start = output.start
    if output.kept:
        snapshot.lives = {process: life for process, life in snapshot.lives.items() if process[0] != start.replica}
    snapshot.lives[start.replica, start.attempt] = "spawning"
    if snapshot.vault.port:
        snapshot.vault.expect_others(start)


def _signal(snapshot: AgentState, process: Process, signal: str) -> None:
    """Set the phase of a process that is sent SIGTERM, SIGABRT or SIGKILL; nothing if there is no such process."""
    life = snapshot.lives.get(process)
    if life in ("suspended", "discarded"):  # SIGTERM and SIGKILL both end it at once
        snapshot.lives[process] = "discarded"
    elif life is not None and life != "killed":
        snapshot.lives[process] = "killed" if signal == "KILL" else "terminating"
