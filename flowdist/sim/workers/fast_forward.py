"""Fast-forward: quiet times of a simulation are computed instead of played.
For weeks a job only steps and writes checkpoints, which decides nothing. The state of a world that steps is known at
any time without playing (`user_code.workload`), so the simulator jumps to the next moment that matters. Decisions and
their times are those of a played run: `tests/sim/test_fast_forward.py` compares whole runs under drawn faults. Only
lines of the trace between decisions, which say how far the workers are, are missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowdist.control.agent.fast_forward import catch_up, reports_at_once
from flowdist.control.protocol import agent_io as io
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
    """The checkpoints of a simulation that need not be played, and the reports of progress of those that are.

    `is_quiet` returns whether nothing waits for a step or a checkpoint (a fault with `@step=`, a property of the user,
    a full or slow disk, user code that is played), a controller runs, and every watched node is well: a message over a
    link with a fault may be late or lost, and draws random numbers of that link. `is_nothing` returns whether an action
    of the queue does nothing that matters: a checkpoint, or a wake-up for a deadline that has moved since.

    Heartbeats are left out in the same way, by `engine.node`: while a node is heard and its link has no fault, they are
    taken as sent and answered, and the lease of the agent is renewed just before anything reads it (`Lease.renew`). One
    that is on its way when the link breaks is put on its way after all (`take_heartbeat`).
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
        """Count checkpoints of a world as complete without playing them, up to the last but one before the next event.

        Called at the time of the first of them. If it returns True the caller plans the last, which changes all that
        they would (the members' steps, the latest checkpoint) but `saved`: a damaged checkpoint makes a restart fall
        back. Closer to the event than SETTLED_NS, twice what its messages take, as a schedule keeps some 1 ns apart,
        none is skipped. False, and no change, if only one is left, or an agent, which limits its reports, would send
        one later than at once.
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
        if not all(self._reports_at_once(start, at, gap_ns) for start in self.members_that_count(model)):
            return False
        before = model.time_of_checkpoint(last - 1)
        model.skipped.append((now, at if before is None else before))
        model.skip(last - 1)
        return True

    def _members_that_report(self, model: WorldModel) -> list[StartReplica]:
        """Return the members that have to report the present step: one while fast-forward allows it, else all."""
        counts = self.members_that_count(model)
        is_quiet = len(counts) == 1 and self._ctx.fast_forward and self._is_quiet()
        if is_quiet and self._reports_at_once(counts[0], self._ctx.queue.now):
            return counts
        return list(model.members.values())

    def report(self, model: WorldModel) -> None:
        """Tell one agent the present step for all, unless more happens; keep it in `model.unreported` for the rest."""
        step, reporting = model.step_at(self._ctx.queue.now), self._members_that_report(model)
        for start in reporting:
            self.report_step(start, step)
        model.unreported = step if len(reporting) < len(model.members) else -1

    def report_step(self, start: StartReplica, step: int) -> None:
        """Tell the agent of one member that all of its workers are at `step`. The agent reports that when it is due."""
        self._nodes[start.node].tell_of_workers(io.WorkerProgressed, start.replica, start.attempt, step)

    def catch_up(self) -> None:
        """Before a fault acts, write the last step into the agents that did not report it, without a message: when they
        have to join anew they report their progress again."""
        for model in self._worlds.models.values() if self._ctx.fast_forward else ():
            step, model.unreported = model.unreported, -1
            for start in model.members.values() if step >= 0 else ():
                catch_up(self._nodes[start.node].agent, start.replica, start.attempt, step, self._ctx.queue.now)

    def members_that_count(self, model: WorldModel) -> list[StartReplica]:
        """Return the members whose progress is reported in a quiet time: all if a role detects hangs, since the
        controller then compares them, else one, since it keeps the highest step of a world."""
        first = model.members[min(model.members)]
        specs = [self._ctx.graph.role(name) for name in self._ctx.job.worlds[first.world].roles]
        if any(spec.hang_after_ns is not None or spec.start_timeout_ns is not None for spec in specs):
            return list(model.members.values())
        return [first]

    def _next_event(self) -> int:
        """Return when (ns) the next event but checkpoints is: an action, or the end of a world's work or the run."""
        times = [self._ctx.queue.next_but(self._is_nothing), self._ctx.until_ns]
        for model in self._worlds.models.values():
            if model.begun_ns is not None:
                times.append(model.time_of_step(model.pace.workload.steps))
        return min([time for time in times if time is not None])

    def _reports_at_once(self, start: StartReplica, until: int, gap_ns: int | None = None) -> bool:
        node = self._nodes[start.node]
        return node.is_well and reports_at_once(node.agent, start.replica, until, gap_ns)
