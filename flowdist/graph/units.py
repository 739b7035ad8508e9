"""Time is integer nanoseconds and memory integer bytes everywhere inside; people read and write units."""

from __future__ import annotations

MS = 1_000_000
SECOND = 1_000 * MS
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def format_duration(ns: int) -> str:
    """The shortest exact spelling that people use: `90s` is `1m30s`, a fraction of a second has at most 3 digits."""
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
    """Bytes as `64GiB`; a size that is no whole number of a unit keeps one decimal."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + name
    return f"{size}B"
