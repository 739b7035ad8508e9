"""A process that makes one prediction of a run, writes it into the folder of the run, and ends.

    python -m flowdist.cli.predict.helper REQUEST

The process has a low priority, so that a recovery does not wait for its own prediction, and ends with the process that
started it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from flowdist.cli.predict.saved import Predictions, read_predictions, write_predictions
from flowdist.cli.predict.times import Times, basis_of
from flowdist.cli.shared.records import RecordFile
from flowdist.errors import FlowdistError
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import decode_graph
from flowdist.record.journal import Line, Record
from flowdist.record.reader import JOURNAL
from flowdist.runtime.processes.reaper import die_with_parent
from flowdist.runtime.run_folder.folder import GRAPH
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.forecast import Basis, ExpectedIncident, expect_incident, expect_job
from flowdist.sim.prediction import Run

NICE = 10


class Request(msgspec.Struct, frozen=True):
    """Request for one prediction.

    Args:
        run_dir: Folder of the run.
        file: The workload.toml; empty: the topology has the times.
        sets: Texts of --set.
        options: Announced faults and orders, as options of the command line: see `Plan.options`.
        number: The incident to predict; 0: the whole job, before it has begun.
        until_n: Number of the last event of the journal that counts.
        parent: Process id of the process that asks.
    """

    run_dir: str
    file: str
    sets: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    number: int
    until_n: int
    parent: int


def predict_one(request: Request) -> None:
    """Make the prediction, and add it to those in the folder of the run.

    Raises:
        OSError: The folder of the run cannot be read or written.
    """
    run_dir = Path(request.run_dir)
    times = Times(request.file, request.sets)
    known = read_predictions(run_dir) or Predictions(times.name)
    basis = basis_of(decode_graph((run_dir / GRAPH).read_bytes()), times, _plan(request.options))
    write_predictions(run_dir, _with_job(known, basis) if request.number == 0 else _with_one(known, basis, request))


def _plan(options: tuple[tuple[str, str], ...]) -> Plan:
    """Return the plan that options of the command line describe."""
    flags = ("--fail", "--scale", "--add", "--drain")
    return parse_plan(*([text for flag, text in options if flag == each] for each in flags))


def _with_job(known: Predictions, basis: Basis) -> Predictions:
    try:
        check_faults(basis.plan, basis.graph)
        return msgspec.structs.replace(known, job=expect_job(basis), problem="")
    except FlowdistError as error:
        return msgspec.structs.replace(known, job=None, problem=error.message)


def _with_one(known: Predictions, basis: Basis, request: Request) -> Predictions:
    run = _run_until(Path(request.run_dir), request.until_n)
    try:
        return known.with_incident(expect_incident(basis, run, request.number))
    except FlowdistError as error:
        return known.with_incident(ExpectedIncident(request.number, "", "", error.message))


def _run_until(run_dir: Path, until_n: int) -> Run:
    """Return the record of the run up to an event."""
    record, lines = RecordFile(run_dir / JOURNAL), list[Line]()
    for line in record:
        if isinstance(line, Record) and line.n > until_n:
            break
        lines.append(line)
    return Run(run_dir.name, record.header, lines)


def main() -> None:
    """Make the prediction that the command line asks for."""
    os.nice(NICE)
    request = msgspec.json.decode(sys.argv[1], type=Request)
    die_with_parent(request.parent)
    predict_one(request)


if __name__ == "__main__":
    main()
