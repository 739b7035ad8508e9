"""Files that a run leaves in its folder for later commands: a damaged one is found when it is read.

A disk error, an editor or another version of flowdist may have left anything there. So each is checked against the type
of its content. Keys that the type does not name are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")
# what a decoder raises for damaged content; OverflowError: an integer has no float that is close to it
DAMAGED = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)

Seconds = Annotated[float, Meta(ge=0, le=1e10)]


class SummaryEnd(msgspec.Struct, frozen=True):
    """Content of summary.json that says how the job has ended."""

    outcome: Literal["succeeded", "failed", "cancelled"]
    reason: str
    lasted_s: Seconds


class Start(TypedDict):
    """One of the `starts` in environment.json."""

    started_at: str
    host: str
    flowdist: str
    python: str
    torch: str | None


class Environment(TypedDict):
    """Content of environment.json."""

    starts: list[Start]


def read_saved(path: Path, type: type[T]) -> Any:
    """Return the content of a JSON file as plain values; None if there is none, or not one of this type."""
    try:
        data = path.read_bytes()
        msgspec.json.decode(data, type=type)
        return json.loads(data)
    except (OSError, *DAMAGED):
        return None
