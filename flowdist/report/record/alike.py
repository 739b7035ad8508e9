"""A simulation, counted as a record is in which workers did not tell how far they were.

What a restart cost them nobody knows: such a role counts as productive whenever all of it ran. The simulator knows it
of its own workers, since it has made it up. Side by side the two would be different things under one name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from flowdist.control.protocol.events import CheckpointOffered, ReplicaProgressed, TimePassed
from flowdist.record.accounts import Spent
from flowdist.record.journal import Header, Line, Record
from flowdist.record.replay import Replay
from flowdist.report.record.spending import time_of


def silent_roles(not_reported: Mapping[str, Sequence[str]]) -> list[str]:
    """Those of which the record does not tell how far they were."""
    return [name for name, unsaid in not_reported.items() if "progress" in unsaid]


def count_alike(
    summary: dict[str, Any], header: Header, lines: Iterable[Line], spent: Spent, not_reported: dict[str, list[str]]
) -> None:
    """Have the summary of a simulation say nothing of a role that a record could not.

    Args:
        summary: Is changed: times, goodput, and steps and lost work of those roles.
        header: Of the trace of the simulation.
        lines: The rest of it.
        spent: Where the time went, as the simulator knows it: it holds for all other roles.
        not_reported: What the workers of the record never told, by role.
    """
    silent = [name for name in silent_roles(not_reported) if name in spent]
    if not silent:
        return
    replay = Replay(header, strict=True)
    for line in lines:
        replay.hear(line, counted_as=_as_told(line, not_reported))
    counted = replay.sheet.spent()
    told = {name: counted[name] if name in silent else buckets for name, buckets in spent.items()}
    summary |= {**time_of(header.graph, told), "not_reported": {name: not_reported[name] for name in silent}}
    for name in silent:
        role = summary["roles"][name]
        role["step"] = -1
        role.pop("lost_steps", None)
        role.pop("lost_work_s", None)


def _as_told(line: Line, not_reported: Mapping[str, Sequence[str]]) -> Line:
    """Without what the worker would not have said."""
    if not isinstance(line, Record) or not isinstance(line.event, ReplicaProgressed | CheckpointOffered):
        return line
    what = "progress" if isinstance(line.event, ReplicaProgressed) else "checkpoints"
    is_untold = what in not_reported.get(line.event.replica.role, ())
    return msgspec.structs.replace(line, event=TimePassed()) if is_untold else line
