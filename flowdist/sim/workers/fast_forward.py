"""Fast-forward: quiet times of a simulation are computed instead of played.

A job that runs for weeks does the same thing most of the time: it steps, and every ten minutes it writes a checkpoint.
Playing all of that costs time for each checkpoint and each member, and decides nothing. The state of a world that steps
is known at any time without playing (`user_code.workload`), so the simulator may jump to the next moment that matters.
The trace then has the same decisions at the same times as if everything had been played. What is missing are lines
between decisions, which say how far the workers are.

    time         12:00    12:10    12:20    12:30    12:40    12:50    12:53
    played       start    save     save     save     save     save     node2 dies
    computed     start      .        .        .        .      save     node2 dies
                          |                                   |
                          |                                   the last checkpoint before the fault is played, so
                          |                                   that the fault finds everything as it would be
                          `skip`: the next event is at 12:53, so the checkpoints of 12:10 to 12:40 are only counted

**What is skipped.** At the time of a checkpoint `skip` asks when something happens next that is no checkpoint: an entry
of the queue, the end of the work of any world, or the end of the simulation. Of all checkpoints of this world before
that time only the last is played. The others would change nothing that this one does not change again: the step of each
member, and which checkpoint is the latest. Their steps are added to `saved`, since a damaged checkpoint makes a restart
fall back to the one before. Entries of the queue that do nothing do not count: other checkpoints, and wake-ups for
deadlines that have moved since.

**Who reports.** At a checkpoint that is played each member would report its step. The controller keeps the highest step
of a world, so one report is enough, unless hangs are detected: then it compares the members, and all report. The agents
of members that did not report do not know their step. That matters when they have to join anew, since they then report
their progress again. So before any fault acts, `catch_up` writes the step into all their agents.

**When that is allowed.** Each condition has a case in which the decisions would differ without it:

* Nothing waits for a step or a checkpoint (`is_quiet`): no fault with `@step=`, no property of the user, no role whose
  disk is full or slow, no user code that is played.
* A controller runs, and every node that it watches is well. A message over a link with a fault may be late or lost, and
  each one draws random numbers of that link.
* Each report that is skipped would have been sent at once (`reports_at_once`). An agent limits its reports: one
  for each heartbeat (0.5 s), and one in a hundredth of the age of the attempt. A step that comes sooner is reported
  later, at a time that depends on the report before. Then all have to be played.
* The world makes progress: `time_of_checkpoint` is None while it waits for something.

**Heartbeats** are left out in the same way, by `engine.node`: while a node is heard and its link has no fault, they are
taken as sent and answered, and the lease of the agent is renewed just before anything reads it (`Lease.renew`). One
that is on its way when the link breaks is put on its way after all (`take_heartbeat`).

**Why `SETTLED_NS` is 4 * LATENCY_NS (2 ms).** A checkpoint that is played is followed by messages: its reports and the
offer go up (one latency), the answer comes down (another). The next event has to find all of that done. A checkpoint
closer to the event than two such round trips is not quiet: it is played in its place among the other events, and the
one before it is the last quiet one. Twice the necessary time costs nothing, and leaves room for messages that a
schedule keeps 1 ns apart.

The tests compare whole runs with and without fast-forward, under drawn faults (`tests/sim/test_fast_forward.py`).
"""

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

    `is_quiet` returns whether nothing waits for a step, a checkpoint or an event, a controller runs, and no node can
    become suspected. `is_nothing` returns whether an action of the queue does nothing that matters: a checkpoint, or a
    wake-up for a deadline that has moved since.
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

        Called at the time of a checkpoint, which is the first to be skipped. If it returns True the caller plans the
        next one, the last before the next event. False, and no change, if only one is left or a condition (see the
        module) is not met.
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
        """Before a fault acts, write the last step into the agents that did not report it, without a message."""
        for model in self._worlds.models.values() if self._ctx.fast_forward else ():
            step, model.unreported = model.unreported, -1
            for start in model.members.values() if step >= 0 else ():
                catch_up(self._nodes[start.node].agent, start.replica, start.attempt, step, self._ctx.queue.now)

    def members_that_count(self, model: WorldModel) -> list[StartReplica]:
        """Return the members whose progress is reported in a quiet time: all if a role detects hangs, else one."""
        first = model.members[min(model.members)]
        specs = [self._ctx.graph.role(name) for name in self._ctx.job.worlds[first.world].roles]
        if any(spec.hang_after_ns is not None or spec.start_timeout_ns is not None for spec in specs):
            return list(model.members.values())
        return [first]

    def _next_event(self) -> int:
        """Return the time in ns of the next event that is no checkpoint.

        That is the first action of the queue that does something, the end of the work of a world, or the end of the
        simulation.
        """
        times = [self._ctx.queue.next_but(self._is_nothing), self._ctx.until_ns]
        for model in self._worlds.models.values():
            if model.begun_ns is not None:
                times.append(model.time_of_step(model.pace.workload.steps))
        return min([time for time in times if time is not None])

    def _reports_at_once(self, start: StartReplica, until: int, gap_ns: int | None = None) -> bool:
        node = self._nodes[start.node]
        return node.is_well and reports_at_once(node.agent, start.replica, until, gap_ns)
