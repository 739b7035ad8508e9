"""Short texts for messages between controller and agents, shown in the path to a violation."""

from __future__ import annotations

from typing import Any

from flowdist.control.protocol import effects as fx
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.ids import OfCopy

PLAIN: dict[type, str] = {  # messages that are described by their type alone
    msg.Heartbeat: "heartbeat",
    msg.Preempted: "has a preemption notice",
    msg.Leave: "leaves",
    msg.Acked: "acknowledged",
    msg.Rejoin: "join anew",
    msg.Dismissed: "the job is over",
}


def describe(message: msg.ToController | msg.ToAgent) -> str:
    """Return the message in a few words, as in `ReplicaExited worker/0#1 success` for attempt 1 of worker/0."""
    match message:
        case msg.Join():
            items = [f"{item.replica}#{item.attempt} {item.phase}" for item in message.inventory]
            return f"joins as incarnation {message.incarnation} with {', '.join(items) or 'nothing'}"
        case msg.Report():
            return _content(message.event)
        case msg.Ordered():
            return _content(message.order)
        case _:
            return PLAIN[type(message)]


def shard_text(copy: OfCopy) -> str:
    """Return which shard a copy is of, as in `rank 1 of generation 2`: a generation saves one snapshot."""
    return f"rank {copy.rank} of generation {copy.generation}"


def _content(item: Any) -> str:  # ev.Event | fx.Order
    """Return the name of an event or order, what it is about, and what tells it apart from others of that name."""
    name, more = type(item).__name__, ""
    match item:
        case ev.StoreOpened() | ev.StoreLost() | fx.OpenStore() | fx.CloseStore():
            return f"{name} {item.world} generation {item.generation}"
        case ev.CopyHeld() | ev.CopyBroken():
            return f"{name} {shard_text(item)}"
        case fx.ReleaseCopies():
            return f"{name} of generation {item.generation}"
        case fx.SetBuddies():
            return f"{name} {', '.join(buddy for buddy, _ in item.buddies) or 'none'}"
        case ev.ReplicaExited():
            more = f" {item.kind or 'success'}"
        case ev.ReplicaStopped(suspended=True) | fx.StopReplica(in_place=True):
            more = " in place"
        case ev.StepTold() | fx.StopAtStep():
            more = f" {item.step}"
        case ev.ReplicaPublished() | ev.ReplicaAcknowledged():
            more = f" version {item.version}"
        case fx.StartReplica():
            more = f" of generation {item.generation}"
    return f"{name} {item.replica}#{item.attempt}{more}" if hasattr(item, "attempt") else name
