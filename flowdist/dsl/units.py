"""How people write times, sizes of memory and numbers of replicas: `1m30s`, `64GiB`, `2:4x2`."""

from __future__ import annotations

import re
from typing import NamedTuple

_DURATION_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
    "d": 86400 * 1_000_000_000,
}
_MEMORY = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_SIZE = re.compile(r"(?:(\d+):)?(\d+)(?:x(\d+))?")


class Sizes(NamedTuple):
    """Fewest and most replicas of a role; `procs` is None where the default applies."""

    low: int
    high: int
    procs: int | None


def parse_duration(value: str | int | float) -> int:
    """Nanoseconds of `30s`, `1m30s`, `400ms`; a bare number is seconds. ValueError for anything else."""
    if isinstance(value, bool):
        raise ValueError("not a duration")
    if isinstance(value, int | float):
        return round(value * 1_000_000_000)
    text = value.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return round(float(text) * 1_000_000_000)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("not a duration")
    return sum(_exact(number, _DURATION_NS[unit]) for number, unit in parts)


def _exact(number: str, unit: int) -> int:
    """Whole numbers are not sent through a float: 292 years of nanoseconds would lose their last digits."""
    return int(number) * unit if number.isdigit() else round(float(number) * unit)


def parse_memory(value: str | int) -> int:
    """Bytes of `64GiB`, `500MB`; a bare number is bytes. ValueError for anything else."""
    if isinstance(value, bool):
        raise ValueError("not a size of memory")
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip())
    units = {name.lower(): size for name, size in _MEMORY.items()} | {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    if match is None or match[2].lower() not in units:
        raise ValueError("not a size of memory")
    return _exact(match[1], units[match[2].lower()])


def parse_sizes(value: str | int) -> Sizes:
    """`[MIN:]MAX[xPROCS]`; a bare N always means N replicas. ValueError for anything else."""
    if isinstance(value, bool):
        raise ValueError("not a number of replicas")
    if isinstance(value, int):
        return Sizes(value, value, None)
    match = _SIZE.fullmatch(value.replace(" ", ""))
    if match is None:
        raise ValueError("not a number of replicas")
    high = int(match[2])
    return Sizes(int(match[1]) if match[1] else high, high, int(match[3]) if match[3] else None)
