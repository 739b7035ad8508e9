"""The messages between controller and agents.

Messages are idempotent: an agent that connects, for the first time or again, sends its whole inventory with Join, and
the controller reconciles. Each message carries the incarnation of the agent that sends it or is meant by it, and those
of the controller carry its epoch. A receiver refuses numbers lower than the ones it knows (R20). Otherwise an order
that was given before an agent fenced, and arrives after it has joined anew, would start a replica that the controller
is about to start elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

import msgspec

from flowdist.control.protocol.effects import Order
from flowdist.control.protocol.events import (
    AttemptEvent,
    CheckpointOffered,
    GpuFailed,
    InventoryItem,
    NodeWarm,
    StoreLost,
    StoreOpened,
)
from flowdist.control.protocol.ids import NodeName
from flowdist.graph import NodeSpec

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Reported = AttemptEvent | NodeWarm | StoreOpened | StoreLost | CheckpointOffered | GpuFailed

Reporter = Callable[[Reported], None]  # sends an event to the controller


class FromAgent(msgspec.Struct, frozen=True):
    """Base of the messages to the controller: the agent that sends it."""

    node: NodeName
    incarnation: int


class Join(FromAgent, frozen=True, tag=True):
    """The first message on a connection. It becomes NodeJoined."""

    spec: NodeSpec
    address: str
    sent_ns: int
    inventory: tuple[InventoryItem, ...] = ()
    is_warming: bool = False
    bad_gpus: tuple[tuple[int, str], ...] = ()


class Heartbeat(FromAgent, frozen=True, tag=True):
    """A sign of life of the agent.

    `sent_ns` is on the agent's own clock. The answer returns it, so that the clocks need not agree.
    """

    sent_ns: int


class Report(FromAgent, frozen=True, tag=True):
    """Something that happened on the node. It becomes that event."""

    event: Reported


class Preempted(FromAgent, frozen=True, tag=True):
    """The node will be taken away after `notice_ns`. It becomes NodePreempted."""

    notice_ns: int


class Leave(FromAgent, frozen=True, tag=True):
    """Nothing runs on the node any more, and its agent ends. It becomes NodeLeft."""


class FromController(msgspec.Struct, frozen=True):
    """Base of the messages to an agent: the controller that sends it, and the agent that is meant (R20)."""

    epoch: int
    incarnation: int


class Acked(FromController, frozen=True, tag=True):
    """The answer to the Join or Heartbeat sent at `sent_ns`: the lease counts from that time (R19)."""

    sent_ns: int


class Rejoin(FromController, frozen=True, tag=True):
    """The controller has given the node up. The agent kills its workers, and joins with a new incarnation."""


class Ordered(FromController, frozen=True, tag=True):
    """An order for the agent."""

    order: Order


class Dismissed(FromController, frozen=True, tag=True):
    """The job is over, and the agent ends."""


ToController = Join | Heartbeat | Report | Preempted | Leave
ToAgent = Acked | Rejoin | Ordered | Dismissed
_TO_AGENT = frozenset(get_args(ToAgent))


def is_to_agent(message: object) -> TypeIs[ToAgent]:
    """Return whether this is a message to an agent; by the exact type, as `effects.is_order`."""
    return type(message) in _TO_AGENT
