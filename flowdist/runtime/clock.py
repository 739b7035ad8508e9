"""The only clock of the runtime: CLOCK_BOOTTIME. It also counts while the machine sleeps, as a lease must (R19).

For people, a moment of it can be shown by the wall clock, by which nothing is decided.
"""

from __future__ import annotations

import time
from datetime import datetime


def boot_ns() -> int:
    """Return the time since this machine was started, in ns. All of its processes read the same clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def wall_clock(at_ns: int) -> str:
    """Return what the wall clock showed at a moment of `boot_ns`, with the offset of this host's time zone."""
    seconds = (time.time_ns() - boot_ns() + at_ns) / 1e9
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")
