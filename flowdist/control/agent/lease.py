"""The lease of an agent: how long it may go unheard before it has to stop what it runs (R19, R21).

It counts from the sending of the last heartbeat that was acknowledged: the controller heard it later than that, and
waits longer. Where nobody listens on this very host, the controller is being restarted: workers are kept for longer.
"""

from __future__ import annotations

from flowdist.graph import JobOptions


class Lease:
    """Times are the agent's own clock, in integer nanoseconds."""

    def __init__(self, options: JobOptions) -> None:
        self._options, self._lasts_ns = options, options.lease_ns - options.lease_margin_ns
        self.acked_ns: int | None = None  # when the heartbeat was sent that was acknowledged last
        self.beat_at_ns: int | None = None  # when the next one is due
        self.outage_since_ns: int | None = None  # nobody listens on this host
        self.refused_ns: int | None = None  # when that was seen last

    def acked(self, sent_ns: int) -> None:
        if self.acked_ns is None or sent_ns > self.acked_ns:
            self.acked_ns = sent_ns
        self.outage_since_ns = self.refused_ns = None

    def refused(self, now: int, is_local: bool = True) -> None:
        """Nobody listens; over a network that proves nothing, and is silence as any other."""
        if not is_local:
            return
        if self.outage_since_ns is None:
            self.outage_since_ns = now
        self.refused_ns = now

    def drop(self) -> None:
        """The agent has fenced: it holds no lease until it has joined anew."""
        self.acked_ns = self.beat_at_ns = self.outage_since_ns = self.refused_ns = None

    def beat(self, now: int) -> None:
        """A heartbeat, or a join, is being sent."""
        self.beat_at_ns = now + self._options.heartbeat_ns

    def fence_at(self) -> int | None:
        """When everything has to be stopped; None without a lease."""
        if self.acked_ns is None:
            return None
        fence_at = self.acked_ns + self._lasts_ns
        if self.outage_since_ns is None or self.refused_ns is None:
            return fence_at
        outage_ns = self._options.controller_outage_ns - self._options.lease_margin_ns
        return min(max(fence_at, self.refused_ns + self._lasts_ns), self.outage_since_ns + outage_ns)

    def renew(self, now: int, round_trip_ns: int) -> int | None:
        """As if every heartbeat that could be sent and answered by now had been. Returns when the last was sent."""
        beat, period = self.beat_at_ns, self._options.heartbeat_ns
        if beat is None or beat + round_trip_ns > now:
            return None
        last = beat + (now - round_trip_ns - beat) // period * period
        self.acked(last)
        self.beat_at_ns = last + period
        return last
