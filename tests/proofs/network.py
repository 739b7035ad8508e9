"""Property of jobs whose links are bad: slow, silent in one direction, or broken.

The simulator's own links are fast. There, a lease that counts from the wrong moment does no harm, nor does an order for
an earlier incarnation of an agent. Here each direction of a link has its own latency, which may be infinite. Messages
that are held back arrive in order when the link recovers, unless the connection has broken in the meantime. What an
agent does with each message is checked when the message arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
from hypothesis import strategies as st

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Order, StopReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.protocol.messages import Ordered, Report, ToAgent, ToController
from flowdist.faults.grammar import Plan
from flowdist.graph import MS, SECOND, NodeSpec, RoleGraph
from flowdist.sim.engine.controller import SimController
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.engine.node import SimNode
from flowdist.sim.simulation import Checks, Simulation, Violation
from flowdist.testing.strategies import fault_plans, topologies
from tests.proofs.judge.restart_rules import Complaint, complaints
from tests.proofs.runs import judge_simulation

UNTIL_NS = 75 * SECOND
Action = Literal["up", "down", "drop", "echo"]
Key = tuple[ReplicaId, int]


class Change(NamedTuple):
    """Change of the link between one node and the controller.

    Args:
        at_ns: When the link changes, in ns since the start of the job.
        node: The node.
        what: `up` (to the controller) and `down` set the latency of that direction. `drop` breaks the connection; the
            agent connects again after 1 s. `echo` sends the agent the last message of an earlier epoch once more, as
            a controller does that does not know yet that another has taken over.
        latency_ns: The new latency, for `up` and `down`; None holds all messages back.
    """

    at_ns: int
    node: NodeName
    what: Action
    latency_ns: int | None = None


class Network(NamedTuple):
    """Case of `judge_network`: a job on two nodes, the plan of its faults, and the changes of its links."""

    graph: RoleGraph
    plan: Plan
    changes: tuple[Change, ...]


def networks() -> st.SearchStrategy[Network]:
    """Return a Hypothesis strategy for cases: jobs on two nodes, with up to three faults and changes of links."""
    # a link that never changes is what the other properties have
    lists = st.lists(st.one_of(_changes().map(lambda change: (change,)), _spells()), min_size=1, max_size=3)
    flat = lists.map(lambda spells: tuple(change for spell in spells for change in spell))

    def with_faults(graph: RoleGraph) -> st.SearchStrategy[Network]:
        return st.builds(Network, st.just(graph), fault_plans(graph, most=3, operator=False), flat)

    return topologies(domains=False).map(_small).flatmap(with_faults)


def _small(graph: RoleGraph) -> RoleGraph:
    """Return the job with two nodes and a lease margin of 0.5 s, so that a delay of 1 s can break the lease."""
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
    """Draw two changes of latency of one link, 2 s to 6 s apart: mostly an outage or a delay, and its end."""
    node, at_ns = draw(st.sampled_from(LINKS)), draw(st.sampled_from(SECONDS)) * SECOND
    directions: st.SearchStrategy[Action] = st.sampled_from(["down", "up"])
    what = draw(directions)
    other = draw(st.one_of(st.just(what), directions))
    first, second = st.sampled_from([None, 2 * SECOND]), st.sampled_from([None, 0])
    gap_ns = draw(st.sampled_from([2, 4, 6])) * SECOND
    return (
        Change(at_ns, node, what, draw(first)),
        Change(at_ns + gap_ns, node, other, draw(second)),
    )


def judge_network(case: Network) -> list[Complaint]:
    """Simulate the case for 75 s, and return what is wrong: a failed check on the way, else what the record breaks."""
    return judge_simulation(
        lambda: SlowSimulation(case.graph, case.plan, case.changes).run(UNTIL_NS),
        lambda result: complaints(result.lines),
    )


class SlowSimulation(Simulation):
    """Simulation whose links change latency, break and echo as `changes` say; every heartbeat is a message."""

    def __init__(self, graph: RoleGraph, plan: Plan, changes: tuple[Change, ...]) -> None:
        self.latencies: dict[tuple[NodeName, Action], int | None] = {}
        self.held: dict[tuple[NodeName, Action], list[Callable[[], None]]] = {}
        self.last_ns: dict[tuple[NodeName, Action], int] = {}
        self.sent: dict[NodeName, list[ToAgent]] = {}
        self.over_ns: dict[tuple[NodeName, int], int] = {}  # when each incarnation of an agent fenced
        super().__init__(graph, plan, play_heartbeats=True)
        for change in changes:
            self.queue.at(change.at_ns, partial(self._change, change))

    def _new_controller(self, checks: Checks) -> SimController:
        return SlowController(self, checks)

    def new_node(self, spec: NodeSpec, starts: int) -> SimNode:
        return SlowNode(self, spec, self._controller, starts)

    def carry(self, name: NodeName, way: Action, arrive: Callable[[], None]) -> None:
        """Send a message over the link of a node: call `arrive` after the latency of the direction.

        Messages of one direction arrive in the order of sending. While the latency is None, the message is held back.

        Args:
            name: The node.
            way: The direction, `up` or `down`.
            arrive: Delivers the message.
        """
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
    """Controller of a `SlowSimulation`: its messages take the slow links, and its losses of nodes are checked."""

    def __init__(self, sim: SlowSimulation, checks: Checks) -> None:
        super().__init__(sim.ctx, sim.nodes, sim, checks)
        self._slow = sim

    def handle(self, event: ev.Event) -> None:
        """Handle an event, as the base class does.

        Raises:
            Violation: A node is lost as silent while a worker still runs there (R19). Or a suspected node is heard as
                of a time at which its agent had fenced, or was dead (R8).
        """
        if isinstance(event, ev.NodeHeard) and event.up_ns is not None:
            over_ns = self._slow.over_ns.get((event.node, self._ctx.controller.state.nodes[event.node].incarnation))
            if over_ns is not None and over_ns < event.up_ns:
                raise Violation("R8", f"{event.node} is heard as of {event.up_ns}, and has fenced at {over_ns}")
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
    """Node of a `SlowSimulation`, which checks every reaction of its agent."""

    def __init__(self, sim: SlowSimulation, spec: NodeSpec, controller: SimController, starts: int) -> None:
        super().__init__(sim.ctx, spec, controller, sim.work, sim.running, starts)
        self._slow = sim
        self._told: dict[Key, None] = {}  # attempts with an order to stop, or at the agreed step
        self._failed: dict[Key, None] = {}  # attempts with a worker that failed before such an order

    def tell(self, event: io.AgentInput) -> None:
        """Have the agent handle an input, and check and carry out its outputs.

        Raises:
            Violation: The agent reacts to a message of an earlier epoch or another incarnation (R20), or reports an
                end in a wrong way (R16).
        """
        if not self.is_alive or self.is_paused:
            super().tell(event)
            return
        now, incarnation = self._slow.queue.now, self.agent.incarnation
        outputs = self.agent.handle(io.AgentTimePassed(), now)  # so that `follows` is due to the event alone
        is_stale = isinstance(event, ToAgent) and (
            event.epoch < self.agent.epoch or event.incarnation != self.agent.incarnation
        )
        if isinstance(event, Ordered) and not is_stale and not self.agent.is_fencing:
            self._note(event.order)
        before = (self.agent.epoch, self.agent.lease.acked_ns)
        follows = self.agent.handle(event, now)
        if is_stale and (follows or before != (self.agent.epoch, self.agent.lease.acked_ns)):
            raise Violation("R20", f"{self.spec.name} obeys an outdated message: {event}")
        if self.agent.is_fencing or self.agent.incarnation != incarnation:
            self._slow.over_ns.setdefault((self.spec.name, incarnation), now)
        for output in outputs + follows:
            self._judge(output)
            self._carry_out(output)
        self._plan()

    def _note(self, order: Order) -> None:
        """Record that the attempt of the order has been ordered to stop."""
        if isinstance(order, StopReplica):
            attempt = self.agent.attempts.get(order.replica)
            if attempt is not None and attempt.order.attempt == order.attempt:
                self._told[order.replica, order.attempt] = None

    def exit_worker(self, replica: ReplicaId, attempt: int, local_rank: int, **how: Any) -> None:
        """End a worker, as the base class does, and record whether it had been told to stop, or has failed before."""
        if self._workers.was_stopping(replica, attempt):
            self._told[replica, attempt] = None
        if (how.get("code") or how.get("signal")) and (replica, attempt) not in self._told:
            self._failed[replica, attempt] = None
        super().exit_worker(replica, attempt, local_rank, **how)

    def _judge(self, output: io.AgentOutput) -> None:
        """Check one output of the agent: an attempt that was told to stop, or at the agreed step, has stopped (R16).

        Raises:
            Violation: The agent reports the end as a failure or success.
        """
        if not isinstance(output, io.Send) or not isinstance(output.message, Report):
            return
        event = output.message.event
        if isinstance(event, ev.ReplicaExited):
            key = (event.replica, event.attempt)
            if key in self._told and key not in self._failed:
                end = event.kind or "success"
                raise Violation("R16", f"{event.replica} had an order to stop, and its end counts as {end}")

    def _send(self, message: ToController) -> None:
        link = self.link

        def arrive() -> None:
            if link == self.link and not self._ctx.is_down and not self.net.is_cut("up"):
                self._controller.hear(message)

        if not self.net.is_cut("up"):
            self._slow.carry(self.spec.name, "up", arrive)
