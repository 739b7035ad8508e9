"""Sessions: what the messages of agents mean, and what the controller answers.

A driver, real or simulated, passes each message to `Sessions.hear`, and sends the answers and handles the events that
it returns. Decided here: whether a message is late news (R20), when a node has to join anew, and what a controller that
has taken over may expect of the nodes that it has not heard (R21).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import assert_never

import msgspec

from flowdist.control.connection.failure_detector import FailureDetector
from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import Order
from flowdist.control.protocol.events import (
    ControllerStarted,
    Event,
    NodeGone,
    NodeJoined,
    NodeLeft,
    NodePreempted,
    NodeSilent,
    NodeSuspected,
)
from flowdist.control.protocol.ids import NodeName
from flowdist.control.protocol.messages import (
    Acked,
    Dismissed,
    Heartbeat,
    Join,
    Leave,
    Ordered,
    Preempted,
    Rejoin,
    Report,
    ToAgent,
    ToController,
)
from flowdist.graph import JobOptions


class Received(msgspec.Struct, frozen=True):
    """The consequences of a message: answers to the agent that sent it, and after them events for the controller."""

    answers: tuple[ToAgent, ...] = ()
    events: tuple[Event, ...] = ()


class Sessions:
    """Sessions of all nodes.

    Args:
        options: The timeouts of the job.
        epoch: The number of this controller among those of the job. Every message to agents carries it, and an agent
            refuses a lower one than it has seen (R21).
    """

    def __init__(self, options: JobOptions, epoch: int = 1) -> None:
        self.epoch = epoch
        self._options = options
        self._detector = FailureDetector(options.silent_after_ns, options.suspect_after_ns)
        self._incarnations: dict[NodeName, int] = {}

    def take_over(self, job: JobState, now: int, far: Container[NodeName] = ()) -> ControllerStarted:
        """Begin a new epoch after a restart from the journal, and watch every node that was up.

        Such a node counts as up for as long as its agent may keep its workers without a controller: the longer of the
        lease and `controller_outage`, plus the margin. Nothing of it is placed again before (R21).

        Args:
            job: The state that was rebuilt from the journal.
            now: The present time, in ns.
            far: Nodes on other hosts. A refused connection proves nothing to their agents, so they have fenced when the
                lease is over that the last controller renewed.
        """
        self.epoch = job.epoch + 1
        for name, node in job.nodes.items():
            self._incarnations[name] = node.incarnation
            if node.usable:
                kept_ns = self._options.lease_ns if name in far else self._options.controller_outage_ns
                self._detector.watch(name, now, kept_ns + self._options.lease_margin_ns)
        return ControllerStarted(self.epoch)

    def hear(self, message: ToController, now: int) -> Received:
        """Return what follows from a message. A message of an agent that has fenced since says nothing (R20)."""
        node = message.node
        if message.incarnation < self._incarnations.get(node, 0):
            return Received()
        match message:
            case Report():
                return Received((), (message.event,)) if self._detector.is_watched(node) else Received()
            case Heartbeat():
                heard = tuple(self._detector.heard(node, now))
                if self._detector.is_watched(node):
                    return Received((Acked(self.epoch, message.incarnation, message.sent_ns),), heard)
                return Received((Rejoin(self.epoch, message.incarnation),), heard)
            case Join():
                self._incarnations[node] = message.incarnation
                self._detector.watch(node, now)
                spec, address, items = message.spec, message.address, message.inventory
                news = (items, message.is_warming, message.bad_gpus)
                joined = NodeJoined(node, spec, address, message.incarnation, *news)
                return Received((Acked(self.epoch, message.incarnation, message.sent_ns),), (joined,))
            case Preempted():
                return Received((), (NodePreempted(node, message.notice_ns),))
            case Leave():
                self._detector.forget(node)
                return Received((), (NodeLeft(node),))
            case _:
                assert_never(message)

    def order(self, order: Order) -> Ordered:
        """Return the message that carries an order to its node."""
        return Ordered(self.epoch, self._incarnations.get(order.node, 0), order)

    def dismiss(self, node: NodeName) -> Dismissed:
        """Return the message that tells the agent of a node that the job is over."""
        return Dismissed(self.epoch, self._incarnations.get(node, 0))

    def note_heartbeat(self, node: NodeName, at: int) -> None:
        """Note the last of the heartbeats that a simulator did not play; it arrived at `at`."""
        self._detector.heard(node, at)

    def note(self, event: Event) -> None:
        """Note an event that did not come from an agent: a node that is lost need not be watched."""
        if type(event) is NodeGone:
            self._detector.forget(event.node)

    def gone(self, node: NodeName, incarnation: int, cause: str) -> tuple[NodeGone, ...]:
        """Return the event that a node is lost, as the guardian of its agent says with its last words.

        Args:
            node: The node, on another host.
            incarnation: The last agent that the guardian knows of. If a later one has joined the words are late news
                (R20).
            cause: How the agent ended.
        """
        if incarnation < self._incarnations.get(node, 0):
            return ()
        event = NodeGone(node, cause)
        self.note(event)
        return (event,)

    def is_watched(self, node: NodeName) -> bool:
        """Return whether the node has joined, so that its silence would be noticed."""
        return self._detector.is_watched(node)

    def is_heard(self, node: NodeName) -> bool:
        """Return whether the next heartbeat of the node is no event."""
        return self._detector.is_heard(node)

    def expire(self, now: int) -> list[NodeSuspected | NodeSilent]:
        """Return an event for each node that is suspected or silent by now: see `FailureDetector`."""
        return self._detector.expire(now)

    def deadline(self) -> int | None:
        """Return when to call `expire` next; None if no node is watched."""
        return self._detector.deadline()

    def deadline_of(self, nodes: Iterable[NodeName]) -> int | None:
        """Return the deadline for these nodes alone; for a simulator that knows that all others are heard."""
        return self._detector.deadline_of(nodes)
