"""Summary of a simulation: the summary of its record, with what only the simulator knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowdist.sim.simulation import SimResult


def simulated_summary(result: SimResult) -> dict[str, Any]:
    """Return the summary with steps, lost work, time by bucket, and the time until steps go on after each incident."""
    from flowdist.record.journal import UnsavedLine
    from flowdist.report.record.spending import time_of
    from flowdist.report.record.summary import summary_of
    from flowdist.sim.checks.expectations import recoveries

    summary = summary_of(result.job, result.lines)
    lines = [line for line in result.lines if isinstance(line, UnsavedLine)]
    keys = ("world", "step", "reason")
    summary["unsaved"] = [{"t_s": line.t_ns / 1e9} | {key: getattr(line, key) for key in keys} for line in lines]
    summary["lasted_s"] = result.now / 1e9
    for model in result.models.values():
        work = summary["roles"][model.pace.name]
        work["step"] = max(work["step"], model.step_at(result.now))
        work["lost_steps"] = work.get("lost_steps", 0) + model.lost_steps
        work["lost_work_s"] = work.get("lost_work_s", 0.0) + model.lost_ns / 1e9
    summary |= time_of(result.job.graph, result.spent)
    for incident, took in zip(summary["incidents"], recoveries(result).values(), strict=True):
        incident["steps_again_s"] = took / 1e9 if took else None
    return summary
