"""States of one node with its connection, and the steps that are possible there.

The steps of a node do not depend on the rest of the job's state, so they are computed once for each state of the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Literal

import msgspec

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import effects
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Acked, Heartbeat, Join, OfVault, Ordered, Report, ToAgent, ToController
from flowdist.graph import MINUTE, NodeSpec, RoleGraph
from tests.proofs.explorer.agent_states import AgentState, AgentStates, Reaction
from tests.proofs.explorer.common import Allowed, Contact, Numbered, Process
from tests.proofs.explorer.vaults import VaultState, has_vaults
from tests.proofs.explorer.words import describe, shard_text

WORKER_PORT = 20_000
NOTICE_NS = MINUTE  # of preemption
NOT_RUNNING = ("spawning", "suspended", "discarded")  # phases of a process that runs in no generation
Messages = Numbered[ToController | ToAgent]


class Pace(Enum):
    """Urgency of a step, relative to the passing of time.

    Time never passes while a step is PROMPT; while a step is SOON, time passes only as a fault.
    """

    PROMPT = "prompt"  # a kill, a start, a reached deadline
    SOON = "soon"  # a message, a proof of death, an end after SIGTERM
    LATER = "later"  # time passes to the next deadline
    FREE = "free"  # the end of a task, the return of a node: at any time, or never
    FAULT = "fault"


@dataclass(slots=True, frozen=True)
class NodeState:
    """State of a node with its connection: the number of its agent state, and the numbers of the messages in flight.

    `up` are the messages to the controller, `down` those to the agent, in the order of sending. `link` is `open` once
    the agent has connected, and `known` once the controller has received its Join on that connection.
    """

    agent_state: int
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    link: Literal["none", "open", "known"] = "none"
    is_unsure: bool = False  # news of its vault, or an order to it, arrive twice: what is old may be taken for new
    is_unproven: bool = False  # the node died, and the proof has not arrived
    is_refused: bool = False  # every attempt to connect is refused: no controller listens


@dataclass(slots=True, frozen=True)
class Step:
    """One possible step of a node, which leaves the controller as it is.

    Args:
        text: What happens, for the path to a violation.
        pace: Its urgency.
        node: The number of the next node state.
        broken: The property that the step violates, in words; None if it violates none.
        listens: True: possible only while a controller listens. False: only while none does. None: always.
    """

    text: str
    pace: Pace
    node: int
    broken: str | None = None
    listens: bool | None = None


@dataclass(slots=True, frozen=True)
class View:
    """Facts about a node state that decide which moves of the job are possible. Times are nanoseconds from now.

    `is_prompt` and `is_soon`: a step of that pace is possible. `deadlines_ns` is the agent's next deadline, by what
    happens to its heartbeats. `broken` is the property that the state violates.
    """

    node: NodeState
    steps: tuple[Step, ...]
    processes: tuple[Process, ...]  # the running ones
    running: frozenset[ReplicaId]
    is_prompt: bool
    is_soon: bool
    is_empty: bool  # no process exists, and no order to start one is in flight
    is_known: bool  # the controller knows what the vault holds: there is no news of it
    vault: VaultState
    is_in_contact: bool  # heartbeats are answered as long as the controller listens
    deadlines_ns: dict[Contact, int | None]
    broken: str | None


NO_DEADLINES: dict[Contact, int | None] = {"answered": None, "refused": None, "unanswered": None}


class NodeStates:
    """All known states of one node by number, and what follows from each.

    `first` is the number of the state in which the agent has connected and sent its Join. Methods take and return
    numbers of states and messages, and change no state; `view`, `pushed`, `cut` and `pass_time` compute each result
    once.
    """

    def __init__(
        self, graph: RoleGraph, spec: NodeSpec, messages: Messages, allowed: Allowed, *, asks: bool, elastic: bool
    ) -> None:
        self._graph, self._name, self._messages, self._allowed = graph, spec.name, messages, allowed
        self._agents = AgentStates(graph, spec, asks=asks, elastic=elastic)
        self._known: Numbered[NodeState] = Numbered()
        self._number = self._known.of
        self.view, self.pushed = cache(self._view_of), cache(self._pushed)
        self.cut, self.pass_time = cache(self._cut), cache(self._pass_time)
        reaction = self._agents.send(self._agents.first, io.Connected())
        self.first = self._moved(NodeState(self._agents.first, link="open"), reaction)

    def _pushed(self, number: int, messages: tuple[int, ...]) -> int:
        """Return the state after the controller has sent these messages; without a known connection they are lost."""
        node = self._known.items[number]
        return self._number(replace(node, down=node.down + messages)) if node.link == "known" else number

    def delivered(self, number: int, at: int, *, registers: bool, repeats: bool) -> int:
        """Return the state after a message of the agent has arrived at the controller.

        Args:
            number: The state.
            at: The index of the message in `NodeState.up`.
            registers: It was a Join that the controller accepted.
            repeats: The same message will arrive once more, after all others.
        """
        node = self._known.items[number]
        up = node.up[:at] + node.up[at + 1 :] + ((node.up[at],) if repeats else ())
        link = "known" if registers and node.link == "open" else node.link
        is_unsure = node.is_unsure or (repeats and _is_of_vault(self._messages.items[node.up[at]]))
        is_unsure &= not registers  # a Join lists all
        return self._number(replace(node, up=up, link=link, is_unsure=is_unsure))

    def may_repeat(self, message: int) -> bool:
        """Return whether the message may arrive twice. A Join may not, because it opens a connection."""
        return not isinstance(self._messages.items[message], Join)

    def proven(self, number: int) -> int:
        """Return the state after the proof of the node's death has arrived."""
        return self._number(replace(self._known.items[number], is_unproven=False))

    def _cut(self, number: int) -> int:
        """Return the state after the connection has closed, with all messages in flight lost."""
        node = self._known.items[number]
        cut = replace(node, up=(), down=(), link="none")
        if node.link == "none":
            return self._number(cut)
        return self._moved(cut, self._agents.send(node.agent_state, io.Disconnected()))

    def _pass_time(self, number: int, by_ns: int, contact: Contact) -> int:
        """Return the state after `by_ns` without any other step. `contact` is what happens to the heartbeats."""
        node = self._known.items[number]
        beats = any(isinstance(self._messages.items[message], Heartbeat) for message in node.up)
        may_beat = node.link != "none" and not beats
        reaction = self._agents.pass_time(node.agent_state, by_ns, contact, may_beat=may_beat)
        up, down = (tuple(self._aged(message, by_ns) for message in side) for side in (node.up, node.down))
        return self._moved(replace(node, up=up, down=down), reaction)

    def _aged(self, message: int, by_ns: int) -> int:
        """Return the message with its times `by_ns` further in the past, but at most one lease ago.

        Older times make no difference to a lease, and would make the number of different messages unbounded.
        """
        old = self._messages.items[message]
        if not isinstance(old, Join | Heartbeat | Acked):
            return message
        oldest = -self._graph.options.lease_ns
        aged = msgspec.structs.replace(old, sent_ns=max(old.sent_ns - by_ns, oldest))
        if isinstance(aged, Heartbeat):
            aged = msgspec.structs.replace(aged, answered_ns=max(aged.answered_ns - by_ns, oldest))
        elif isinstance(aged, Acked):
            aged = msgspec.structs.replace(aged, at_ns=max(aged.at_ns - by_ns, oldest))
        return self._messages.of(aged)

    def _moved(self, node: NodeState, reaction: Reaction) -> int:
        """Return the number of `node` after a reaction of its agent: with the next agent state, and what it sends.

        An agent that has ended has no connection any more.
        """
        agent_state = self._agents.known.items[reaction.agent_state]
        up = node.up + tuple(self._messages.of(message) for message in reaction.sends)
        if agent_state.agent.is_over:
            return self._number(replace(node, agent_state=reaction.agent_state, up=up, down=(), link="none"))
        return self._number(replace(node, agent_state=reaction.agent_state, up=up))

    def _view_of(self, number: int) -> View:
        """Return the facts about a node state."""
        node = self._known.items[number]
        agent_state = self._agents.known.items[node.agent_state]
        steps = [*self._deliveries(node), *self._of_processes(node, agent_state), *self._of_node(node, agent_state)]
        steps += self._of_vault(node, agent_state)
        processes = [process for process, life in agent_state.lives.items() if life not in NOT_RUNNING]
        running = [replica for replica, _ in processes]
        twice = next((str(replica) for replica in running if running.count(replica) > 1), None)
        agent = agent_state.agent
        is_up = agent_state.is_alive and not agent.is_over
        is_silent = agent.is_fencing or agent.is_leaving  # it reports nothing more
        is_registered = node.link == "known" and agent.lease.acked_ns is not None
        return View(
            node=node,
            steps=tuple(steps),
            processes=tuple(processes),
            running=frozenset(running),
            is_prompt=any(step.pace is Pace.PROMPT for step in steps),
            is_soon=bool(node.up) or node.is_unproven or any(step.pace is Pace.SOON for step in steps),
            is_empty=not agent_state.lives and not any(self._starts(message) for message in node.down),
            is_known=is_up and node.link == "known" and not (node.up or node.is_unsure or is_silent),
            vault=agent_state.vault,
            is_in_contact=is_up and is_registered and not (node.up or node.down or agent.is_fencing),
            deadlines_ns=self._deadlines(node, agent_state) if is_up else NO_DEADLINES,
            broken=f"split brain: two attempts of {twice} run on {self._name}" if twice else None,
        )

    def _deadlines(self, node: NodeState, agent_state: AgentState) -> dict[Contact, int | None]:
        """Return the ns until the agent's next deadline, by what happens to its heartbeats; None: no deadline."""
        agent = agent_state.agent
        times: dict[Contact, int | None] = {
            "answered": agent.due_at_ns,
            "refused": self._deadline_refused(agent),
            "unanswered": _deadline_unanswered(node, agent),
        }
        return {contact: None if at is None else at - agent_state.now for contact, at in times.items()}

    def _starts(self, number: int) -> bool:
        """Return whether the message orders the start of a replica."""
        message = self._messages.items[number]
        return isinstance(message, Ordered) and isinstance(message.order, StartReplica)

    def _deadline_refused(self, agent: Agent) -> int | None:
        """Return the agent's next deadline, on its clock, while each attempt to connect is refused; None: no deadline.

        Each refusal extends the lease, so that the end of the longest outage is the deadline, not the lease.
        """
        since, options = agent.lease.outage_since_ns, self._graph.options
        if since is None or agent.is_fencing or agent.lease.acked_ns is None:
            return agent.due_at_ns
        times = [agent.due_at_ns, since + options.controller_outage_ns - options.lease_margin_ns]
        return min(time for time in times if time is not None)

    def _step(self, text: str, pace: Pace, node: NodeState, reaction: Reaction, listens: bool | None = None) -> Step:
        """Return the step that leads to `node` with the agent's reaction."""
        return Step(text, pace, self._moved(node, reaction), reaction.broken, listens)

    def _deliveries(self, node: NodeState) -> list[Step]:
        """Return the steps in which a message of the controller arrives at the agent, once or with a repetition."""
        steps = []
        for at, message in enumerate(node.down if self._allowed.reorders else node.down[:1]):
            content = self._messages.items[message]
            assert isinstance(content, ToAgent)
            reaction = self._agents.message(node.agent_state, content)
            rest = node.down[:at] + node.down[at + 1 :]
            text = f"{self._name} <- controller: {describe(content)}"
            steps.append(self._step(text, Pace.SOON, replace(node, down=rest), reaction))
            repeated = replace(node, down=(*rest, message), is_unsure=node.is_unsure or _is_of_vault(content))
            steps.append(self._step(f"{text} (will arrive twice)", Pace.FAULT, repeated, reaction))
        return steps

    def _of_processes(self, node: NodeState, agent_state: AgentState) -> list[Step]:
        """Return the steps of each process on the node, by its phase: run, get ready, finish, fail, end."""
        steps, agents, number = [], self._agents, node.agent_state
        for process, life in agent_state.lives.items():
            role = self._graph.role(process[0].role)
            name = f"{process[0]}#{process[1]} on {self._name}"

            def add(text: str, pace: Pace, reaction: Reaction, name: str = name) -> None:
                steps.append(self._step(f"{name} {text}", pace, node, reaction))

            if life == "spawning":
                ports = tuple((port, WORKER_PORT + process[0].index) for port in role.ports)
                add("runs", Pace.PROMPT, agents.begin(number, process, ports))
                add("cannot be started", Pace.FAULT, agents.end(number, process, io.SpawnFailed(*process)))
            elif life == "killed":
                add("is killed", Pace.PROMPT, self._ends(node, process, signal="KILL"))
            elif life == "leaving":
                gone = agents.set_life(number, process, "suspended", io.WorkerSuspended(*process, 0))
                add("leaves its generation in place", Pace.SOON, gone)
                add("fails", Pace.FAULT, self._ends(node, process, code=1))
            elif life == "suspended":
                add("dies while suspended", Pace.FAULT, self._ends(node, process, signal="SEGV"))
            elif life == "discarded":
                add("ends while suspended", Pace.PROMPT, self._ends(node, process, signal="KILL"))
            elif life == "terminating":
                add("ends after SIGTERM", Pace.SOON, self._ends(node, process, signal="TERM"))
            else:
                if life == "up" and role.ready is not None:
                    ready = agents.set_life(number, process, "ready", io.ProbePassed(*process))
                    add("gets ready", Pace.SOON, ready)
                for text, said in self._versions_of(process) if life == "up" else ():
                    add(text, Pace.SOON, agents.set_life(number, process, "ready", said))
                if life == "asked":
                    add("waits for the agreed step", Pace.SOON, agents.set_life(number, process, "waits"))
                if life == "saving":
                    left = agents.set_life(number, process, "left", io.WorkerLeftStep(*process, 0))
                    add("leaves the agreed step", Pace.SOON, left)
                if role.kind == "task" and life != "waits":
                    add("finishes", Pace.FREE, self._ends(node, process))
                add("fails", Pace.FAULT, self._ends(node, process, code=1))
        return steps

    def _versions_of(self, process: Process) -> list[tuple[str, io.AgentInput]]:
        """Return what a process may publish or acknowledge: it publishes the number of its attempt as a version.

        A process that needs a version acknowledges any that may ever be there, published or not: the controller has to
        judge it.
        """
        role = self._graph.role(process[0].role)
        if role.versions is not None:
            return [(f"acknowledges version {n}", io.WorkerAcknowledged(*process, 0, n)) for n in (1, 2)]
        if self._graph.holders_of(role.name):
            return [(f"publishes version {process[1]}", io.WorkerPublished(*process, 0, process[1]))]
        return []

    def _of_vault(self, node: NodeState, agent_state: AgentState) -> list[Step]:
        """Return the steps of the vault: it gets a copy, finds one damaged, dies, and comes back empty.

        It gets none before the messages of its node have arrived: one that comes later comes to the same.
        """
        name, agents, number, vault = self._name, self._agents, node.agent_state, agent_state.vault
        if not agent_state.is_alive or agent_state.agent.is_over or not has_vaults(self._graph):
            return []
        if not vault.port:
            return [self._step(f"a new vault of {name} listens", Pace.FREE, node, agents.begin_vault(number))]
        steps = []
        for shard in vault.to_come if not node.up else ():
            text = f"the vault of {name} holds {shard_text(shard)}"
            pace = Pace.SOON if shard.rank == 0 else Pace.FREE
            steps.append(self._step(text, pace, node, agents.store(number, shard)))
        for shard in vault.held:
            text = f"the vault of {name} finds its copy damaged of {shard_text(shard)}"
            steps.append(self._step(text, Pace.FAULT, node, agents.damage(number, shard)))
        return [*steps, self._step(f"the vault of {name} dies", Pace.FAULT, node, agents.end_vault(number))]

    def _ends(self, node: NodeState, process: Process, code: int = 0, signal: str | None = None) -> Reaction:
        """Return the agent's reaction to the end of a process."""
        life = self._agents.known.items[node.agent_state].lives.get(process)
        exited = io.WorkerExited(*process, 0, code, signal, was_stopping=life in ("saving", "left"))
        return self._agents.end(node.agent_state, process, exited)

    def _of_node(self, node: NodeState, agent_state: AgentState) -> list[Step]:
        """Return the steps of the node itself: a deadline of its agent, faults, its death, and its return."""
        name, agents, number = self._name, self._agents, node.agent_state
        agent = agent_state.agent
        if not agent_state.is_alive:
            if node.is_unproven or node.up:
                return []
            back = replace(node, link="open", is_refused=False)
            return [self._step(f"{name} comes back", Pace.FREE, back, agents.come_back(number), listens=True)]
        if agent.is_over:
            return []
        steps = []
        due = agent.deadline()
        if due is not None and due <= agent_state.now:
            passed = agents.send(number, io.AgentTimePassed())
            woken = self._step(f"{name}: a deadline of the agent", Pace.PROMPT, node, passed)
            steps += [woken] if woken.broken or woken.node != self._number(node) else []
        steps += self._of_link(node, agent)
        inputs: list[tuple[str, io.AgentInput]] = [
            (f"the store of {world} dies on {name}", io.StoreExited(world, generation))
            for (world, generation), port in agent.stores.items()
            if port is not None
        ]
        if not agent.is_leaving:
            inputs.append((f"{name} is asked to leave", io.LeaveRequested()))
        if self._allowed.operates and node.link == "known":
            inputs.append((f"{name} has a preemption notice of 1m", io.PreemptionNoticed(NOTICE_NS)))
        steps += [self._step(text, Pace.FAULT, node, agents.send(number, fault)) for text, fault in inputs]
        dead = replace(node, down=(), link="none", is_unproven=True)
        return [*steps, self._step(f"{name} dies", Pace.FAULT, dead, agents.die(number))]

    def _of_link(self, node: NodeState, agent: Agent) -> list[Step]:
        """Return the steps of the connection: it is lost, or a new one is opened or refused."""
        name, agents, number = self._name, self._agents, node.agent_state
        if node.link != "none":
            lost, cut = agents.send(number, io.Disconnected()), replace(node, up=(), down=(), link="none")
            return [self._step(f"{name} loses its connection and all messages in flight", Pace.FAULT, cut, lost)]
        back, connected = replace(node, link="open", is_refused=False), agents.send(number, io.Connected())
        steps = [self._step(f"{name} connects again", Pace.FREE, back, connected, listens=True)]
        if not node.is_refused and agent.lease.acked_ns is not None:
            refused, reaction = replace(node, is_refused=True), agents.send(number, io.Refused(is_local=True))
            text = f"{name} is refused: no controller listens"
            steps.append(self._step(text, Pace.FREE, refused, reaction, listens=False))
        return steps


def _is_of_vault(message: ToController | ToAgent) -> bool:
    """Return whether the message reports something of a vault, or has an order for one."""
    if isinstance(message, Report):
        return isinstance(message.event, OfVault)
    return isinstance(message, Ordered) and isinstance(message.order, effects.OfVault)


def _deadline_unanswered(node: NodeState, agent: Agent) -> int | None:
    """Return the agent's next deadline, on its clock, while heartbeats are not answered; None: no deadline.

    While a message is in flight, the sending of heartbeats is no deadline: the one that waits behind that message
    stands for all later ones.
    """
    if node.link == "none" or not (node.up or node.down):
        return agent.deadline()
    times = [time for time in (agent.fence_at_ns(), agent.due_at_ns) if time is not None]
    return min(times, default=None)
