"""Predicted beside actual for `flowdist report`: what the simulator expects of a run with given times, and what it was.

A figure is compared only if both sides count alike: saving that is not reported counts as work, and tasks without
progress, whose lost work is unknown, do not count for goodput.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from flowdist.cli.shared.options import times_of
from flowdist.cli.shared.records import RecordFile
from flowdist.errors import FlowdistError
from flowdist.graph import WorkloadSpec
from flowdist.record.accounts import BUCKETS, Bucket, productive_share
from flowdist.record.reader import JOURNAL, WholeRecord
from flowdist.report.record.alike import as_in_record, silent_roles
from flowdist.report.record.summary import rounded
from flowdist.sim.calibration.calibration import Calibration, calibrate
from flowdist.sim.calibration.observe import observe
from flowdist.sim.experiment.compare import Comparison, Figure, decision_differences, value_text
from flowdist.sim.experiment.outcome import IncidentOutcome
from flowdist.sim.experiment.predict import predict
from flowdist.text.printable import table

LISTED = 5  # decisions that differ
HELP = "flowdist calibrate RUN -o workload.toml measures them in a run"


def predicted(run_dir: Path, workload_file: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prediction of a run beside what it was: see `values_of`. All faults of the run are known."""
    record = RecordFile(run_dir / JOURNAL)
    run = WholeRecord(run_dir.name, record.header, list(record))  # up to the first line that cannot be used
    times, roles = times_of(workload_file, run.header.graph), run.header.graph.roles
    bare = [msgspec.structs.replace(role.workload, collective="", collective_timeout_ns=None) for role in roles]
    told = [role.name for role, work in zip(roles, bare, strict=True) if role.simulate or work != WorkloadSpec()]
    if unknown := [role.name for role in roles if role.name not in times.roles and role.name not in told]:
        lack = f"no workload= of its own in the topology, no table in {workload_file}"
        raise FlowdistError(f"no times are known of {', '.join(unknown)}: {lack}", help=HELP)
    own = calibrate([observe(run.header, run.lines)])
    untold = [name for name, role in own.roles.items() if not role.tells_saving]
    return {"times": workload_file, **values_of(predict(run, times), times, untold, summary)}


def values_of(
    found: Comparison, times: Calibration, untold: Collection[str], summary: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a run beside its prediction as plain values for --json, in ns; None is what is not known."""
    silent = silent_roles(summary.get("not_reported", {}))
    matches = found.matches
    incidents, more = [], []
    for one, other in found.pairs:
        if one is not None and other is not None and one.number in matches:
            incidents.append(_incident(one, other, silent))
        elif one is not None:
            why = "the simulation of the run has no such incident"
            if other is not None:
                why = f"the simulation has {other.kind} of {other.root} in its place"
            incidents.append({"number": one.number, "kind": one.kind, "root": one.root, "why": why})
        elif other is not None:
            more.append(f"the simulation has an incident more: {other.kind} of {other.root}")
    job = _job(found, times, untold, silent, summary)
    tasks = job["goodput"]["of"]
    rest = f"the goodput is that of {', '.join(tasks)}, without {{}}" if tasks else "no goodput can be compared"
    unknown = "reported no step numbers, so its lost work is not known, and"
    return {
        "job": job,
        "incidents": incidents,
        "more_incidents": more,
        "not_compared": [f"{name} {unknown} {rest.format(name)}" for name in silent],
    }


def _job(
    found: Comparison, times: Calibration, untold: Collection[str], silent: Collection[str], summary: Mapping[str, Any]
) -> dict[str, Any]:
    """Return outcome, length and goodput of the whole job, predicted beside actual."""
    unsaved = [name for name, kinds in summary.get("not_reported", {}).items() if "checkpoints" in kinds]
    tasks = [name for name in found.b.steps if name not in silent and name not in times.unreported]
    without = sorted((name for name in found.b.steps if name not in tasks), key=lambda name: name in times.unreported)
    shares = []
    for spent in (found.b.spent, summary["time_ns"]):
        whole: dict[str, dict[Bucket, int]]
        whole = {name: {**dict.fromkeys(BUCKETS, 0), **spent.get(name, {})} for name in tasks}
        shares.append(productive_share(tasks, as_in_record(whole, untold, unsaved)))
    lasted_ns = found.a.lasted_ns if summary["outcome"] is not None else None
    return {
        "outcome": {"predicted": found.b.outcome, "actual": summary["outcome"]},
        "lasted_ns": _figure(found.b.lasted_ns, lasted_ns),
        "goodput": {
            "predicted": shares[0],
            "actual": shares[1] if lasted_ns is not None else None,
            "of": tasks,
            "without": without,
        },
    }


def _incident(one: IncidentOutcome, other: IncidentOutcome, silent: Collection[str]) -> dict[str, Any]:
    """Return one incident, predicted (`other`) beside actual; loss is None where no step was reported after it."""
    lost = {role: ns for role, ns in one.lost_ns.items() if role not in silent}
    roles = [role for role in dict.fromkeys([*other.lost_ns, *lost]) if other.lost_ns.get(role) or lost.get(role)]
    return {
        "number": one.number,
        "kind": one.kind,
        "root": one.root,
        "why": "",
        "re_formed_ns": _figure(other.re_formed_ns, one.re_formed_ns),
        "next_step_ns": _figure(_first_step_ns(other), _first_step_ns(one)),
        "lost_ns": {role: _figure(other.lost_ns.get(role, 0), lost.get(role)) for role in roles},
        "decisions": list(_differences(other, one)),
    }


def _first_step_ns(one: IncidentOutcome) -> int | None:
    """Return the time until the first step; None if none is known: `next_step_ns` is that of the re-formation then."""
    return one.next_step_ns if one.next_step_ns != one.re_formed_ns else None


def _differences(expected: IncidentOutcome, one: IncidentOutcome) -> Iterator[str]:
    """Yield the decisions about an incident that differ; that a job ends before a step is reported is no decision."""
    for name, x, y in decision_differences(expected, one):
        if {x, y} != {"re-formed", "recovered"}:
            yield f"{name}: {value_text(x)} / {value_text(y)}"


def _figure(predicted: int | None, actual: int | None) -> dict[str, Any]:
    error = None  # of 0, or of what is not known, there is no share
    if predicted is not None and actual:
        error = Figure("", actual, predicted).error
    return {"predicted": predicted, "actual": actual, "error": None if error is None else round(error, 4)}


def predicted_text(values: Mapping[str, Any]) -> list[str]:
    """Return the lines of the comparison for people."""
    lines = [f"Predicted beside actual (with all faults known; times: {values['times']})"]
    rows = [*_job_rows(values["job"]), *(row for one in values["incidents"] for row in _incident_rows(one))]
    lines += table([("", "predicted", "actual", "off by"), *rows])
    known = [one for one in values["incidents"] if not one["why"]]
    lines += [f"{_name(one)}: not predicted: {one['why']}" for one in values["incidents"] if one["why"]]
    lines += values["more_incidents"]
    differ = [f"  {_name(one)}: {text}" for one in known for text in one["decisions"]]
    if differ:
        lines += ["decisions that differ (predicted / actual):", *differ[:LISTED]]
        lines += [f"  and {len(differ) - LISTED} more: --json lists all"] if len(differ) > LISTED else []
    elif known:
        lines.append(f"decisions: as predicted, in {len(known)} incident{'s' * (len(known) != 1)}")
    return [*lines, *values["not_compared"]]


def _job_rows(job: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield ("outcome", *(job["outcome"][side] or "unfinished" for side in ("predicted", "actual")), "")
    yield ("the job", *_texts(job["lasted_ns"]))
    predicted, actual = (job["goodput"][side] for side in ("predicted", "actual"))
    points = "-" if predicted is None or actual is None else f"{100 * abs(predicted - actual):.1f} points"
    tasks = job["goodput"]["of"] if job["goodput"]["without"] else []
    name = f"goodput of {', '.join(tasks)}" if tasks else "goodput"
    yield (name, *("-" if share is None else f"{100 * share:.1f} %" for share in (predicted, actual)), points)


def _incident_rows(one: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    if one["why"]:
        return
    yield (f"{_name(one)}: re-formed", *_texts(one["re_formed_ns"]))
    if any(one["next_step_ns"].values()):
        yield ("   first step", *_texts(one["next_step_ns"]))
    for role, figure in one["lost_ns"].items():
        yield (f"   lost work of {role}", *_texts(figure))


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['number']}. {one['kind']} of {one['root']}"


def _texts(figure: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return both times and their difference, for people: 80 % of a tenth of a second is little."""
    times = ["-" if figure[side] is None else rounded(figure[side] / 1e9) for side in ("predicted", "actual")]
    if None in (figure["predicted"], figure["actual"]):
        return times[0], times[1], "-"
    off = rounded(abs(figure["predicted"] - figure["actual"]) / 1e9)
    share = f" ({100 * figure['error']:.1f} %)" if figure["error"] is not None else ""
    return times[0], times[1], off + share
