"""Files that a run leaves in its folder for later commands: a damaged one is found when it is read.

A disk error, an editor or another version of flowdist may have left anything there. Each file is therefore checked
against the type of its content before a command uses it. Keys that the type does not name are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")
DAMAGED = (msgspec.MsgspecError, ValueError, RecursionError)  # what a decoder raises for damaged content

Seconds = Annotated[float, Meta(ge=0, le=1e10)]
Ns = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=-1)]
Replica = Annotated[str, Meta(pattern=r"^[^/]+/\d{1,9}$")]


class RoleSummary(TypedDict):
    """Content of `roles` in summary.json, for one role."""

    outcome: str | None
    restarts: Number
    charged: Number
    budget: Number | None
    generations: Number
    step: Number


class IncidentSummary(TypedDict):
    """Content of `incidents` in summary.json, for one incident."""

    number: Number
    t_s: Seconds
    reason: str
    restarted: list[Replica]
    stayed_in_place: NotRequired[list[Replica]]
    charged_to: str | None
    result: str
    took_s: Seconds | None
    steps_again_s: NotRequired[Seconds | None]


class SummaryEnd(TypedDict):
    """Content of summary.json that says how the job has ended."""

    outcome: Literal["succeeded", "failed", "cancelled"]
    reason: str
    lasted_s: Seconds


class Summary(SummaryEnd):
    """Content of summary.json, as far as commands use it."""

    roles: dict[str, RoleSummary]
    incidents: list[IncidentSummary]
    causes: dict[str, Number]
    root_cause: str
    goodput: Annotated[float, Meta(ge=0, le=1)] | None
    tasks: list[str]
    time_ns: dict[str, dict[str, Ns]]
    time_s: dict[str, dict[str, Seconds]]
    not_reported: NotRequired[dict[str, list[str]]]
    rates: NotRequired[list[str]]


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
    """Return the content of a JSON file as plain values; None if there is none, or not one of this type.

    Args:
        path: The file.
        type: The type of its content, for msgspec.
    """
    try:
        data = path.read_bytes()
        msgspec.json.decode(data, type=type)
        return json.loads(data)
    except (OSError, *DAMAGED):
        return None
