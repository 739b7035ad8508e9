"""The end of a run that was interrupted before anything of it had happened: cancelled, though no journal says so."""

from __future__ import annotations

from pathlib import Path

from flowdist.control.controller import Controller
from flowdist.control.protocol.events import CancelRequested
from flowdist.graph import RoleGraph
from flowdist.record.timesheet import Timesheet
from flowdist.runtime.supervisor.supervisor import RunResult

REASON = "interrupted before it began"


def called_off(run_dir: Path, graph: RoleGraph) -> RunResult:
    """What its controller would have decided. There may be none yet, nor a journal."""
    controller = Controller(graph, tuple(node.name for node in graph.cluster.nodes))
    sheet = Timesheet(controller.state)
    controller.handle(CancelRequested(REASON, now=True), now=0)
    assert controller.state.outcome is not None  # nothing runs that it would have to wait for
    return RunResult(controller.state.outcome, REASON, str(run_dir), controller.state, [], [], sheet)
