"""Summary of a run, real or simulated, from the last state of the controller and the faults of the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from flowdist.control.job.facts import Incident, OldRestore
from flowdist.control.job.state import JobState
from flowdist.graph import format_duration
from flowdist.record.journal import FaultLine, Line
from flowdist.record.status import role_status
from flowdist.report.record.samples import ledgers_of
from flowdist.report.record.spending import goodput_line, not_reported_lines
from flowdist.text.printable import joined, table

WIDTH = 80  # columns that any terminal has
ROW = 4  # of so many replicas in a row, and more, only the first and the last are named


def summary_of(job: JobState, lines: Sequence[Line]) -> dict[str, Any]:
    """Return the summary as plain values, for --json, for expectations and for tests."""
    return {
        "outcome": job.outcome,
        "reason": job.ending_reason,
        "lasted_s": job.now / 1e9,
        "roles": {name: _role(job, name) for name in job.roles},
        "incidents": [_incident(incident) for incident in job.incidents],
        "samples": ledgers_of(job),
        "old_restores": [_old_restore(found) for found in job.restores],
        "causes": dict(sorted(Counter(incident.kind for incident in job.incidents).items())),
        "faults": [{"t_s": line.t_ns / 1e9, "spec": line.spec} for line in lines if isinstance(line, FaultLine)],
    }


def _role(job: JobState, name: str) -> dict[str, Any]:
    role, status = job.roles[name], role_status(job, job.roles[name], job.now)
    return {
        "outcome": status.outcome,
        "restarts": status.restarts,
        "incidents": sum(any(world in incident.worlds for world in role.worlds) for incident in job.incidents),
        "charged": status.charged,
        "budget": status.budget,
        "used": status.used,
        "generations": status.generation,
        "step": status.step,
        "replicas": {str(replica.id): replica.attempt for replica in job.replicas_of(role) if replica.attempt},
    }


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "number": incident.number,
        "t_s": incident.opened_ns / 1e9,
        "kind": incident.kind,
        "root": incident.root,
        "reason": incident.reason,
        "restarted": [str(replica) for replica in incident.restarted if replica not in incident.stayed],
        "stayed_in_place": [str(replica) for replica in incident.stayed],
        "moved": {str(replica): node for replica, node in incident.moved.items()},
        "charged_to": incident.charged_to,
        "result": incident.result or "still open",
        "took_s": in_seconds(incident.took_ns),
        "first_step_s": in_seconds(incident.first_step_ns),
    }


def _old_restore(found: OldRestore) -> dict[str, Any]:
    names = {"world": found.world, "generation": found.generation, "replica": str(found.replica)}
    return {"t_s": found.at_ns / 1e9, **names, "step": found.step, "committed": found.committed, "text": found.text}


def summary_text(summary: dict[str, Any], *, brief: bool = False) -> str:
    """Return the summary for people; `brief` shows where the time went in one line instead of a table."""
    lines = [f"{(summary['outcome'] or 'unfinished').upper()} after {rounded(summary['lasted_s'])}"]
    if summary["reason"]:
        lines[0] += f": {summary['reason']}"
    rates = []
    if "rates" in summary:
        rates = [f"Faults at random: {', '.join(summary['rates'])}; the same with --seed {summary['seed']}"]
    goodput = [line] if "time_ns" in summary and (line := goodput_line(summary)) else []
    times = [] if brief else _times(summary)
    for part in (_roles(summary), rates, goodput, times, _checkpoints(summary), _incidents(summary)):
        lines += ["", *part] if part else []
    return joined(lines)


def _is_simulated(summary: dict[str, Any]) -> bool:
    """Return whether the summary is one of a simulation, which knows the lost work of each role."""
    return any("lost_work_s" in role for role in summary["roles"].values())


def _roles(summary: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("role", "outcome", "generations", "restarts", "charged", "last step")]
    for name, role in summary["roles"].items():
        budget = "-" if role["budget"] is None else f"{role['used']} of {role['budget']}"
        step = str(role["step"]) if role["step"] >= 0 else "-"
        rows.append((name, role["outcome"] or "running", str(role["generations"]), str(role["restarts"]), budget, step))
    lost = [_lost_work_s(summary, name) for name in summary["roles"]]
    if all(seconds is None for seconds in lost):
        return table(rows)
    texts = ["lost work", *("-" if seconds is None else rounded(seconds) for seconds in lost)]
    return table([(*row, text) for row, text in zip(rows, texts, strict=True)])


def _lost_work_s(summary: dict[str, Any], name: str) -> float | None:
    """Return the lost work of a role, in seconds of its worlds; None in a real run without numbers of steps."""
    if _is_simulated(summary):
        seconds: float | None = summary["roles"][name].get("lost_work_s")
        return seconds
    unsaid = summary.get("not_reported", {}).get(name, ())
    if name not in summary.get("tasks", ()) or "progress" in unsaid or "step numbers" in unsaid:
        return None
    return float(summary.get("lost_work_s", {}).get(name, 0.0))


def _times(summary: dict[str, Any]) -> list[str]:
    if not any(summary.get("time_s", {}).values()):
        return []
    lines = ["Where the time went", *_narrow(_time_rows(summary["time_s"])), *not_reported_lines(summary)]
    if _is_simulated(summary) or any(times.get("checkpoint") for times in summary["time_s"].values()):
        return lines
    return [*lines, "saving without worker.saving() counts as productive, reading as start-up"]


def _checkpoints(summary: dict[str, Any]) -> list[str]:
    """Return lines about checkpoints of a simulation that were not completed, and about restores of old ones."""
    counts = Counter((line["world"], line["reason"]) for line in summary.get("unsaved", ()))
    lines = [f"Not saved: {n} of the checkpoints of {world}: {why}" for (world, why), n in counts.items()]
    if old := [f"  at {rounded(each['t_s'])}: {each['text']}" for each in summary.get("old_restores", ())]:
        lines += [f"Old checkpoints, restored although newer ones were committed: {len(old)}", *old]
    return lines


def _incidents(summary: dict[str, Any]) -> list[str]:
    if not summary["incidents"]:
        return []
    causes = ", ".join(f"{count} {kind}" for kind, count in summary["causes"].items())
    return [f"Incidents, by cause: {causes}", *chain.from_iterable(map(_incident_lines, summary["incidents"]))]


def _time_rows(times: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    """Return the rows of a table with the share of each bucket of 0.1 % and more in each role's time."""
    totals = {name: sum(spent.values()) or 1.0 for name, spent in times.items()}
    buckets = dict.fromkeys(bucket for spent in times.values() for bucket in spent)
    shown = [b for b in buckets if any(spent.get(b, 0) / totals[name] >= 0.001 for name, spent in times.items())]
    rows: list[tuple[str, ...]] = [("role", *shown)]
    for name, spent in times.items():
        shares = [100 * spent.get(bucket, 0.0) / totals[name] for bucket in shown]
        rows.append((name, *(f"{share:.1f} %" if share >= 0.05 else "-" for share in shares)))
    return rows


def _narrow(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table, transposed if it is wider than a terminal and has more columns than rows."""
    lines = table(rows)
    if max(map(len, lines)) > WIDTH and len(rows[0]) > len(rows):
        return table(list(zip(*rows, strict=True)))
    return lines


def _names(replicas: Sequence[str]) -> str:
    """Return names of replicas for people, four and more in a row as a range: `ps/1, trainer/0 to trainer/63`."""
    rows: list[list[str]] = []
    for name in replicas:
        role, _, index = name.partition("/")
        if rows and rows[-1][-1] == f"{role}/{int(index) - 1}":
            rows[-1].append(name)
        else:
            rows.append([name])
    return ", ".join(f"{row[0]} to {row[-1]}" if len(row) >= ROW else ", ".join(row) for row in rows) or "nothing"


def _incident_lines(incident: dict[str, Any]) -> list[str]:
    """Return two lines about an incident: its reason, and what it restarted, cost and led to."""
    result, first_step_s = incident["result"], incident["first_step_s"]
    over = "" if result in ("re-formed", "recovered") else "; over"
    if first_step_s is not None:
        result += ": re-formed"
    took = f"{over} after {rounded(incident['took_s'])}" if incident["took_s"] is not None else ""
    if first_step_s is not None:
        took += f", first step after {rounded(first_step_s)}"
    elif incident.get("steps_again_s") is not None:
        took += f", steps again after {rounded(incident['steps_again_s'])}"
    charge = f", charged to {incident['charged_to']}" if incident["charged_to"] else ", not counted"
    did = [f"restarted {_names(incident['restarted'])}"] if incident["restarted"] else []
    did += [f"{_names(names)} moved to {node}" for node, names in _by_node(incident["moved"]).items()]
    did += [f"{_names(names)} stayed in place"] if (names := incident["stayed_in_place"]) else []
    return [
        f"  {incident['number']}. at {rounded(incident['t_s'])}: {incident['reason']}",
        f"     {'; '.join([*did, result])}{took}{charge}",
    ]


def _by_node(moved: dict[str, str]) -> dict[str, list[str]]:
    """Return the names of moved replicas by the node to which they moved."""
    nodes: dict[str, list[str]] = {}
    for replica, node in moved.items():
        nodes.setdefault(node, []).append(replica)
    return nodes


def in_seconds(ns: float | None) -> float | None:
    """Return nanoseconds as seconds; None for None, what is not known."""
    return None if ns is None else ns / 1e9


def rounded(seconds: float) -> str:
    """Return a duration rounded for people: to hundredths of a second below a minute, to seconds above."""
    ns = round(seconds * 1e9)
    return format_duration(round(ns, -7) if ns < 60 * 10**9 else round(ns, -9))
