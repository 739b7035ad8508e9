"""Fast-forward: computing quiet stretches of work instead of playing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.engine.node import SimNode
from flowdist.sim.engine.queue import Action
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.worlds import Worlds

SETTLED_NS = 4 * LATENCY_NS  # from a checkpoint to the arrival of all it causes: reports, the offer, the answer


class FastForward:
    """The checkpoints of a simulation that need not be played.

    Args:
        ctx: The simulation.
        nodes: The nodes by name, with the agents that would report.
        worlds: The worlds that step.
        is_quiet: Tells whether nothing waits for an event, and no node may be missed.
        is_nothing: Tells whether an entry of the queue does nothing that matters: a checkpoint, or a deadline that has
            moved since.
    """

    def __init__(
        self,
        ctx: Context,
        nodes: dict[NodeName, SimNode],
        worlds: Worlds,
        is_quiet: Callable[[], bool],
        is_nothing: Callable[[Action, tuple[Any, ...]], bool],
    ) -> None:
        self._ctx, self._nodes, self._worlds = ctx, nodes, worlds
        self._is_quiet, self._is_nothing = is_quiet, is_nothing

    def skip(self, model: WorldModel) -> bool:
        """Skip, at the time of a checkpoint, all checkpoints of a world before the last quiet one.

        Returns:
            Whether any was skipped. Then the next checkpoint of the model is the last quiet one.
        """
        ctx = self._ctx
        if not ctx.fast_forward or model.late_ns or not self._is_quiet():
            return False
        now, last = ctx.queue.now, model.checkpoints_by(self._next_event() - SETTLED_NS)
        skipped = last - model.offered - 1
        if skipped <= 0:
            return False
        at = model.time_of_checkpoint(last)
        if at is None:
            return False
        gap_ns = (at - now) // skipped
        if not all(self._reports_at_once(start, at, gap_ns) for start in self._members_that_count(model)):
            return False
        before = model.time_of_checkpoint(last - 1)
        model.skipped.append((now, at if before is None else before))
        model.skip(last - 1)
        return True

    def members_that_report(self, model: WorldModel) -> list[StartReplica]:
        """Return the members whose report of the present step may matter."""
        counts = self._members_that_count(model)
        if len(counts) > 1 or not self._ctx.fast_forward or not self._is_quiet():
            return list(model.members.values())
        [first] = counts
        return counts if self._reports_at_once(first, self._ctx.queue.now) else list(model.members.values())

    def catch_up(self) -> None:
        """Let the agents know the steps of the members that did not report, before a fault makes that matter."""
        for model in self._worlds.models.values() if self._ctx.fast_forward else ():
            step, model.unreported = model.unreported, -1
            for start in model.members.values() if step >= 0 else ():
                self._nodes[start.node].agent.catch_up(start.replica, start.attempt, step, self._ctx.queue.now)

    def _members_that_count(self, model: WorldModel) -> list[StartReplica]:
        """Return the members whose progress is reported in a quiet stretch: all if hangs are detected, else one."""
        first = model.members[min(model.members)]
        specs = [self._ctx.graph.role(name) for name in self._ctx.job.worlds[first.world].roles]
        if any(spec.hang_after_ns is not None or spec.start_timeout_ns is not None for spec in specs):
            return list(model.members.values())
        return [first]

    def _next_event(self) -> int:
        """Return the time of the next event that is no checkpoint: what is planned, or the end of a world or of all."""
        times = [self._ctx.queue.next_but(self._is_nothing), self._ctx.until_ns]
        for model in self._worlds.models.values():
            if model.begun_ns is not None:
                times.append(model.time_of_step(model.pace.workload.steps))
        return min([time for time in times if time is not None])

    def _reports_at_once(self, start: StartReplica, until: int, gap_ns: int | None = None) -> bool:
        node = self._nodes[start.node]
        return node.is_well and node.agent.reports_at_once(start.replica, until, gap_ns)
