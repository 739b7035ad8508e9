"""The agent's side of staying in place: which workers of an attempt can leave their generation without ending."""

from __future__ import annotations

from collections.abc import Callable

from flowdist.control.agent.attempts import Attempt
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Reported

Say = Callable[[Reported], None]


def note_elastic(attempt: Attempt, event: io.WorkerElastic, say: Say) -> bool:
    """A worker has entered elastic code, or is about to leave it. True if it is to leave its generation and cannot."""
    if event.inside:
        attempt.elastic_ranks[event.local_rank] = None
        check_elastic(attempt, say)
        return False
    attempt.elastic_ranks.pop(event.local_rank, None)
    return attempt.is_leaving and event.local_rank not in attempt.suspended_ranks


def check_elastic(attempt: Attempt, say: Say) -> None:
    """The controller is told once, when all workers of the attempt run and are in elastic code."""
    if attempt.is_elastic_told or attempt.phase not in ("running", "ready"):
        return
    if len(attempt.elastic_ranks) == attempt.role.procs:
        attempt.is_elastic_told = True
        say(ev.ReplicaElastic(attempt.order.replica, attempt.order.attempt))


def in_the_way(attempts: dict[ReplicaId, Attempt], order: StartReplica) -> Attempt | None:
    """What runs, and must not when that order is carried out: the replica itself, or what was suspended and cannot end.

    Workers of the replica that are suspended are not: they go on.
    """
    before = attempts.get(order.replica)
    if before is not None and not before.is_over and (before.phase != "suspended" or before.is_dismissed):
        return before
    return next((other for other in attempts.values() if other.is_dismissed and not other.is_over), None)
