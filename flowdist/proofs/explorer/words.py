"""Short texts of messages, for the path to a violation."""

from __future__ import annotations

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import (
    AnswerCheckpoint,
    AskStep,
    CloseStore,
    OpenStore,
    Order,
    StartReplica,
    StopAtStep,
    StopReplica,
    TellPeers,
)
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


def describe(message: ToController | ToAgent) -> str:
    """Return the message in a few words, as `ReplicaExited worker/0#1 success`."""
    match message:
        case Join():
            items = [f"{item.replica}#{item.attempt} {item.phase}" for item in message.inventory]
            return f"joins as incarnation {message.incarnation} with {', '.join(items) or 'nothing'}"
        case Heartbeat():
            return "heartbeat"
        case Report():
            return _event(message.event)
        case Preempted():
            return "has a preemption notice"
        case Leave():
            return "leaves"
        case Acked():
            return "acknowledged"
        case Rejoin():
            return "join anew"
        case Ordered():
            return _order(message.order)
        case Dismissed():
            return "the job is over"


def _event(event: ev.Event) -> str:
    name = type(event).__name__
    match event:
        case ev.StoreOpened() | ev.StoreLost():
            return f"{name} {event.world} generation {event.generation}"
        case ev.ReplicaExited():
            return f"{name} {event.replica}#{event.attempt} {event.kind or 'success'}"
        case ev.ReplicaStopped():
            return f"{name} {event.replica}#{event.attempt}{' in place' if event.suspended else ''}"
        case ev.StepTold():
            return f"{name} {event.replica}#{event.attempt} {event.step}"
        case (
            ev.ReplicaStarted()
            | ev.ReplicaReady()
            | ev.ReplicaElastic()
            | ev.ReplicaUnkillable()
            | ev.ReplicaLeftStep()
        ):
            return f"{name} {event.replica}#{event.attempt}"
        case _:
            return name


def _order(order: Order) -> str:
    name = type(order).__name__
    match order:
        case OpenStore() | CloseStore():
            return f"{name} {order.world} generation {order.generation}"
        case StartReplica():
            return f"{name} {order.replica}#{order.attempt} of generation {order.generation}"
        case StopAtStep():
            return f"{name} {order.replica}#{order.attempt} {order.step}"
        case StopReplica(in_place=True):
            return f"{name} {order.replica}#{order.attempt} in place"
        case StopReplica() | AskStep() | TellPeers() | AnswerCheckpoint():
            return f"{name} {order.replica}#{order.attempt}"
