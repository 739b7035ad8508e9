"""Comparable time accounts of a simulation and of a record whose workers reported no progress.

Such a record does not say what a restart cost a role, and the simulator knows it. Side by side, the two would be
different things under one name, so the simulation is counted in the same way as the record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from flowdist.control.protocol.events import (
    CheckpointOffered,
    ReplicaProgressed,
    ReplicaSpent,
    ReplicaStepped,
    TimePassed,
)
from flowdist.record.accounts import Bucket, Spent
from flowdist.record.journal import AccountLine, Header, Line, Record
from flowdist.record.replay import Replay
from flowdist.report.record.spending import time_of


def silent_roles(not_reported: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the roles whose workers reported no progress; flowdist may have counted their steps."""
    return [name for name, unsaid in not_reported.items() if "progress" in unsaid or "step numbers" in unsaid]


def count_alike(
    summary: dict[str, Any], header: Header, lines: Iterable[Line], spent: Spent, not_reported: dict[str, list[str]]
) -> None:
    """Change the summary of a simulation in place, so that it says only what the record can say about the same roles.

    Roles without progress reports in the record lose their steps and lost work; their times, and with them the goodput,
    are counted as a timesheet counts them without these reports. `header` and `lines` are of the simulation's trace,
    and `spent` is where the time went as the simulator knows it: it stays for all other roles.
    """
    silent = [name for name in silent_roles(not_reported) if name in spent]
    if not silent:
        return
    replay = Replay(header, strict=True)
    for line in lines:
        if not isinstance(line, AccountLine):  # a run has no such accounts
            replay.hear(line, counted_as=_as_reported(line, not_reported))
    counted = replay.sheet.spent()
    told = {name: counted[name] if name in silent else buckets for name, buckets in spent.items()}
    summary |= {**time_of(header.graph, told), "not_reported": {name: not_reported[name] for name in silent}}
    for name in silent:
        role = summary["roles"][name]
        role["step"] = -1
        for key in ("lost_steps", "lost_work_s", "unsaved_steps", "unsaved_work_s"):
            role.pop(key, None)


def without_saving(line: Line, roles: Collection[str]) -> Line | None:
    """Return the line without its event if that is about the saving of one of the roles; None if it may stay as it is.

    Workers of these roles report a part of their saving only, such as the commit: most of a checkpoint would count as
    work.
    """
    if not isinstance(line, Record) or not isinstance(line.event, ReplicaSpent) or line.event.on != "saving":
        return None
    return msgspec.structs.replace(line, event=TimePassed()) if line.event.replica.role in roles else None


def as_in_record(spent: Spent, untold: Collection[str], unsaved: Collection[str]) -> Spent:
    """Return the time accounts of a simulation, counted as those of a record in which workers report less.

    Saving of the roles `untold` counts as work; what the roles `unsaved` have done at the end counts as kept.
    """
    counted = {name: dict(buckets) for name, buckets in spent.items()}
    buckets: tuple[tuple[Bucket, Collection[str]], ...] = (("checkpoint", untold), ("unsaved at the end", unsaved))
    for bucket, roles in buckets:
        for name in roles:
            if name in counted:
                counted[name]["productive"] += counted[name][bucket]
                counted[name][bucket] = 0
    return counted


def _as_reported(line: Line, not_reported: Mapping[str, Sequence[str]]) -> Line:
    """Return the line without a report that the workers of the record never made; of counted steps, as a count."""
    if not isinstance(line, Record) or not isinstance(
        line.event, ReplicaProgressed | ReplicaStepped | CheckpointOffered
    ):
        return line
    event, unsaid = line.event, not_reported.get(line.event.replica.role, ())
    if ("checkpoints" if isinstance(event, CheckpointOffered) else "progress") in unsaid:
        return msgspec.structs.replace(line, event=TimePassed())
    if isinstance(event, ReplicaProgressed) and "step numbers" in unsaid:
        return msgspec.structs.replace(line, event=ReplicaStepped(event.replica, event.attempt, event.step))
    return line
