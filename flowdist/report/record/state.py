"""State of a job at one moment, for `flowdist replay`: in full for programs, and in brief for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec

from flowdist.control.job.deadlines import Deadlines
from flowdist.control.job.state import JobState
from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.snapshots.keeping import newest_snapshot
from flowdist.record.journal import Record
from flowdist.record.status import role_status
from flowdist.report.record.trace import event_lines, stamp
from flowdist.text.printable import joined, table

NOT_SHOWN = frozenset({"graph", "spec"})  # the header has them


def state_of(job: JobState, record: Record | None) -> dict[str, Any]:
    """Return every field of the state as plain values, the event that led to it, and what the job waits for."""
    return {
        "n": record.n if record is not None else 0,
        "t_ns": job.now,
        "last": msgspec.to_builtins(record) if record is not None else None,
        "waiting_for": waiting_for(job),
        "state": _plain(job),
    }


def _plain(value: Any) -> Any:
    """Return a value of the state with plain types for JSON. A value of another type becomes the name of its type."""
    match value:
        case ReplicaId():
            return str(value)
        case Deadlines():
            return [{"what": due.what, "name": due.name, "at_ns": value.at(due)} for due in value]
        case msgspec.Struct():
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            return {str(key): _plain(content) for key, content in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return {name: _plain(content) for name, content in value._asdict().items()}
        case list() | tuple():
            return [_plain(content) for content in value]
    if dataclasses.is_dataclass(value):
        fields = [field for field in dataclasses.fields(value) if field.name not in NOT_SHOWN]
        return {field.name: _field(getattr(value, field.name), str(field.type)) for field in fields}
    if isinstance(value, str | int | float | None):
        return value
    return [_plain(content) for content in value] if isinstance(value, Iterable) else type(value).__name__


def _field(value: Any, type_name: str) -> Any:
    """Return a field of a dataclass as plain values; an ordered set, by its type a dict to None, becomes a list."""
    return [_plain(key) for key in value] if type_name.endswith(", None]") else _plain(value)


def state_text(job: JobState, record: Record | None) -> str:
    """Return the state for people: the event, roles, replicas, nodes, incidents, deadlines, and what is waited for."""
    lines = list(event_lines(record)) if record is not None else ["before the first event"]
    lines += ["", _heading(job)]
    for part in (_worlds, _replicas, _nodes, _budgets, _incidents, _deadlines, _waiting):
        lines += ["", *found] if (found := part(job)) else []
    return joined(lines)


def _heading(job: JobState) -> str:
    outcome = job.outcome or (f"ending: {job.ending}" if job.ending else "under way")
    return f"at {stamp(job.now).strip()}: {outcome}" + (f" ({job.ending_reason})" if job.ending_reason else "")


def _worlds(job: JobState) -> list[str]:
    takes_snapshots = any(role.spec.snapshots is not None for role in job.roles.values())
    tiers = ("saved", "in memory") if takes_snapshots else ("saved",)
    rows: list[tuple[str, ...]] = [("world", "phase", "generation", "members", "step", *tiers, "incident")]
    for world in job.worlds.values():
        saved = _step(world.checkpoint.step) if world.checkpoint is not None else "-"
        newest = newest_snapshot(world)
        in_memory = f"{newest.step} ({newest.least} of each shard)" if newest is not None else "-"
        members = f"{len(world.members)} of {len(world.pool)}"
        steps = (_step(world.step), *(saved, in_memory)[: len(tiers)], str(world.incident or "-"))
        rows.append((world.name, world.phase, str(world.generation), members, *steps))
    return table(rows)


def _step(step: int) -> str:
    """Return the step as text; `-` for -1, no step."""
    return str(step) if step >= 0 else "-"


def _replicas(job: JobState) -> list[str]:
    rows: list[tuple[str, ...]] = [("replica", "phase", "attempt", "node", "gpus", "step", "member since")]
    for replica in job.replicas.values():
        gpus = ",".join(map(str, replica.gpus)) or "-"
        where = (replica.node or "-", gpus, _step(replica.step), str(replica.member_since or "-"))
        phase = f"{replica.phase}, stalled" if replica.stalled else replica.phase
        rows.append((str(replica.id), phase, str(replica.attempt), *where))
    return table(rows)


def _nodes(job: JobState) -> list[str]:
    rows: list[tuple[str, ...]] = [("node", "usable", "cordoned", "free cpu", "replicas")]
    for name, node in job.nodes.items():
        usable = "leaving" if node.is_leaving else "yes" if node.usable else "no"
        there = ", ".join(map(str, node.replicas)) or "-"
        rows.append((name, usable, node.cordoned or "-", f"{node.free.mcpu / 1000:g}", there))
    rows += [(name, "expected", "-", "-", "-") for name in job.missing if name not in job.nodes]
    return table(rows)


def _budgets(job: JobState) -> list[str]:
    rows: list[tuple[str, ...]] = [("role", "outcome", "target", "charged", "budget")]
    for name, role in job.roles.items():
        status = role_status(job, role, job.now)
        budget = str(status.budget) if status.budget is not None else "-"
        rows.append((name, role.outcome or "-", str(role.target), str(status.used), budget))
    return table(rows)


def _incidents(job: JobState) -> list[str]:
    lines = []
    for incident in job.open_incidents():
        lines.append(f"incident {incident.number}, {incident.phase}: {incident.reason}")
        lines.append(f"  restarts {', '.join(incident.worlds)}; awaits {', '.join(incident.awaited) or 'nothing'}")
    return lines


def _deadlines(job: JobState) -> list[str]:
    due = sorted((job.due.at(due) or 0, due) for due in job.due)
    rows = [(stamp(at).strip(), each.what, each.name or "the job") for at, each in due]
    return table([("due", "what", "of"), *rows]) if rows else []


def _waiting(job: JobState) -> list[str]:
    waiting = waiting_for(job)
    return ["waiting for", *(f"  {text}" for text in waiting)] if waiting else []
