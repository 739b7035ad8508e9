"""The result of a run that was interrupted before anything of it had started, and so has no journal."""

from __future__ import annotations

from pathlib import Path

from flowdist.control.protocol.events import CancelRequested
from flowdist.graph import RoleGraph
from flowdist.record.journal import Header
from flowdist.record.replay import Replay
from flowdist.runtime.supervisor.host_process import RunResult

REASON = "interrupted before it began"


def cancelled_before_start(run_dir: Path, graph: RoleGraph) -> RunResult:
    """Return the result that a controller would have decided on, had it been cancelled before anything else."""
    replay = Replay(Header(graph, tuple(node.name for node in graph.cluster.nodes)))
    replay.decide(CancelRequested(REASON, now=True), now=0)
    assert replay.job.outcome is not None  # nothing runs whose end it would have to wait for
    return RunResult(replay.job.outcome, REASON, str(run_dir), replay.job, [], [], replay.sheet)
