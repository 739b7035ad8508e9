"""Prediction of a recorded run for `flowdist report`: what the simulator expects with given times, beside what came."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from flowdist.cli.predict.comparison import compare
from flowdist.cli.shared.records import RecordFile
from flowdist.cli.shared.workloads import with_workload_file
from flowdist.errors import FlowdistError
from flowdist.graph import RoleSpec, WorkloadSpec
from flowdist.record.reader import JOURNAL
from flowdist.sim.forecast import expect
from flowdist.sim.prediction import Run

HELP = "flowdist calibrate RUN -o workload.toml measures them in a run"


def reported(run_dir: Path, workload_file: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prediction of a run beside what it was: the values of `compare`. All faults of the run are known.

    Args:
        run_dir: Folder of the run.
        workload_file: The workload.toml with the times of the workers.
        summary: The summary of the run.

    Raises:
        FlowdistError: The file cannot be used for this run, or the journal cannot be read.
    """
    record = RecordFile(run_dir / JOURNAL)
    run = Run(run_dir.name, record.header, list(record))  # up to the first line that cannot be used
    _, calibration = with_workload_file(run.header.graph, workload_file)
    known = calibration.roles
    if unknown := [role.name for role in run.header.graph.roles if role.name not in known and not _has_times(role)]:
        lack = f"no workload= of its own in the topology, no table in {workload_file}"
        raise FlowdistError(f"no times are known of {', '.join(unknown)}: {lack}", help=HELP)
    return compare(run, workload_file, expect(run, calibration), summary)


def _has_times(role: RoleSpec) -> bool:
    """Return whether the topology says how the role's workers behave, by a model or a workload that is no default."""
    bare = msgspec.structs.replace(role.workload, collective="", collective_timeout_ns=None)
    return bool(role.simulate) or bare != WorkloadSpec()
