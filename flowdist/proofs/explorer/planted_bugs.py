"""Planted bugs: safeguards that can be switched off, to show that the explorer finds each one missing."""

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
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.control.protocol.messages import ToAgent


class PlantedBug(NamedTuple):
    """One safeguard, off: `instead` takes the function `owner.name` and returns its replacement."""

    about: str
    owner: Any
    name: str
    instead: Callable[[Any], Any]


def _always(result: Any) -> Callable[[Any], Any]:
    """Return a replacement that ignores its arguments and returns `result`."""
    return lambda _: lambda *_arguments: result


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


def _restarts_ended(start: Any) -> Any:
    def planted(agent: Agent, order: StartReplica) -> None:
        before = agent.attempts.get(order.replica)
        if before is not None and before.is_over:
            del agent.attempts[order.replica]
        start(agent, order)

    return planted


def _obeys_late_orders(hear: Any) -> Any:
    def planted(agent: Agent, message: ToAgent) -> None:
        hear(agent, msgspec.structs.replace(message, incarnation=agent.incarnation))

    return planted


def _no_patience(watch: Any) -> Any:
    def planted(detector: FailureDetector, node: NodeName, now: int, patience_ns: int = 0) -> None:
        watch(detector, node, now)

    return planted


def _silent_too_soon(init: Any) -> Any:
    def planted(detector: FailureDetector, silent_after_ns: int, suspect_after_ns: int) -> None:
        init(detector, silent_after_ns // 3, min(suspect_after_ns, silent_after_ns // 3))

    return planted


PLANTED_BUGS = {
    "late-news": PlantedBug("the controller handles reports of any attempt", controller, "_current", _any_attempt),
    "not-gone": PlantedBug("a restart set starts while some of it still stops", controller, "advance", _not_gone),
    "over-at-once": PlantedBug("a job ends once all is ordered to stop", controller, "settle_ending", _over_at_once),
    "start-again": PlantedBug("an agent starts an attempt that has ended", Agent, "_start", _restarts_ended),
    "say-nothing": PlantedBug("orders lost with a connection are not resent", nodes, "_resend_start", _always([])),
    "lost-stops": PlantedBug("stops lost with a connection are not resent", nodes, "_repeat_orders", _always(None)),
    "late-orders": PlantedBug("an agent obeys orders for an earlier incarnation", Agent, "_hear", _obeys_late_orders),
    "no-patience": PlantedBug("a new controller allows no extra time", FailureDetector, "watch", _no_patience),
    "no-fence": PlantedBug("an agent works on after its lease has run out", Agent, "_fence_at_ns", _always(None)),
    "too-soon": PlantedBug("a node is lost before it has fenced", FailureDetector, "__init__", _silent_too_soon),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Switch the safeguard off inside the context; with None, change nothing."""
    if name is None:
        yield
        return
    bug = PLANTED_BUGS[name]
    before = getattr(bug.owner, bug.name)
    setattr(bug.owner, bug.name, bug.instead(before))
    try:
        yield
    finally:
        setattr(bug.owner, bug.name, before)
