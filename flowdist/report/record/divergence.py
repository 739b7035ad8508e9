"""Where two records part: the first line that is not the same in both, and what each controller said there.

Headers are not compared line by line: a run has a name of its own. What differs between them is told beside, because
another graph or another seed is often the whole explanation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from flowdist.record.journal import FaultLine, Header, Line, Record, UnsavedLine, digest, encode_line
from flowdist.report.record.trace import event_lines

What = Literal["", "event", "fault", "unsaved", "time", "decision", "end"]
_WORDS: dict[What, str] = {
    "event": "something else happens",
    "fault": "a fault is carried out in one of them, or another fault",
    "unsaved": "a checkpoint is not saved in one of them, or another checkpoint",
    "time": "the same happens at another time",
    "decision": "the same happens, and something else is decided",
    "end": "one of them ends here",
}
TEXT_MAX = 240


class Side(NamedTuple):
    """One of the two records."""

    name: str
    header: Header
    lines: Sequence[Line]  # without the header
    is_kept: bool = True  # as a file of that name


class Divergence(NamedTuple):
    """`at` counts lines after the header, from 0; `what` is empty when nothing differs."""

    a: Side
    b: Side
    at: int
    what: What
    headers: list[str]  # what differs between the headers, in words

    @property
    def is_none(self) -> bool:
        return not self.what


def divergence(a: Side, b: Side, *, times: bool = True) -> Divergence:
    """The first difference of two records. Without `times` it is told what happened, not when."""
    headers = _differences(msgspec.to_builtins(a.header), msgspec.to_builtins(b.header))
    for at, (one, other) in enumerate(zip(a.lines, b.lines, strict=False)):
        what = _what(one, other, times)
        if what:
            return Divergence(a, b, at, what, headers)
    shorter = min(len(a.lines), len(b.lines))
    return Divergence(a, b, shorter, "" if len(a.lines) == len(b.lines) else "end", headers)


def _what(one: Line, other: Line, times: bool) -> What:
    if isinstance(one, Record) and isinstance(other, Record):
        if one.event != other.event:
            return "event"
        if times and one.t_ns != other.t_ns:
            return "time"
        return "decision" if one.effects != other.effects else ""
    if isinstance(one, FaultLine) and isinstance(other, FaultLine):
        if (one.spec, one.target) != (other.spec, other.target):
            return "fault"
        return "time" if times and one.t_ns != other.t_ns else ""
    if isinstance(one, UnsavedLine) and isinstance(other, UnsavedLine):
        if one.text != other.text:
            return "unsaved"
        return "time" if times and one.t_ns != other.t_ns else ""
    return "fault" if isinstance(one, FaultLine) or isinstance(other, FaultLine) else "unsaved"


def _differences(one: Any, other: Any, path: str = "") -> list[str]:
    """`graph.roles.trainer.restart.max_restarts: 3 / 4`: each value that is not the same, by its way there."""
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
    """What has a name goes by it, the rest by its place."""
    return [str(v.get("name", i)) if isinstance(v, dict) else str(i) for i, v in enumerate(values)]


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode() if not isinstance(value, str) else value or '""'
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def divergence_of(found: Divergence, context: int) -> dict[str, Any]:
    """All of it as plain values, for --json, with so many lines before and after."""
    return {
        "equal": found.is_none,
        "what": found.what,
        "same_lines": found.at,
        "headers": found.headers,
        "before": [_plain(line) for line in found.a.lines[max(0, found.at - context) : found.at]],
        "a": _side(found.a, found.at, context),
        "b": _side(found.b, found.at, context),
    }


def _side(side: Side, at: int, context: int) -> dict[str, Any]:
    encoded = [encode_line(line) for line in (side.header, *side.lines)]
    return {
        "name": side.name,
        "lines": len(side.lines),
        "digest": digest(encoded),
        "line": _plain(side.lines[at]) if at < len(side.lines) else None,
        "reason": reason_at(side, at),
        "after": [_plain(line) for line in side.lines[at + 1 : at + 1 + context]],
    }


def _plain(line: Line) -> Any:
    return msgspec.to_builtins(line)


def reason_at(side: Side, at: int) -> str:
    """What was said at that line, or where nothing was, what was said last before it."""
    for number in range(min(at, len(side.lines) - 1), -1, -1):
        line = side.lines[number]
        if isinstance(line, FaultLine):
            text = f"fault {line.spec} hits {line.target}"
            where = "the fault before it"
        elif isinstance(line, UnsavedLine):
            text, where = line.text, "what was not saved before it"
        else:
            text = line.reason if isinstance(line, Record) else ""
            where = f"event {line.n}" if isinstance(line, Record) else ""
        if text:
            return text if number == at else f"nothing here; the last, at {where}: {text}"
    return "nothing was said"


def divergence_text(found: Divergence, context: int) -> str:
    """For people: what was the same, where it parts, and the two sides one below the other."""
    a, b = found.a, found.b
    lines = []
    if found.headers:
        lines += [f"the headers differ ({a.name} / {b.name}):", *(f"  {text}" for text in found.headers), ""]
    if found.is_none:
        lines.append(f"the same: {len(a.lines)} lines")
        return "\n".join(lines) + "\n"
    lines += [f"the same for {found.at} lines, then {_WORDS[found.what]}", ""]
    for line in a.lines[max(0, found.at - context) : found.at]:
        lines += [f"   {text}" for text in event_lines(line)]
    for mark, side in (("A", a), ("B", b)):
        lines += ["", f"{mark}  {side.name}"]
        if found.at >= len(side.lines):
            lines.append(f" {mark} (it has no more lines)")
        for number, line in enumerate(side.lines[found.at : found.at + 1 + context]):
            lines += [f"{mark}{'>' if number == 0 else ' '} {text}" for text in event_lines(line)]
        lines.append(f"   reason: {reason_at(side, found.at)}")
    if found.what not in ("", "end"):
        lines += ["", "what differs (A / B):"]
        lines += [f"  {text}" for text in _differences(_plain(a.lines[found.at]), _plain(b.lines[found.at]))]
    if a.is_kept:
        step = max((line.n for line in a.lines[: found.at] if isinstance(line, Record)), default=0)
        lines += ["", f"the state before it: flowdist replay {a.name} --step {step}"]
    return "\n".join(lines) + "\n"
