"""Property of jobs over bad links: slow, silent in one direction, broken. Each message is judged where it arrives.

The simulator's own links are fast. There, a lease that counts from the wrong moment does no harm, nor does an order for
an earlier incarnation of an agent. Here each direction of a link has its own latency, which may be infinite. Held
messages arrive in order when the link recovers, unless the connection has broken in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
from hypothesis import strategies as st

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AskStep, Order, StopAtStep, StopReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.protocol.messages import Ordered, Report, ToAgent, ToController
from flowdist.faults.grammar import Plan
from flowdist.graph import MS, SECOND, NodeSpec, RoleGraph
from flowdist.proofs.runs import judge_simulation
from flowdist.record.restart_rules import Complaint, complaints
from flowdist.sim.engine.controller import SimController
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.engine.node import SimNode
from flowdist.sim.simulation import Checks, Simulation, Violation
from flowdist.testing.strategies import fault_plans, topologies

UNTIL_NS = 75 * SECOND
Action = Literal["up", "down", "drop", "echo"]
Key = tuple[ReplicaId, int]


class Change(NamedTuple):
    """A change of one node's link at a moment.

    Args:
        what: `up` (to the controller) and `down` set the latency of that direction. `drop` breaks the connection; the
            agent connects again after 1 s. `echo` repeats the last message of an earlier controller epoch, as a
            controller does that does not know yet that another has taken over.
        latency_ns: The new latency; None holds all messages back.
    """

    at_ns: int
    node: NodeName
    what: Action
    latency_ns: int | None = None


class Network(NamedTuple):
    """Case of this property: a job on two nodes, its faults, and the changes of its links."""

    graph: RoleGraph
    plan: Plan
    changes: tuple[Change, ...]


def networks() -> st.SearchStrategy[Network]:
    """Return a strategy for jobs on two nodes with faults and changes of links."""
    lists = st.lists(st.one_of(_changes().map(lambda change: (change,)), _spells()), max_size=3)
    flat = lists.map(lambda spells: tuple(change for spell in spells for change in spell))

    def with_faults(graph: RoleGraph) -> st.SearchStrategy[Network]:
        return st.builds(Network, st.just(graph), fault_plans(graph, most=3, operator=False), flat)

    return topologies(domains=False).map(_small).flatmap(with_faults)


def _small(graph: RoleGraph) -> RoleGraph:
    """Return the job on two nodes with a narrow lease margin, so that being late by 1 s matters."""
    options = msgspec.structs.replace(graph.options, lease_margin_ns=SECOND // 2)
    cluster = msgspec.structs.replace(graph.cluster, nodes=graph.cluster.nodes[:2])
    return msgspec.structs.replace(graph, options=options, cluster=cluster)


SECONDS = (3, 12, 16, 21, 30)
LINKS = ("node0", "node1")
LATENCIES = (None, 0, 20 * MS, SECOND, 2 * SECOND)


def _changes() -> st.SearchStrategy[Change]:
    at_ns = st.sampled_from(SECONDS).map(lambda seconds: seconds * SECOND)
    what: st.SearchStrategy[Action] = st.sampled_from(["up", "down", "drop", "echo"])
    return st.builds(Change, at_ns, st.sampled_from(LINKS), what, st.sampled_from(LATENCIES))


@st.composite
def _spells(draw: st.DrawFn) -> tuple[Change, ...]:
    """Draw two changes of one link, 2 s to 6 s apart."""
    node, at_ns = draw(st.sampled_from(LINKS)), draw(st.sampled_from(SECONDS)) * SECOND
    what: st.SearchStrategy[Action] = st.sampled_from(["down", "up"])
    first, second = st.sampled_from([None, 2 * SECOND]), st.sampled_from([None, 0])
    gap_ns = draw(st.sampled_from([2, 4, 6])) * SECOND
    return (
        Change(at_ns, node, draw(what), draw(first)),
        Change(at_ns + gap_ns, node, draw(what), draw(second)),
    )


def judge_network(case: Network) -> list[Complaint]:
    """Simulate the case, and return what the checks on the way or the judges of the record find."""
    return judge_simulation(
        lambda: SlowSimulation(case.graph, case.plan, case.changes).run(UNTIL_NS),
        lambda result: complaints(result.lines),
    )


class SlowSimulation(Simulation):
    """Simulation with such links, in which every heartbeat is a message."""

    def __init__(self, graph: RoleGraph, plan: Plan, changes: tuple[Change, ...]) -> None:
        self.latencies: dict[tuple[NodeName, Action], int | None] = {}
        self.held: dict[tuple[NodeName, Action], list[Callable[[], None]]] = {}
        self.last_ns: dict[tuple[NodeName, Action], int] = {}
        self.sent: dict[NodeName, list[ToAgent]] = {}
        super().__init__(graph, plan, play_heartbeats=True)
        for change in changes:
            self.queue.at(change.at_ns, partial(self._change, change))

    def _new_controller(self, checks: Checks) -> SimController:
        return SlowController(self, checks)

    def _new_node(self, spec: NodeSpec, starts: int) -> SimNode:
        return SlowNode(self, spec, self._controller, starts)

    def carry(self, name: NodeName, way: Action, arrive: Callable[[], None]) -> None:
        """Deliver a message after the latency of its direction, in the order of sending."""
        latency = self.latencies.get((name, way), LATENCY_NS)
        if latency is None:
            self.held.setdefault((name, way), []).append(arrive)
            return
        at = max(self.queue.now + latency, self.last_ns.get((name, way), 0))
        self.last_ns[name, way] = at
        self.queue.at(at, arrive)

    def _change(self, change: Change) -> None:
        node = self.nodes[change.node]
        match change.what:
            case "up" | "down":
                self.latencies[change.node, change.what] = change.latency_ns
                for arrive in self.held.pop((change.node, change.what), []):
                    self.carry(change.node, change.what, arrive)
            case "drop":
                node.link += 1
                node.tell(io.Disconnected())
                self.queue.after(SECOND, node.connect)
            case "echo":
                old = [message for message in self.sent.get(change.node, []) if message.epoch < node.agent.epoch]
                orders = [message for message in old if isinstance(message, Ordered)]
                for message in orders[-1:] or old[-1:]:
                    node.tell(message)


class SlowController(SimController):
    """Controller at the other end of such links."""

    def __init__(self, sim: SlowSimulation, checks: Checks) -> None:
        super().__init__(sim.ctx, sim.nodes, sim, checks)
        self._slow = sim

    def handle(self, event: ev.Event) -> None:
        """Handle an event; a node whose lease has expired must run nothing any more (R19)."""
        if isinstance(event, ev.NodeSilent):
            node = self._slow.nodes[event.node]
            ran = [str(replica) for (replica, _), alive in node.workers.items() if alive] if node.is_alive else []
            if ran:
                raise Violation("R19", f"{event.node} is lost while {ran[0]} runs there")
        super().handle(event)

    def _send(self, node: SimNode, message: ToAgent) -> None:
        self._slow.sent.setdefault(node.spec.name, []).append(message)
        link = node.link
        self._slow.carry(node.spec.name, "down", lambda: node.receive(message, link))


class SlowNode(SimNode):
    """Node with such a link. Each output of its agent is checked as it is produced."""

    def __init__(self, sim: SlowSimulation, spec: NodeSpec, controller: SimController, starts: int) -> None:
        super().__init__(sim.ctx, spec, controller, sim.work, sim.running, starts)
        self._slow = sim
        self._asked: dict[Key, None] = {}  # attempts with an order to stop, or a question for their step
        self._failed: dict[Key, None] = {}  # attempts with a worker that failed before such an order

    def tell(self, event: io.AgentInput) -> None:
        if not self.is_alive or self.is_paused:
            super().tell(event)
            return
        now = self._slow.queue.now
        outputs = self.agent.handle(io.AgentTimePassed(), now)  # so that what follows is due to the event alone
        is_stale = isinstance(event, ToAgent) and (
            event.epoch < self.agent.epoch or event.incarnation != self.agent.incarnation
        )
        if isinstance(event, Ordered) and not is_stale and not self.agent.is_fencing:
            self._note(event.order)
        before = (self.agent.epoch, self.agent.lease.acked_ns)
        follows = self.agent.handle(event, now)
        if is_stale and (follows or before != (self.agent.epoch, self.agent.lease.acked_ns)):
            raise Violation("R20", f"{self.spec.name} obeys an outdated message: {event}")
        for output in outputs + follows:
            self._judge(output)
            self._carry_out(output)
        self._plan()

    def _note(self, order: Order) -> None:
        if isinstance(order, StopReplica | AskStep | StopAtStep):
            attempt = self.agent.attempts.get(order.replica)
            if attempt is not None and attempt.order.attempt == order.attempt:
                self._asked[order.replica, order.attempt] = None

    def exit_worker(self, replica: ReplicaId, attempt: int, local_rank: int, **how: Any) -> None:
        if (how.get("code") or how.get("signal")) and (replica, attempt) not in self._asked:
            self._failed[replica, attempt] = None
        super().exit_worker(replica, attempt, local_rank, **how)

    def _judge(self, output: io.AgentOutput) -> None:
        """Check that an attempt that ends after a stop, or under a notice, counts as stopped (R16)."""
        if not isinstance(output, io.Send) or not isinstance(output.message, Report):
            return
        event = output.message.event
        if isinstance(event, ev.ReplicaExited):
            key = (event.replica, event.attempt)
            if key in self._asked and key not in self._failed:
                end = event.kind or "success"
                raise Violation("R16", f"{event.replica} had an order to stop, and its end counts as {end}")

    def _send(self, message: ToController) -> None:
        link = self.link

        def arrive() -> None:
            if link == self.link and not self._ctx.is_down and not self.net.is_cut("up"):
                self._controller.hear(message)

        if not self.net.is_cut("up"):
            self._slow.carry(self.spec.name, "up", arrive)
