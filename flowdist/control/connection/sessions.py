"""The controller's side of its connections: what the messages of agents mean, and what is answered.

Drivers, real and simulated, carry messages; that a message is old news, that a heartbeat keeps a lease, that a node
which was given up has to join anew, and what a controller that took over may expect, is decided here.
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


class Heard(msgspec.Struct, frozen=True):
    """What follows from a message: answers to the agent that sent it, then events for the controller."""

    answers: tuple[ToAgent, ...] = ()
    events: tuple[Event, ...] = ()


class Sessions:
    """`epoch` counts the controllers of the job; it is in every message to agents, who refuse a lower one (R21)."""

    def __init__(self, options: JobOptions, epoch: int = 1) -> None:
        self.epoch = epoch
        self._options = options
        self._detector = FailureDetector(options.silent_after_ns, options.suspect_after_ns)
        self._incarnations: dict[NodeName, int] = {}

    def take_over(self, job: JobState, now: int, far: Container[NodeName] = ()) -> ControllerStarted:
        """After a restart from the journal: every node that was up is up until it has been silent for too long.

        That is the longer of the lease and `controller_outage`: an agent that found nobody listening keeps its workers
        for so long, and nothing of it may be placed again before (R21). Those of `far` nodes call from other hosts:
        they fence at the end of their lease in any case, which the last controller was the last to renew.
        """
        self.epoch = job.epoch + 1
        for name, node in job.nodes.items():
            self._incarnations[name] = node.incarnation
            if node.usable:
                kept_ns = self._options.lease_ns if name in far else self._options.controller_outage_ns
                self._detector.watch(name, now, kept_ns + self._options.lease_margin_ns)
        return ControllerStarted(self.epoch)

    def hear(self, message: ToController, now: int) -> Heard:
        """A message of an agent; one of an agent that has lost what it speaks of says nothing (R20)."""
        node = message.node
        if message.incarnation < self._incarnations.get(node, 0):
            return Heard()
        match message:
            case Report():
                return Heard((), (message.event,)) if self._detector.is_watched(node) else Heard()
            case Heartbeat():
                heard = tuple(self._detector.heard(node, now))
                if self._detector.is_watched(node):
                    return Heard((Acked(self.epoch, message.incarnation, message.sent_ns),), heard)
                return Heard((Rejoin(self.epoch, message.incarnation),), heard)
            case Join():
                self._incarnations[node] = message.incarnation
                self._detector.watch(node, now)
                spec, address, items = message.spec, message.address, message.inventory
                news = (items, message.is_warming, message.bad_gpus)
                joined = NodeJoined(node, spec, address, message.incarnation, *news)
                return Heard((Acked(self.epoch, message.incarnation, message.sent_ns),), (joined,))
            case Preempted():
                return Heard((), (NodePreempted(node, message.notice_ns),))
            case Leave():
                self._detector.forget(node)
                return Heard((), (NodeLeft(node),))
            case _:
                assert_never(message)

    def order(self, order: Order) -> Ordered:
        """The message that carries an order to its node."""
        return Ordered(self.epoch, self._incarnations.get(order.node, 0), order)

    def dismiss(self, node: NodeName) -> Dismissed:
        """The message that tells an agent that the job is over."""
        return Dismissed(self.epoch, self._incarnations.get(node, 0))

    def heard(self, node: NodeName, at: int) -> None:
        """Heartbeats that a simulator did not play: the last of them arrived then."""
        self._detector.heard(node, at)

    def note(self, event: Event) -> None:
        """An event that did not come from an agent: a node that is gone need not be listened for."""
        if type(event) is NodeGone:
            self._detector.forget(event.node)

    def gone(self, node: NodeName, incarnation: int, cause: str) -> tuple[NodeGone, ...]:
        """The guardian of a node on another host says with its last words that nothing of it runs any more.

        It speaks of its own time only, up to that incarnation: of one that came later it knows nothing (R20).
        """
        if incarnation < self._incarnations.get(node, 0):
            return ()
        event = NodeGone(node, cause)
        self.note(event)
        return (event,)

    def is_watched(self, node: NodeName) -> bool:
        """It has joined, and its silence would be noticed."""
        return self._detector.is_watched(node)

    def is_heard(self, node: NodeName) -> bool:
        """The next heartbeat of the node is no news."""
        return self._detector.is_heard(node)

    def expire(self, now: int) -> list[NodeSuspected | NodeSilent]:
        return self._detector.expire(now)

    def deadline(self) -> int | None:
        return self._detector.deadline()

    def deadline_of(self, nodes: Iterable[NodeName]) -> int | None:
        """When the first of these will be overdue, or silent for too long, where all others are sure to be heard."""
        return self._detector.deadline_of(nodes)
