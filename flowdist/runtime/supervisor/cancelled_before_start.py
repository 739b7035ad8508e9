"""The end of a run that was interrupted before anything of it had happened: cancelled, though no journal says so."""

from __future__ import annotations

from pathlib import Path

from flowdist.control.protocol.events import CancelRequested
from flowdist.graph import RoleGraph
from flowdist.record.journal import Header
from flowdist.record.replay import Replay
from flowdist.runtime.supervisor.supervisor import RunResult

REASON = "interrupted before it began"


def called_off(run_dir: Path, graph: RoleGraph) -> RunResult:
    """What its controller would have decided. There may be none yet, nor a journal."""
    replay = Replay(Header(graph, tuple(node.name for node in graph.cluster.nodes)))
    replay.decide(CancelRequested(REASON, now=True), now=0)
    assert replay.job.outcome is not None  # nothing runs that it would have to wait for
    return RunResult(replay.job.outcome, REASON, str(run_dir), replay.job, [], [], replay.sheet)
