"""Difference of two records: the first line that is not the same in both, and the decision of each controller there.

Headers differ in the name of the run, so their differences are listed apart: a graph or a seed often explains all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import to_builtins

from flowdist.control.protocol.events import ControllerStarted
from flowdist.record.journal import AccountLine, FaultLine, Header, Line, Record, UnsavedLine, digest, encode_line
from flowdist.record.reader import WholeRecord
from flowdist.report.record.trace import event_lines
from flowdist.text.printable import joined

What = Literal["", "event", "fault", "unsaved", "account", "time", "decision", "end"]
_WORDS: dict[What, str] = {
    "event": "something else happens",
    "fault": "one of them has another fault, or none",
    "unsaved": "one of them has another checkpoint that is not saved, or none",
    "account": "their time went elsewhere",
    "time": "the same happens at another time",
    "decision": "the same happens, and the decision differs",
    "end": "one of them ends here",
}
TEXT_MAX = 240


class Divergence(NamedTuple):
    """Result of comparing the records `a` and `b`."""

    a: WholeRecord
    b: WholeRecord
    at: int  # the index of the first line that differs, without the header; the number of lines if none does
    what: What  # the kind of the difference; empty for none
    headers: list[str]  # the differences of the headers, in words

    @property
    def is_none(self) -> bool:
        """Return whether all lines of the two records are the same; their headers may differ."""
        return not self.what


def divergence(a: WholeRecord, b: WholeRecord, *, times: bool = True) -> Divergence:
    """Compare two records, and return the first difference of their lines, and all differences of their headers.

    With `times`, the same event at another time counts as a difference.
    """
    one, other = (msgspec.structs.replace(side.header, began_at="") for side in (a, b))  # no two runs have the same
    headers = _differences(to_builtins(one), to_builtins(other))
    for at, lines in enumerate(zip(a.lines, b.lines, strict=False)):
        if what := _what(*lines, times):
            return Divergence(a, b, at, what, headers)
    shorter = min(len(a.lines), len(b.lines))
    return Divergence(a, b, shorter, "" if len(a.lines) == len(b.lines) else "end", headers)


def _what(one: Line, other: Line, times: bool) -> What:
    """Return the kind of the difference between two lines at the same place; empty if they are the same."""
    (kind, content), (other_kind, other_content) = _content(one), _content(other)
    if "account" in (kind, other_kind):
        return "end" if kind != other_kind else "account" if times and one != other else ""
    if kind != other_kind:
        return "fault" if "fault" in (kind, other_kind) else "unsaved"
    if content != other_content:
        return kind
    if times and _time(one) != _time(other):
        return "time"
    is_decision = isinstance(one, Record) and isinstance(other, Record) and one.effects != other.effects
    return "decision" if is_decision else ""


def _content(line: Line) -> tuple[What, Any]:
    """Return the kind of a line, and what has to be the same in both records."""
    match line:
        case Record(event=ControllerStarted(epoch=epoch)):
            return "event", ControllerStarted(epoch)  # whatever the wall clock showed
        case Record():
            return "event", line.event
        case FaultLine():
            return "fault", (line.spec, line.target)
        case UnsavedLine():
            return "unsaved", line.text
        case Header() | AccountLine():
            return "account" if isinstance(line, AccountLine) else "", None


def _time(line: Line) -> int:
    """Return the time of a line in nanoseconds; 0 for the header."""
    return 0 if isinstance(line, Header) else line.t_ns


def _differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Return each differing value with its path and both values: `graph.roles.trainer.restart.max_restarts: 3 / 4`."""
    if one == other:
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        return [text for key in keys for text in _differences(one.get(key), other.get(key), f"{path}.{key}".strip("."))]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = zip(_labels(one), one, other, strict=True)
        return [text for label, x, y in pairs for text in _differences(x, y, f"{path}.{label}")]
    return [f"{path}: {_short(one)} / {_short(other)}"]


def _labels(values: Sequence[Any]) -> list[str]:
    """Return a label for each value: its name if it has one, else its index."""
    return [str(v.get("name", i)) if isinstance(v, dict) else str(i) for i, v in enumerate(values)]


def _short(value: Any) -> str:
    """Return a value as JSON, strings without quotes, cut to `TEXT_MAX` characters."""
    text = msgspec.json.encode(value).decode() if not isinstance(value, str) else value or '""'
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def divergence_of(found: Divergence, context: int) -> dict[str, Any]:
    """Return the result of a comparison as plain values, for --json."""
    return {
        "equal": found.is_none,
        "what": found.what,
        "same_lines": found.at,
        "headers": found.headers,
        "before": [to_builtins(line) for line in found.a.lines[max(0, found.at - context) : found.at]],
        "a": _side(found.a, found.at, context),
        "b": _side(found.b, found.at, context),
    }


def _side(side: WholeRecord, at: int, context: int) -> dict[str, Any]:
    """Return one record's part of the result: the line at the index `at`, its reason and the lines after it."""
    encoded = [encode_line(line) for line in (side.header, *side.lines)]
    return {
        "name": side.name,
        "lines": len(side.lines),
        "digest": digest(encoded),
        "line": to_builtins(side.lines[at]) if at < len(side.lines) else None,
        "reason": reason_at(side, at),
        "after": [to_builtins(line) for line in side.lines[at + 1 : at + 1 + context]],
    }


def reason_at(side: WholeRecord, at: int) -> str:
    """Return why a record has the line at the index `at`: the controller's reason, or the fault or unsaved checkpoint.

    If that line says nothing, the result is the last text before it, introduced as such.
    """
    for number in range(min(at, len(side.lines) - 1), -1, -1):
        line = side.lines[number]
        text = where = ""
        if isinstance(line, FaultLine):
            text, where = f"fault {line.spec} hits {line.target}", "the fault before it"
        elif isinstance(line, UnsavedLine):
            text, where = line.text, "the checkpoint that was not saved before it"
        elif isinstance(line, Record):
            text, where = line.reason, f"event {line.n}"
        if text:
            return text if number == at else f"nothing here; the last one, at {where}: {text}"
    return "no decision so far"


def divergence_text(found: Divergence, context: int, *, is_kept: bool = True) -> str:
    """Return the result for people: what is the same, and both sides where they differ, with `context` lines around.

    `is_kept` says whether there is a file of the name of the first record.
    """
    a, b = found.a, found.b
    lines = []
    if found.headers:
        lines += [f"the headers differ ({a.name} / {b.name}):", *(f"  {text}" for text in found.headers), ""]
    if found.is_none:
        lines.append(f"the same: {len(a.lines)} lines")
        return joined(lines)
    lines += [f"the same for {found.at} lines, then {_WORDS[found.what]}", ""]
    for line in a.lines[max(0, found.at - context) : found.at]:
        lines += [f"   {text}" for text in event_lines(line)]
    for mark, side in (("A", a), ("B", b)):
        lines += ["", f"{mark}  {side.name}"]
        if found.at >= len(side.lines):
            lines.append(f" {mark} (no more lines)")
        for number, line in enumerate(side.lines[found.at : found.at + 1 + context]):
            lines += [f"{mark}{'>' if number == 0 else ' '} {text}" for text in event_lines(line)]
        lines.append(f"   reason: {reason_at(side, found.at)}")
    if found.what not in ("", "end"):
        lines += ["", "what differs (A / B):"]
        lines += [f"  {text}" for text in _differences(to_builtins(a.lines[found.at]), to_builtins(b.lines[found.at]))]
    if is_kept:
        step = max((line.n for line in a.lines[: found.at] if isinstance(line, Record)), default=0)
        lines += ["", f"the state before that: flowdist replay {a.name} --step {step}"]
    return joined(lines)
