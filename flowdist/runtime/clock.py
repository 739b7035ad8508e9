"""The only clock of the runtime: CLOCK_BOOTTIME. It also counts while the machine sleeps, as a lease must (R19)."""

from __future__ import annotations

import time


def boot_ns() -> int:
    """Return the time since this machine was started, in ns. All of its processes read the same clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
