"""The witnesses of one pair: what really happened, what the simulator says, and what the journal says when replayed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from flowdist.faults.files import parse_plan
from flowdist.record.accounts import Bucket, Spent
from flowdist.record.journal import Header
from flowdist.record.reader import JOURNAL, WholeRecord, read_whole_lines
from flowdist.record.replay import Replay
from flowdist.report.record.alike import as_in_record
from flowdist.sim.calibration.calibration import Calibration, calibrate
from flowdist.sim.calibration.fit import RoleTimes
from flowdist.sim.calibration.observe import observe
from flowdist.sim.experiment.predict import predict
from tests.witnesses.decisions import Decision, decisions_of
from tests.witnesses.pairs import Pair

LIMIT_S = 60.0  # for one run; it is cancelled then
VARIED = 40  # simulations with other times within the noise, at most
MARGIN = 0.05  # by which times may be outside of what three runs have shown
Times = Mapping[tuple[str, Bucket], int]


class Witness(NamedTuple):
    """What one witness says: the decisions, and the time in ns by role and bucket."""

    name: str
    decisions: Sequence[Decision]
    times: Times


class Real(NamedTuple):
    """A run on real processes: its record, and the times that it printed at its end."""

    run: WholeRecord
    witness: Witness


class Broken(Exception):
    """A witness that contradicts itself, or says nothing."""


def really(folder: Path, name: str, faults: Sequence[str], sets: Sequence[str] = ()) -> Real:
    """Run the topology of a folder on real processes.

    Raises:
        Broken: The run did not end, or ended neither with success nor with failure.
    """
    words = [word for fault in faults for word in ("--fail", fault)] + [word for one in sets for word in ("--set", one)]
    command = [sys.executable, "-m", "flowdist", "run", "topology.py", "--quiet", "--runs", name, *words]
    # no run begins with what an earlier one has learned
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / name / "cache")}
    with (folder / f"{name}.out").open("w+") as output:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise Broken(f"{name}: not over after {LIMIT_S:g} s") from None
        output.seek(0)
        said = output.read()
    if code not in (0, 1):
        raise Broken(f"{name}: exit code {code}:\n{said[-2000:]}")
    (journal,) = (folder / name).glob(f"pair-*/{JOURNAL}")
    header, *lines = read_whole_lines(journal.read_bytes(), str(journal))[0]
    assert isinstance(header, Header)
    spent = msgspec.json.decode((journal.parent / "summary.json").read_bytes())["time_ns"]
    return Real(WholeRecord(name, header, lines), Witness(name, decisions_of(header, lines), _times(spent)))


def replayed(run: WholeRecord) -> Witness:
    """Return what the journal of a run says: a fresh controller gets its events.

    Raises:
        Broken: The controller decides otherwise than the record says.
    """
    replay = Replay(run.header, strict=True)
    for line in run.lines:
        replay.hear(line)
    if replay.difference is not None:
        raise Broken(f"{run.name}: {replay.difference.text}")
    return Witness("replayed", decisions_of(run.header, run.lines), _times(replay.sheet.spent()))


def simulated(pair: Pair, run: WholeRecord, calibration: Calibration, seed: int) -> Witness:
    """Return what the simulator says: it gets the topology, the plan and the times of a calibration, and no events.

    Raises:
        Broken: An invariant was violated, or the job does not end.
    """
    result = predict(run, calibration, parse_plan(pair.faults), seed).b.exact
    if result.violation is not None:
        raise Broken(f"simulated: {result.violation}")
    header, *lines = result.lines
    assert isinstance(header, Header)
    spent = as_in_record(result.spent, untold=(), unsaved=_unsaved(run))
    return Witness("simulated", decisions_of(header, lines), _times(spent))


def _unsaved(run: WholeRecord) -> list[str]:
    """Return the tasks that never committed a checkpoint in a run: their last steps count as kept there."""
    unreported = Replay(run.header).follow(run.lines).sheet.unreported()
    return [name for name, kinds in unreported.items() if "checkpoints" in kinds]


def calibrations_of(runs: Sequence[WholeRecord], dice: random.Random) -> Iterator[Calibration]:
    """Yield the times of the first two runs, then VARIED times between those that the runs show each for itself.

    Real runs differ in their times, and where two things happen at nearly one moment, also in what comes first. These
    calibrations are what such a difference means for the simulator. How soon nodes arrive depends on what else the
    machine does at the start of a run, and says nothing about the job: the median of all runs is taken.
    """
    own = [calibrate([observe(run.header, run.lines)]) for run in runs]
    arrivals = [each.arrival_ns for each in own if each.arrival_ns is not None]
    both = calibrate([observe(run.header, run.lines) for run in runs[:2]])
    yield both._replace(arrival_ns=round(median(arrivals)))
    for _ in range(VARIED):
        roles = {name: _between(role, [each.roles[name] for each in own], dice) for name, role in both.roles.items()}
        yield both._replace(roles=roles, arrival_ns=round(dice.uniform(min(arrivals), max(arrivals))))


def _between(both: RoleTimes, times: Sequence[RoleTimes], dice: random.Random) -> RoleTimes:
    """Return times of a role, each between the least and the most that was measured.

    Steps between two checkpoints stay as many, and start-ups as alike as in two runs together: one run alone does not
    show how much they differ, and the simulator would then make them differ by a fifth.
    """
    fields = dict(both.fields)
    for name, value in fields.items():
        found = [each.fields[name] for each in times if each.fields.get(name) is not None]
        if name.endswith("_ns") and value is not None and found:
            fields[name] = round(dice.uniform((1 - MARGIN) * min(found), (1 + MARGIN) * max(found)))
    if both.fields.get("checkpoint_every_ns") and both.fields.get("step_ns"):
        steps = round(both.fields["checkpoint_every_ns"] / both.fields["step_ns"])
        fields["checkpoint_every_ns"] = steps * fields["step_ns"]
    return both._replace(fields=fields)


def _times(spent: Spent) -> Times:
    return {(role, bucket): ns for role, buckets in spent.items() for bucket, ns in buckets.items() if ns}
