"""Safeguards that can be switched off, each for as long as a run lasts, to see that the explorer misses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from flowdist.control import controller
from flowdist.control.agent.agent import Agent
from flowdist.control.connection.failure_detector import FailureDetector
from flowdist.control.job.state import JobState, Replica
from flowdist.control.membership import nodes
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import InventoryItem
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.control.protocol.messages import ToAgent


class Plant(NamedTuple):
    """What is put in the place of `owner.name`, given what was there."""

    about: str
    owner: Any
    name: str
    instead: Callable[[Any], Any]


def _any_attempt(_: Any) -> Any:
    def current(job: JobState, replica: ReplicaId, attempt: int) -> Replica | None:
        found = job.replicas.get(replica)
        return found if found is not None and found.is_live else None

    return current


def _not_gone(advance: Any) -> Any:
    def planted(job: JobState, names: list[WorldName]) -> None:
        for incident in job.open_incidents():
            incident.phase = "starting"
        advance(job, names)

    return planted


def _over_at_once(settle_ending: Any) -> Any:
    def planted(job: JobState) -> None:
        settle_ending(job)
        if job.outcome is None:
            for replica in job.replicas.values():
                if replica.phase == "stopping":
                    job.end_attempt(replica)
            settle_ending(job)

    return planted


def _start_again(start: Any) -> Any:
    def planted(agent: Agent, order: StartReplica) -> None:
        before = agent.attempts.get(order.replica)
        if before is not None and before.is_over:
            del agent.attempts[order.replica]
        start(agent, order)

    return planted


def _says_nothing(_: Any) -> Any:
    def say_again(job: JobState, replica: Replica) -> list[InventoryItem]:
        return []

    return say_again


def _no_orders_again(_: Any) -> Any:
    def repeat_orders(job: JobState, replica: Replica, item: InventoryItem) -> None:
        pass

    return repeat_orders


def _hears_late(hear: Any) -> Any:
    def planted(agent: Agent, message: ToAgent) -> None:
        hear(agent, msgspec.structs.replace(message, incarnation=agent.incarnation))

    return planted


def _no_patience(watch: Any) -> Any:
    def planted(liveness: FailureDetector, node: NodeName, now: int, patience_ns: int = 0) -> None:
        watch(liveness, node, now)

    return planted


def _never_fences(_: Any) -> Any:
    def fence_at_ns(agent: Agent) -> int | None:
        return None

    return fence_at_ns


def _silent_too_soon(init: Any) -> Any:
    def planted(liveness: FailureDetector, silent_after_ns: int, suspect_after_ns: int) -> None:
        init(liveness, silent_after_ns // 3, min(suspect_after_ns, silent_after_ns // 3))

    return planted


PLANTS = {
    "late-news": Plant("the controller takes news of any attempt for news", controller, "_current", _any_attempt),
    "not-gone": Plant("an incident starts anew what is gone, whatever still stops", controller, "advance", _not_gone),
    "over-at-once": Plant("a job is over when all was told to stop", controller, "settle_ending", _over_at_once),
    "start-again": Plant("an agent obeys an order for an attempt that is over", Agent, "_start", _start_again),
    "say-nothing": Plant("orders that a connection took along are not repeated", nodes, "_say_again", _says_nothing),
    "lost-stops": Plant(
        "a stop that a connection took along is not repeated", nodes, "_repeat_orders", _no_orders_again
    ),
    "late-orders": Plant("an agent obeys what was meant for an earlier incarnation", Agent, "_hear", _hears_late),
    "no-patience": Plant(
        "a controller that took over waits no longer than ever", FailureDetector, "watch", _no_patience
    ),
    "no-fence": Plant("an agent works on when its lease is over", Agent, "_fence_at_ns", _never_fences),
    "too-soon": Plant("a node counts as silent before it has fenced", FailureDetector, "__init__", _silent_too_soon),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """With that safeguard switched off; None: as it is."""
    if name is None:
        yield
        return
    plant = PLANTS[name]
    before = getattr(plant.owner, plant.name)
    setattr(plant.owner, plant.name, plant.instead(before))
    try:
        yield
    finally:
        setattr(plant.owner, plant.name, before)
