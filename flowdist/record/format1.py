"""Translation of record format 1 to format 2.

Format 1 has the event `NodeQuiet` instead of `NodeSuspected`, and `parked` instead of `suspended` as a field of stopped
and exited replicas and as a phase of the inventory. A controller that takes over a journal of format 1 appends lines
of format 2 to it. Each line is therefore translated by itself, whatever the header says.
"""

from __future__ import annotations

from typing import Any

import msgspec


def has_old_names(line: bytes) -> bool:
    """Return whether an old name stands in the line as a JSON string of its own: it may be the name of a role, too."""
    return b'"parked"' in line or b'"NodeQuiet"' in line


def with_present_names(line: bytes) -> bytes:
    """Return the line of a record with the names of format 2; a line that has them already is not changed."""
    content = msgspec.json.decode(line)
    event = content.get("event") if isinstance(content, dict) else None
    if not isinstance(event, dict):
        return line
    if event.get("type") == "NodeQuiet":
        event["type"] = "NodeSuspected"
    _rename_parked(event)
    for item in event.get("inventory", ()):
        if item.get("phase") == "parked":
            item["phase"] = "suspended"
        _rename_parked(item.get("exited"))
    return msgspec.json.encode(content)


def _rename_parked(event: Any) -> None:
    if isinstance(event, dict) and "parked" in event:
        event["suspended"] = event.pop("parked")
