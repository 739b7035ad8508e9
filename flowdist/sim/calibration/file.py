"""The file workload.toml: a calibration as people read it, edit it, and give it to the simulator.

The tables `[roles.NAME]` have the words of `Workload(...)`; each may be left out. `[job]` has what belongs to no role.
The tables `[measured...]` are for people: the simulator does not read them. The whole file is checked when it is read,
and all problems are reported at once, each with its line.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.errors import FlowdistError, did_you_mean
from flowdist.graph import MS, format_duration, parse_duration
from flowdist.sim.calibration.calibration import Calibration
from flowdist.sim.calibration.fit import Distribution, RoleTimes, rounded
from flowdist.text.toml_keys import span_of, spans_of_keys

FORMAT = 1
HELP = "flowdist calibrate RUN -o workload.toml writes such a file"


class _Wrong(Exception):
    """A value cannot be used; the text says what belongs there."""


def _duration(value: object) -> int:
    try:
        ns = parse_duration(value) if isinstance(value, str) else -1
    except ValueError:
        ns = -1
    if ns < 0:
        raise _Wrong('write a duration, such as "1.5s"')
    return ns


def _positive_duration(value: object) -> int:
    if (ns := _duration(value)) == 0:
        raise _Wrong('write a duration above 0, such as "50ms"')
    return ns


def _steps(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**53:
        raise _Wrong("write a whole number from 1 on")
    return value


def _share(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise _Wrong("write a number from 0 to 1")
    return float(value)


def _names(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _Wrong('write a list of roles, such as ["evaluator"]')
    return value


def _step_time(value: object) -> dict[str, Any]:
    """Return the fields of a step time: one duration, or a table of durations by the number of workers."""
    if not isinstance(value, dict):
        return {"step_ns": _positive_duration(value), "step_times": (), "batch_workers": 0}
    if not value or not all(key.isdecimal() and 0 < int(key) < 2**31 for key in value):
        raise _Wrong('write durations by the number of workers, such as { 2 = "80ms", 4 = "50ms" }')
    times = tuple(sorted((int(key), _positive_duration(ns)) for key, ns in value.items()))
    return {"step_ns": times[-1][1], "step_times": times, "batch_workers": 0}


class _Key(NamedTuple):
    """One key of `[roles.NAME]`: the field of the workload, and the reader of its value."""

    field: str
    read: Callable[[object], object]


KEYS = {
    "steps": _Key("steps", _steps),
    "step_time": _Key("step_ns", _step_time),
    "startup": _Key("startup_ns", _duration),
    "startup_spread": _Key("startup_spread", _share),
    "warm_startup": _Key("warm_startup_ns", _duration),
    "import_time": _Key("import_ns", _duration),
    "warmup": _Key("warmup_ns", _duration),
    "restore_time": _Key("restore_ns", _duration),
    "rejoin_time": _Key("rejoin_ns", _duration),
    "checkpoint_every": _Key("checkpoint_every_ns", _positive_duration),
    "checkpoint_time": _Key("checkpoint_ns", _duration),
    "checkpoint_blocks": _Key("checkpoint_blocks_ns", _duration),
    "finish_time": _Key("finish_ns", _duration),
    "stop_time": _Key("stop_ns", _duration),
}
WORDS = {key.field: word for word, key in KEYS.items()}
JOB = ("arrival", "unreported")  # keys of [job]
TABLES = ("format", "runs", "job", "roles", "measured", "unknown")


def calibration_text(calibration: Calibration, runs: Sequence[str]) -> str:
    """Return the content of workload.toml for a calibration. `runs` are the names of the records that it is from."""
    lines = [
        "# Times of the workers, measured in recorded runs: flowdist simulate topology.py --workload workload.toml"
    ]
    lines += [f"format = {FORMAT}", f"runs = [{', '.join(map(_quoted, runs))}]"]
    job = []
    if calibration.arrival_ns is not None:
        job.append(f"arrival = {_quoted(_text(rounded(calibration.arrival_ns)))}")
    if calibration.unreported:
        job.append(f"unreported = [{', '.join(map(_quoted, calibration.unreported))}]")
    lines += ["", "[job]", *job] if job else []
    for name, times in calibration.roles.items():
        lines += ["", f"[roles.{_quoted(name)}]"]
        for field, word in WORDS.items():
            value = times.fields.get(field)
            if value is not None:
                lines.append(f"{word} = {_value_text(field, value, times.fields.get('step_times', ()))}")
    for name, found in (
        ("job", calibration.job),
        *((name, times.measured) for name, times in calibration.roles.items()),
    ):
        lines += ["", f"[measured.{_quoted(name)}]"] if found else []
        lines += [f"{_quoted(what)} = {_row(each)}" for what, each in found.items()]
    unknown = {name: [*times.silent, *times.unknown] for name, times in calibration.roles.items()}
    lines += ["", "[unknown]"] if any(unknown.values()) else []
    lines += [f"{_quoted(name)} = [{', '.join(map(_quoted, texts))}]" for name, texts in unknown.items() if texts]
    return "\n".join(lines) + "\n"


def _value_text(field: str, value: Any, step_times: Sequence[tuple[int, int]]) -> str:
    if field == "step_ns" and step_times:
        return "{ " + ", ".join(f"{size} = {_quoted(_text(ns))}" for size, ns in step_times) + " }"
    return _quoted(_text(value)) if field.endswith("_ns") else str(value)


def _row(found: Distribution) -> str:
    parts = zip(("least", "p10", "median", "p90", "most", "mean", "used"), found[1:], strict=True)
    return (
        "{ "
        + ", ".join([f"times = {found.times}", *(f"{k} = {_quoted(_text(rounded(ns)))}" for k, ns in parts)])
        + " }"
    )


def _text(ns: int) -> str:
    """Return a duration in ns as text that is read as exactly that duration."""
    text = format_duration(ns)
    return text if parse_duration(text) == ns else f"{ns / MS:.6f}".rstrip("0").rstrip(".") + "ms"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML has the escapes of JSON


def read_calibration(path: Path) -> Calibration:
    """Read and check a workload.toml; FlowdistError with all of its problems, each with its line."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise FlowdistError(f"{path} cannot be read: {error.strerror}", help=HELP) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FlowdistError(f"{path}: {error}", help=HELP) from None
    reader = _Reader(content)
    found = reader.read()
    if reader.problems:
        spans = spans_of_keys(text)
        lines = [f"{path}:{span_of(spans, keys).line}: {problem}" for keys, problem in reader.problems]
        raise FlowdistError("\n".join(lines), help="correct the file, or write it anew with flowdist calibrate")
    return found


class _Reader:
    """Check of the content of one file; `problems` are the keys and the text of each."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self.problems: list[tuple[tuple[str, ...], str]] = []

    def read(self) -> Calibration:
        """Return the calibration; of a file with problems, what is left of it."""
        for key in self._content:
            if key not in TABLES:
                self.problems.append(((key,), f"unknown key {key!r}; {did_you_mean(key, TABLES)}"))
        if self._content.get("format", FORMAT) != FORMAT:
            text = f"format = {self._content['format']!r}: this version of flowdist reads format {FORMAT}"
            self.problems.append((("format",), text))
        job = self._table("job")
        arrival = self._value(("job", "arrival"), job["arrival"], _duration) if "arrival" in job else None
        silent = self._value(("job", "unreported"), job.get("unreported", []), _names) or ()
        for key in job:
            if key not in JOB:
                self.problems.append((("job", key), f"unknown key {key!r}; {did_you_mean(key, JOB)}"))
        tables = self._table("roles").items()
        roles = {name: RoleTimes(self._role(name, table), reports_steps=name not in silent) for name, table in tables}
        return Calibration(roles, arrival_ns=arrival)

    def _table(self, name: str) -> dict[str, Any]:
        table = self._content.get(name, {})
        if isinstance(table, dict):
            return table
        self.problems.append(((name,), f"{name} is {table!r}; write a table, [{name}]"))
        return {}

    def _role(self, name: str, table: object) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if not isinstance(table, dict):
            self.problems.append((("roles", name), f"{name} is {table!r}; write a table, [roles.{name}]"))
            return fields
        for word, value in table.items():
            if word not in KEYS:
                text = f"{name} has no {word!r}; {did_you_mean(word, list(KEYS))}"
                self.problems.append((("roles", name, word), text))
            else:
                read = self._value(("roles", name, word), value, KEYS[word].read)
                if read is not None:
                    fields |= read if isinstance(read, dict) else {KEYS[word].field: read}
        self._check_checkpoints(name, fields)
        return fields

    def _value(self, keys: tuple[str, ...], value: object, read: Callable[[object], Any]) -> Any:
        try:
            return read(value)
        except _Wrong as wrong:
            self.problems.append((keys, f"{'.'.join(keys[-2:])} = {_quoted(str(value))} cannot be used; {wrong}"))
            return None

    def _check_checkpoints(self, name: str, fields: dict[str, Any]) -> None:
        """Check that a checkpoint does not block for longer than it takes, and is complete before the next begins."""
        takes, blocks = fields.get("checkpoint_ns"), fields.get("checkpoint_blocks_ns")
        every = fields.get("checkpoint_every_ns")
        if takes is None:
            if blocks is not None:
                text = f"{name} has checkpoint_blocks without checkpoint_time, the time of a whole checkpoint; add it"
                self.problems.append((("roles", name, "checkpoint_blocks"), text))
            return
        if blocks is None:
            fields["checkpoint_blocks_ns"] = None  # not that of the topology
        elif blocks > takes:
            text = f"{name}: a checkpoint blocks for {_text(blocks)}, longer than checkpoint_time = {_text(takes)}"
            self.problems.append((("roles", name, "checkpoint_blocks"), text))
        elif every is not None and takes - blocks > every:
            text = f"{name}: the next checkpoint begins {_text(every)} after one has blocked, but that one is complete"
            text += f" only after {_text(takes - blocks)}"
            self.problems.append((("roles", name, "checkpoint_every"), text))
