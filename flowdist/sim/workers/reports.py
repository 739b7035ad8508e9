"""Progress reports: the workers of a world tell their agents which step they have reached."""

from __future__ import annotations

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.fast_forward import FastForward


class Reports:
    """The reports of all worlds. While nothing else happens one member may report for all: see `fast_forward`."""

    def __init__(self, ctx: Context, nodes: dict[NodeName, SimNode], fast_forward: FastForward) -> None:
        self._queue, self._nodes, self._fast_forward = ctx.queue, nodes, fast_forward

    def report(self, model: WorldModel) -> None:
        """Report the present step of a world."""
        step, reporting = model.step_at(self._queue.now), self._fast_forward.members_that_report(model)
        for start in reporting:
            self.report_step(start, step)
        model.unreported = step if len(reporting) < len(model.members) else -1

    def report_step(self, start: StartReplica, step: int) -> None:
        """Report a step of every worker of one member."""
        node = self._nodes[start.node]
        for local_rank in range(node.procs_of(start.replica)):
            node.tell(io.WorkerProgressed(start.replica, start.attempt, local_rank, step))
