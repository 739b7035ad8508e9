"""Units: time is counted in integer nanoseconds, memory in integer bytes; users read and write `30s` and `64GiB`.

The decoder checks the ranges of these types; in Python the DSL does, with words for its users.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

COUNT_MAX = 100_000  # of nodes, replicas of a role, workers of a replica: a larger number is taken for a typing error
GPUS_MAX = 256  # of one node
PORTS_MAX = 64  # that the replicas on one node may have together
HOSTS_MAX = 4096  # that may join a job
NUMBER_MAX = (1 << 63) - 1  # of nanoseconds (292 years), bytes and steps: 64 bits with a sign

Ns = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]  # a duration; it may be zero
PositiveNs = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
LookNs = Annotated[int, Meta(ge=1_000_000, le=NUMBER_MAX)]  # after which an agent looks: every ns would be too often
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
PositiveCount = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
GpuCount = Annotated[int, Meta(ge=0, le=GPUS_MAX)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Cpus = Annotated[float, Meta(ge=0, le=float(NUMBER_MAX))]
Endpoint4 = Annotated[str, Meta(pattern=r"^(\d{1,3}(\.\d{1,3}){3}:\d{1,5})?$")]  # `127.0.0.1:29500`, or empty

MS = 1_000_000
SECOND = 1_000 * MS
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def format_duration(ns: int) -> str:
    """Return a duration in ns as text, such as `1m30s`; seconds and milliseconds have at most 3 decimal places."""
    if ns < 0:
        return "-" + format_duration(-ns)
    if ns < SECOND:
        return f"{ns / MS:.3f}".rstrip("0").rstrip(".") + "ms" if ns else "0s"
    parts = []
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if ns >= unit:
            parts.append(f"{ns // unit}{name}")
            ns %= unit
    if ns:
        parts.append(f"{ns / SECOND:.3f}".rstrip("0").rstrip(".") + "s")
    return "".join(parts)


def format_memory(size: int) -> str:
    """Return a size in bytes as text, such as `64GiB` or `1.5MiB`; it is rounded to one decimal place."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + name
    return f"{size}B"


_DURATION_NS = {"ns": 1, "us": 1_000, "ms": MS, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_MEMORY = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_MEMORY |= {
    unit: size
    for letter, size in {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}.items()
    for unit in (letter, f"{letter}i", f"{letter}ib")
}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class NoUnitError(ValueError):
    """Error for a duration or a size of memory that is a number without a unit: `10000` may be seconds or ms."""


def parse_duration(value: str | int | float) -> int:
    """Return the ns of a text such as `30s`, `1m30s` or `400ms` (ns, us, ms, s, m, h, d); 0 needs no unit.

    NoUnitError for another number without a unit, ValueError for others and for more than 292 years (64 bits).
    """
    text = _written(value)
    if text == "0":
        return 0
    parts = re.findall(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("not a duration")
    return _whole(sum(_exact(number, _DURATION_NS[unit]) for number, unit in parts))


_UNIT_WORDS = {
    word: unit
    for unit, words in {
        "us": "us usec usecs microsecond microseconds",
        "ms": "ms msec msecs millisecond milliseconds",
        "s": "s sec secs second seconds",
        "m": "m min mins minute minutes",
        "h": "h hr hrs hour hours",
        "d": "d day days",
    }.items()
    for word in words.split()
}


def duration_help(value: object, otherwise: str = "write 30s, 1m30s or 2h") -> str:
    """Return the help for a value that `parse_duration` refuses, with the units for `10sec` or `5 minutes`."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", value.lower()) if isinstance(value, str) else []
    units = [_UNIT_WORDS.get(word, "") for _, word in parts]
    is_whole = isinstance(value, str) and "".join(map("".join, parts)) == re.sub(r"\s", "", value.lower())
    if not parts or not all(units) or not is_whole:
        return otherwise
    meant = "".join(number + unit for (number, _), unit in zip(parts, units, strict=True))
    try:
        parse_duration(meant)
    except ValueError:
        return "the longest duration is 292 years"
    distinct = list(dict.fromkeys(units))
    are = f"the units are {', '.join(distinct)}" if len(distinct) > 1 else f"the unit is {distinct[0]}"
    return f"{are}: write {meant}"


def _written(value: str | int | float) -> str:
    """Return the text of a value, "0" for each way to write zero; raise NoUnitError for another number alone."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("neither a text nor a number")
    if isinstance(value, str):
        text = value.strip()
        is_zero = _NUMBER.fullmatch(text) is not None and not text.strip("0.")
        if _NUMBER.fullmatch(text) and not is_zero:
            raise NoUnitError("a number without a unit")
        return "0" if is_zero else text
    if value:
        raise NoUnitError("a number without a unit")
    return "0"


def _exact(number: str, unit: int) -> int | float:
    """Return the product of a number and its unit; whole numbers stay integers: a float would lose digits."""
    return float(number) * unit if "." in number else int(number) * unit


def _whole(value: int | float) -> int:
    """Return the value rounded to an integer; raise ValueError if 64 bits with a sign cannot hold it."""
    if not abs(value) < 1 << 63:
        raise ValueError("too large")
    return round(value)


def parse_memory(value: str | int) -> int:
    """Return the bytes of a text such as `64GiB` (of 1024; also `64Gi`, `64G`) or `500MB` (of 1000); 0 needs no unit.

    NoUnitError for another number without a unit, ValueError for anything else and for 8 EiB and more.
    """
    text = _written(value)
    if text == "0":
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text)
    if match is None or match[2].lower() not in _MEMORY:
        raise ValueError("not a size of memory")
    return _whole(_exact(match[1], _MEMORY[match[2].lower()]))
