"""Re-formation in place, as the agent sees it: workers that change their generation without ending.

Starting a worker anew costs minutes when it imports torch, builds a model and reads a checkpoint. A worker that
survives the failure of a peer has all of that already. Code inside `flowdist.worker.elastic()` can therefore leave its
generation, wait, and enter the next one as the same process with the same memory. Meanwhile the worker is *suspended*.

The handshake, for an attempt with two workers. Only the events with a name enter the record:

    worker 0     worker 1     agent                              controller
    enters elastic()     ->   WorkerElastic(0)
                 enters  ->   WorkerElastic(1)    all inside:
                              ReplicaElastic          ->         knows that it may stop this one in place
      ...        ...
                                                                 a peer on another node is lost
                              StopReplica(in_place)   <-
    <- LeaveGeneration ->                                        grace_ns runs
    leaves               ->   WorkerSuspended(0)
                 leaves  ->   WorkerSuspended(1)  all have left:
                              ReplicaStopped(suspended=True) ->  counts as gone (R6): nothing of the old generation runs
                                                                 forms the next generation
                              StartReplica(attempt 2) <-         on the same node
    <- SpawnWorkers(kept=0,1) ->
    enter the new generation with the state they have

The rules, each with the case that would go wrong without it:

* An attempt is stopped in place only if *all* its live workers are inside elastic code (`Attempt.may_leave`). With one
  outside, the others would wait for a worker that never leaves. Then the stop is an ordinary one.
* A worker that is about to leave `elastic()` for good says so (`WorkerElastic(inside=False)`). If it has the order to
  leave its generation and has not, it never will: the whole attempt gets SIGTERM at once, not at the end of the grace.
* `grace_ns` bounds the wait. A worker stuck in a collective with a dead peer may never leave; SIGKILL ends the attempt.
* If a worker fails, the others of the attempt are asked to leave as well. The attempt has failed (`ReplicaExited`), but
  with `suspended=True`: those that left are kept for the next attempt, which starts the missing ranks afresh.
* A suspended attempt that the controller does not want any more is *dismissed*: an ordinary StopReplica. Until its
  workers have ended nothing else starts on the node (`Attempt.holds_up`), because they still hold GPU memory and ports.
  A start that comes meanwhile is delayed until they have ended.
* A suspended worker that outlives SIGKILL would block the node for ever. After `unkillable_after_ns` (30 s) it blocks
  nothing more, and a start is refused with `start_failed`, so that the controller places the replica elsewhere.

Nothing here is a timer of its own: the only time is the grace of the stop, and it is the controller's to choose. A
suspended worker waits without a limit, since a world may have to wait for a node. It ends with the agent, which fences
when its lease is over.
"""

from __future__ import annotations

from flowdist.control.agent.attempts import Attempt
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Reporter


def note_elastic(attempt: Attempt, event: io.WorkerElastic, report: Reporter) -> bool:
    """Record and report that a worker enters or leaves elastic code; return True if it can't leave in place."""
    if event.inside:
        attempt.elastic_ranks[event.local_rank] = None
        check_elastic(attempt, report)
        return False
    attempt.elastic_ranks.pop(event.local_rank, None)
    return attempt.is_leaving and event.local_rank not in attempt.suspended_ranks


def check_elastic(attempt: Attempt, report: Reporter) -> None:
    """Report, once, that all workers of an attempt run and are inside elastic code; do nothing before that is so."""
    if attempt.is_elastic_reported or attempt.phase not in ("running", "ready"):
        return
    if len(attempt.elastic_ranks) == attempt.role.procs:
        attempt.is_elastic_reported = True
        report(ev.ReplicaElastic(attempt.order.replica, attempt.order.attempt))


def find_obstacle(attempts: dict[ReplicaId, Attempt], order: StartReplica) -> Attempt | None:
    """Return an attempt that has to end before the start: an earlier one that runs, or a dismissed one; else None."""
    before = attempts.get(order.replica)
    if before is not None and not before.is_over and (before.phase != "suspended" or before.is_dismissed):
        return before
    return next((other for other in attempts.values() if other.is_dismissed and not other.is_over), None)
