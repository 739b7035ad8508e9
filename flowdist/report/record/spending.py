"""Time accounts of a job, real or simulated: as values for --json, as a line, and in words what is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from flowdist.graph import RoleGraph
from flowdist.record.accounts import BUCKETS, Spent, known_tasks, productive_share
from flowdist.record.timesheet import Timesheet

SHOWN_MIN = 0.0005  # share of the time of tasks: smaller buckets are left out of the line


def time_of(graph: RoleGraph, spent: Spent) -> dict[str, Any]:
    """Return the time accounts as plain values, for the summary.

    For each role `time_ns` adds up to wall time x replicas, by bucket without zeros. `goodput` is that of the tasks
    without unknown time; None if that is none of them, or none of these has had any time.
    """
    tasks = [spec.name for spec in graph.roles if spec.kind == "task"]
    times = {
        name: {bucket: buckets[bucket] for bucket in BUCKETS if buckets[bucket]} for name, buckets in spent.items()
    }
    return {
        "goodput": productive_share(tasks, spent),
        "tasks": tasks,
        "time_ns": times,
        "time_s": {name: {bucket: ns / 1e9 for bucket, ns in buckets.items()} for name, buckets in times.items()},
    }


def time_of_run(graph: RoleGraph, sheet: Timesheet) -> dict[str, Any]:
    """Return `time_of` for a real run, its lost work in seconds by role, and the kinds of reports never made by role.

    `lost_work_s` is by role: the time of its worlds, as in a simulation, however many replicas each has. Roles that
    never worked have no `not_reported`.
    """
    values = time_of(graph, sheet.spent())
    work = ("productive", "lost work", "unknown")
    ran = {name for name, buckets in values["time_ns"].items() if any(buckets.get(bucket) for bucket in work)}
    unsaid = {name: kinds for name, kinds in sheet.unreported().items() if name in ran and kinds}
    lost = {name: ns / 1e9 for name, ns in sheet.lost().items()}
    return {**values, "lost_work_s": lost, "not_reported": unsaid}


def goodput_line(summary: Mapping[str, Any]) -> str:
    """Return the goodput and where the other time of tasks went; empty if no task has had any time.

    Buckets below 0.05 % are left out. All of it is that of the tasks without unknown time; the others are named. A job
    that has failed without a report of progress may never have made a step, so its goodput is not known.
    """
    known = known_tasks(summary["tasks"], summary["time_ns"])
    unknown = ", ".join(name for name in summary["tasks"] if name not in known)
    if summary["goodput"] is None:
        return f"goodput unknown: {unknown} reported neither progress nor checkpoints" if unknown else ""
    silent = [name for name, unsaid in summary.get("not_reported", {}).items() if "progress" in unsaid]
    worked = [name for name in known if summary["time_ns"][name].get("productive")]
    if summary.get("outcome") == "failed" and worked and set(worked) <= set(silent):
        return f"goodput unknown: {', '.join(worked)} reported no progress before the job failed"
    parts = _other_parts([summary["time_ns"][name] for name in known])
    line = f"goodput {100 * summary['goodput']:.1f} %" + (f"; {', '.join(parts)}" if parts else "")
    silent = [name for name in silent if name in known]
    notes = [f"{', '.join(silent)} reported no progress"] if silent else []
    notes += [f"that of {unknown} is unknown"] if unknown else []
    return line + (f" ({'; '.join(notes)})" if notes else "")


def _other_parts(times: Iterable[Mapping[str, int]]) -> list[str]:
    """Return the share of each bucket but `productive` and `done` in the time of roles before they were done."""
    total: Counter[str] = Counter()
    for spent in times:
        total.update(spent)
    productive = total.pop("productive", 0)
    total.pop("done", 0)
    whole = productive + sum(total.values())
    return [f"{name} {100 * total[name] / whole:.1f} %" for name in BUCKETS if total[name] >= SHOWN_MIN * whole]


def not_reported_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each role that did not report its work: what is unknown, and how its time is counted."""
    lines = []
    for name, unsaid in summary.get("not_reported", {}).items():
        if "step numbers" in unsaid:
            text = "no step numbers: its optimizer steps were counted; work that was done again counts as productive"
            if "checkpoints" not in unsaid:
                text += ", up to a checkpoint where it was stopped"
        elif len(unsaid) == 2:
            text = (
                "neither progress nor checkpoints: what it did while all of it ran is unknown, and no part of goodput"
            )
        elif "progress" in unsaid:
            text = (
                "no progress: it counts as productive from when all of it ran, up to a checkpoint where it was stopped"
            )
        else:
            text = "no checkpoints: only steps that were done again count as lost work"
        lines.append(f"{name} reported {text}")
    return lines
