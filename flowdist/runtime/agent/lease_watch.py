"""The guardian's watch over the lease of an agent that may stand still (R19); see `control.agent.lease`."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

from flowdist.control.agent.lease import LATE_NS
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.processes.process_states import letter_of
from flowdist.runtime.processes.reaper import descendants

LOOK_S = 0.1  # between two looks at a lease that is over
NO_LEASE_S = 1.0  # between two looks while the agent has none: it may have got one
_TIME = struct.Struct("q")


class LeasePage:
    """The time at which the agent has to kill its workers, in memory that the guardian shares with the agent."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _TIME.size)

    def write(self, fence_at_ns: int | None) -> None:
        """Write the time, on the clock `boot_ns`; None: the agent holds no lease, or is killing its workers."""
        _TIME.pack_into(self._page, 0, fence_at_ns or 0)

    def read(self) -> int | None:
        """Return the time that was written last; None if it was None."""
        (time_ns,) = _TIME.unpack_from(self._page)
        return time_ns or None


class LeaseWatch:
    """Decision whether the agent has missed the end of its lease while processes of its node were running.

    After a pause of the whole node, as when its machine was suspended, the agent has LATE_NS to find out. The guardian
    is an ancestor of all processes of the node.
    """

    def __init__(self, page: LeasePage, guardian: int, agent: int, now_ns: Callable[[], int] = boot_ns) -> None:
        self._page, self._guardian, self._agent, self._now_ns = page, guardian, agent, now_ns
        self._late_since_ns: int | None = None

    def seconds_until_look(self) -> float:
        """Return when `is_missed` has to be called next, in seconds from now."""
        fence_at = self._page.read()
        if fence_at is None:
            return NO_LEASE_S
        return max(LOOK_S, (fence_at + LATE_NS - self._now_ns()) / 1e9)

    def is_missed(self) -> bool:
        """Return whether the lease has been over for LATE_NS in which something ran that the agent had to kill."""
        fence_at, now = self._page.read(), self._now_ns()
        if fence_at is None or now < fence_at + LATE_NS or not self._something_runs():
            self._late_since_ns = None
        elif self._late_since_ns is None:
            self._late_since_ns = now
        return self._late_since_ns is not None and now - self._late_since_ns >= LATE_NS

    def _something_runs(self) -> bool:
        """Return whether any process of the node but the agent is not stopped."""
        pids = [pid for pid in descendants(self._guardian) if pid != self._agent]
        return any(letter_of(pid) not in ("T", "t", "Z", "X", "") for pid in pids)
