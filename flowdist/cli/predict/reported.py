"""Predictions of a run for `flowdist report`: those in the folder of the run, or one that is made afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowdist.cli.predict.comparison import compare
from flowdist.cli.predict.saved import Predictions, read_predictions
from flowdist.cli.predict.times import find_times
from flowdist.cli.shared.records import RecordFile
from flowdist.cli.shared.workloads import with_workload_file
from flowdist.errors import FlowdistError
from flowdist.record.reader import JOURNAL
from flowdist.sim.forecast import expect_afterwards
from flowdist.sim.prediction import Run


def reported(run_dir: Path, workload_file: str | None, summary: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the predictions of a run beside what it was, and why there are none although there should be.

    Args:
        run_dir: Folder of the run.
        workload_file: The workload.toml with which the run is predicted now; None: use what it has in its folder.
        summary: The summary of the run.

    Returns:
        The values of `compare`, None if there are none; and in words why not, empty if the run was not predicted.

    Raises:
        FlowdistError: The named workload.toml cannot be used for this run, or the journal cannot be read.
    """
    if workload_file is not None:
        run = _run_of(run_dir)
        return compare(run, predict_afterwards(run, workload_file), summary), ""
    try:
        found = read_predictions(run_dir)
        return (compare(_run_of(run_dir), found, summary), "") if found is not None else (None, "")
    except FlowdistError as error:  # the rest of the report does not need it
        return None, f"{error.message}; {error.help}" if error.help else error.message


def predict_afterwards(run: Run, workload_file: str) -> Predictions:
    """Return the prediction of a recorded run with the times of a file, all faults of the run known.

    Raises:
        FlowdistError: The file cannot be used for this run, or a line of the record cannot be replayed.
    """
    times = find_times(run.header.graph, workload_file)
    if times.why_not:
        raise FlowdistError(times.why_not)
    _, calibration = with_workload_file(run.header.graph, workload_file)
    job, incidents, more = expect_afterwards(run, calibration)
    return Predictions(times.name, job=job, incidents=tuple(incidents), more=tuple(more), is_afterwards=True)


def _run_of(run_dir: Path) -> Run:
    """Return the record of a run, up to its first line that cannot be used."""
    record = RecordFile(run_dir / JOURNAL)
    return Run(run_dir.name, record.header, list(record))
