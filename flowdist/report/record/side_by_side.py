"""Two records of one job side by side, such as a real run and a simulation of it: incident by incident.

Lines and times of two such records always differ. Decisions should not: each incident with its cause, what it restarted
and which role paid, the members of each generation, and the outcome.
"""

from __future__ import annotations

from typing import Any

from flowdist.graph import format_duration
from flowdist.record.story import Alignment, IncidentStory
from flowdist.report.table import table
from flowdist.text.printable import joined


def side_by_side_of(found: Alignment) -> dict[str, Any]:
    """Return an alignment as plain values, for --json."""
    pairs = [[None if one is None else _values(one) for one in pair] for pair in found.pairs]
    sides = [{"outcome": one.outcome, "lasted_ns": one.lasted_ns, "lost_ns": one.lost_ns} for one in (found.a, found.b)]
    return {
        "same_decisions": not found.differences,
        "differences": list(found.differences),
        "a": sides[0],
        "b": sides[1],
        "incidents": pairs,
    }


def _values(one: IncidentStory) -> dict[str, Any]:
    return {**one._asdict(), "restarted": list(one.restarted), "stayed": list(one.stayed)}


def side_by_side_text(found: Alignment, names: tuple[str, str]) -> str:
    """Return an alignment for people: a table of incidents and costs, and each decision that differs.

    Args:
        found: The alignment.
        names: The two records, as the command line names them.
    """
    a, b = found.a, found.b
    rows: list[tuple[str, ...]] = [("", "A", "B", "B is longer by")]
    rows.append(("outcome", a.outcome or "unfinished", b.outcome or "unfinished", ""))
    rows.append(("lasted", *_times(a.lasted_ns, b.lasted_ns)))
    for one, other in found.pairs:
        known = one or other
        assert known is not None
        label = f"{known.number}. {known.kind} of {known.root}"
        rows.append((f"{label}: at", *_times(one and one.opened_ns, other and other.opened_ns)))
        rows.append(("   until the next step", *_times(one and one.next_step_ns, other and other.next_step_ns)))
    for role in a.lost_ns:
        if a.lost_ns[role] or b.lost_ns.get(role):
            rows.append((f"lost work of {role}", *_times(a.lost_ns[role], b.lost_ns.get(role))))
    lines = [f"A  {names[0]}", f"B  {names[1]}", "", *table(rows), ""]
    if not found.differences:
        return joined([*lines, f"the same decisions: {len(found.pairs)} incidents"])
    return joined([*lines, "decisions that differ (A / B):", *(f"  {text}" for text in found.differences)])


def _times(one: int | None, other: int | None) -> tuple[str, str, str]:
    """Return two durations in ns and their difference, for people; `-` for what is not known."""
    texts = [format_duration(round(ns, -6)) if ns is not None else "-" for ns in (one, other)]
    more = "-" if one is None or other is None else format_duration(round(other - one, -6))
    return texts[0], texts[1], more
