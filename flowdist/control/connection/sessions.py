"""Sessions: what the messages of agents mean, and what the controller answers.

A driver, real or simulated, passes each message of an agent to `Sessions.hear`. It sends the answers that `hear`
returns to that agent, and passes the events to the controller. The sessions decide whether a message is late (R20),
when a node has to join anew, and how long a controller that has taken over waits for a node that it has not heard
(R21).

The texts that agents report are cut before they are recorded. A text stays in the state of the job, in each line of the
journal that repeats it, and in every process that reads the journal. What a worker printed, or what a hostile host
says, must not decide how much memory that takes.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar, assert_never

import msgspec

from flowdist.control.connection.failure_detector import FailureDetector
from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import Order
from flowdist.control.protocol.events import (
    ControllerStarted,
    CopyBroken,
    Event,
    GpuFailed,
    InventoryItem,
    NodeGone,
    NodeJoined,
    NodeLeft,
    NodePreempted,
    NodeStandsStill,
    ReplicaExited,
    ReplicaStartsCold,
    StoreLost,
    VaultLost,
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
    Reported,
    ToAgent,
    ToController,
)
from flowdist.graph import JobOptions


class Received(msgspec.Struct, frozen=True):
    """Consequences of a message: answers to the agent that sent it, and then events for the controller to handle."""

    answers: tuple[ToAgent, ...] = ()
    events: tuple[Event, ...] = ()


class Sessions:
    """The controller's side of the connections to all agents: their incarnations, and the failure `detector`.

    Every message to agents carries `epoch`, the number of this controller among those of the job; an agent refuses a
    lower one than it has seen (R21). `take_over` sets it anew.
    """

    def __init__(self, options: JobOptions, epoch: int = 1) -> None:
        self.epoch = epoch
        self._options = options
        self.detector = FailureDetector(options.silent_after_ns, options.suspect_after_ns, options.heartbeat_ns)
        self._incarnations: dict[NodeName, int] = {}

    def take_over(self, job: JobState, now: int, far: Container[NodeName] = ()) -> ControllerStarted:
        """Begin a new epoch after a restart, watch every node that was up, and return the event to handle.

        Such a node counts as up for as long as its agent may keep its workers without a controller: the longer of the
        lease and `controller_outage`, plus the margin. Until then nothing that ran there is placed elsewhere (R21).
        Nodes on other hosts (`far`) count as up for the lease plus the margin alone: a refused connection proves
        nothing to their agents, so they fence when their present lease is over.
        """
        self.epoch = job.epoch + 1
        for name, node in job.nodes.items():
            self._incarnations[name] = node.incarnation
            if node.usable:
                kept_ns = self._options.lease_ns if name in far else self._options.controller_outage_ns
                self.detector.watch(name, now, kept_ns + self._options.lease_margin_ns)
        return ControllerStarted(self.epoch)

    def hear(self, message: ToController, now: int) -> Received:
        """Record a message of an agent that arrives at `now` (ns). Return the answers and events that follow from it.

        Nothing follows from a message with an earlier incarnation than the last join of the node (R20), or from a
        report of a node that is not watched. A heartbeat of such a node is answered by Rejoin. Texts of events are cut
        (see `texts`).
        """
        node = message.node
        if message.incarnation < self._incarnations.get(node, 0):
            return Received()
        match message:
            case Report():
                return Received((), (with_short_text(message.event),)) if self.detector.is_watched(node) else Received()
            case Heartbeat():
                heard = tuple(self.detector.heard(node, now, message.answered_ns))
                if self.detector.is_watched(node):
                    return Received((Acked(self.epoch, message.incarnation, message.sent_ns, now),), heard)
                return Received((Rejoin(self.epoch, message.incarnation),), heard)
            case Join():
                self._incarnations[node] = message.incarnation
                self.detector.watch(node, now)
                spec, address, items = message.spec, message.address, with_short_texts(message.inventory)
                bad_gpus = tuple((gpu, cut(reason, GPU_TEXT_MAX)) for gpu, reason in message.bad_gpus)
                news = (items, message.is_warming, bad_gpus, message.vault_port, message.copies)
                joined = NodeJoined(node, spec, address, message.incarnation, *news)
                return Received((Acked(self.epoch, message.incarnation, message.sent_ns, now),), (joined,))
            case Preempted():
                return Received((), (NodePreempted(node, message.notice_ns),))
            case Leave():
                self.detector.forget(node)
                return Received((), (NodeLeft(node),))
            case _:
                assert_never(message)

    def order(self, order: Order) -> Ordered:
        """Return the message that carries the order to the agent of its node, for the driver to send."""
        return Ordered(self.epoch, self._incarnations.get(order.node, 0), order)

    def dismiss(self, node: NodeName) -> Dismissed:
        """Return the message that tells the agent of the node that the job is over, for the driver to send."""
        return Dismissed(self.epoch, self._incarnations.get(node, 0))

    def note(self, event: Event) -> None:
        """End the watch on the node of a NodeGone or NodeLeft; other events that are not from agents change nothing."""
        if isinstance(event, NodeGone | NodeLeft):
            self.detector.forget(event.node)

    def gone(self, node: NodeName, incarnation: int, cause: str) -> tuple[NodeGone | NodeLeft, ...]:
        """Stop watching a node whose death its guardian has proven (DeathProof), and return the event that says so.

        `incarnation` is that of the last agent that the guardian knows of, and `cause` how it ended; empty: it has left
        in order. Nothing is returned if a later incarnation has joined: the proof is late (R20).
        """
        if incarnation < self._incarnations.get(node, 0):
            return ()
        event = NodeGone(node, cut(cause)) if cause else NodeLeft(node)
        self.note(event)
        return (event,)


TEXT_MAX = 500  # characters
GPU_TEXT_MAX = 200  # characters of the reason why a GPU is bad; a node has one for each GPU, and one message holds all

_TEXTS: dict[type, tuple[str, int]] = {
    CopyBroken: ("why", GPU_TEXT_MAX),
    GpuFailed: ("reason", GPU_TEXT_MAX),
    NodeStandsStill: ("who", GPU_TEXT_MAX),
    ReplicaExited: ("detail", TEXT_MAX),
    ReplicaStartsCold: ("detail", TEXT_MAX),
    StoreLost: ("detail", TEXT_MAX),
    VaultLost: ("detail", TEXT_MAX),
}
E = TypeVar("E", bound=Reported)


def cut(text: str, most: int = TEXT_MAX) -> str:
    """Return a text for people, cut if it has over `most` characters; its end then tells how many it had."""
    if len(text) <= most:
        return text
    end = f"... (cut, it has {len(text)} characters)"
    return text[: most - len(end)] + end


def with_short_text(event: E) -> E:
    """Return an event of an agent with its text for people cut; the same event if its text is short, or has none."""
    name, most = _TEXTS.get(type(event), ("", 0))
    if not name or len(getattr(event, name)) <= most:
        return event
    return msgspec.structs.replace(event, **{name: cut(getattr(event, name), most)})


def with_short_texts(items: tuple[InventoryItem, ...]) -> tuple[InventoryItem, ...]:
    """Return an inventory with the texts of its exits cut."""
    return tuple(
        msgspec.structs.replace(item, exited=with_short_text(item.exited)) if item.exited is not None else item
        for item in items
    )
