"""The one clock of the runtime: CLOCK_BOOTTIME goes on while the machine sleeps, so that a lease does too (R19)."""

from __future__ import annotations

import time


def boot_ns() -> int:
    """Nanoseconds since the machine was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
