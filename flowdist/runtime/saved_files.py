"""Files that a run leaves in its folder for later commands: a damaged one is found when it is read.

A disk error, an editor or another version of flowdist may have left anything there. So a file is checked against the
type of its content, or it is sealed: it ends with a digest of itself, and one that was changed is not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from flowdist._version import __version__

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


def sealed(content: Mapping[str, Any]) -> str:
    """Return a JSON object as text of a file that only `read_sealed` of the same version of flowdist reads."""
    text = json.dumps(content, indent=2).removesuffix("\n}")
    return text + _seal(text)


def read_sealed(path: Path) -> Any:
    """Return the content of a file that was written as `sealed` says; None if there is none, or it was changed."""
    try:
        data = path.read_text()
        text = data.rpartition(",")[0]
        if data != text + _seal(text):
            return None
    except (OSError, *DAMAGED):
        return None
    return {key: value for key, value in json.loads(data).items() if key != "seal"}


def _seal(text: str) -> str:
    digest = sha256(f"{__version__}\n{text}".encode()).hexdigest()
    return f',\n  "seal": "{digest}"\n}}\n'
