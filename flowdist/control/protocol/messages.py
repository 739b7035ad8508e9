"""Idempotent messages between controller and agents, with incarnation and epoch: a receiver refuses lower ones (R20).

Otherwise an order that was given before an agent fenced, and arrives after the agent has joined anew, would start a
replica that the controller is about to start elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

import msgspec

from flowdist.control.protocol.effects import Order
from flowdist.control.protocol.events import (
    AttemptEvent,
    CheckpointOffered,
    CopyBroken,
    CopyHeld,
    GpuFailed,
    InventoryItem,
    NodeStandsStill,
    NodeWarm,
    StoreLost,
    StoreOpened,
    VaultLost,
    VaultOpened,
)
from flowdist.control.protocol.ids import NodeName
from flowdist.graph import NodeSpec

if TYPE_CHECKING:
    from typing_extensions import TypeIs

OfVault = VaultOpened | VaultLost | CopyHeld | CopyBroken
Reported = AttemptEvent | NodeWarm | StoreOpened | StoreLost | CheckpointOffered | GpuFailed | NodeStandsStill | OfVault

Reporter = Callable[[Reported], None]  # sends an event to the controller


class FromAgent(msgspec.Struct, frozen=True):
    """Base of the messages to the controller: the node whose agent sends it, and the agent's incarnation."""

    node: NodeName
    incarnation: int


class Join(FromAgent, frozen=True, tag=True):
    """The first message of an agent on a connection. It becomes NodeJoined, and Acked answers it.

    `sent_ns` is on the agent's own clock. The other fields are those of NodeJoined.
    """

    spec: NodeSpec
    address: str
    sent_ns: int
    inventory: tuple[InventoryItem, ...] = ()
    is_warming: bool = False
    bad_gpus: tuple[tuple[int, str], ...] = ()
    vault_port: int = 0
    copies: tuple[CopyHeld, ...] = ()


class Heartbeat(FromAgent, frozen=True, tag=True):
    """A sign of life of the agent, which Acked or Rejoin answers. It may be on its way for long.

    `sent_ns` is on the agent's clock, and Acked returns it. `answered_ns` is the `at_ns` of the last answer that has
    reached the agent (0: none): only this shows when it still ran what it ran. So the clocks need not agree.
    """

    sent_ns: int
    answered_ns: int = 0


class Report(FromAgent, frozen=True, tag=True):
    """An event that the agent reports; the controller handles `event` as it is."""

    event: Reported


class Preempted(FromAgent, frozen=True, tag=True):
    """The node will be taken away `notice_ns` from now. The message becomes NodePreempted."""

    notice_ns: int


class Leave(FromAgent, frozen=True, tag=True):
    """Nothing runs on the node any more, and its agent ends. The message becomes NodeLeft."""


class FromController(msgspec.Struct, frozen=True):
    """Base of the messages to an agent: the epoch of the controller that sends it, the incarnation it is for (R20)."""

    epoch: int
    incarnation: int


class Acked(FromController, frozen=True, tag=True):
    """The answer to the Join or Heartbeat that the agent sent at `sent_ns`: its lease counts from that time (R19).

    `at_ns` is on the controller's clock, for the agent to return with its next heartbeat.
    """

    sent_ns: int
    at_ns: int = 0


class Rejoin(FromController, frozen=True, tag=True):
    """The answer to a Heartbeat of a lost node: the agent kills its workers, and joins with a new incarnation."""


class Ordered(FromController, frozen=True, tag=True):
    """An order for the agent."""

    order: Order


class Dismissed(FromController, frozen=True, tag=True):
    """The job is over: the agent kills what still runs on its node, and ends."""


ToController = Join | Heartbeat | Report | Preempted | Leave
ToAgent = Acked | Rejoin | Ordered | Dismissed
_TO_AGENT = frozenset(get_args(ToAgent))


def is_to_agent(message: object) -> TypeIs[ToAgent]:
    """Return whether an input of the agent is a message of the controller, by its exact type; see `is_order`."""
    return type(message) in _TO_AGENT
