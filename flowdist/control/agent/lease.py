"""The lease of an agent: how long it may run workers without an answer from the controller (R19, R21).

A controller cannot tell a dead node from one whose link is cut. To replace the workers of a silent node it has to know
that the old ones do not run any more, and it cannot ask. A lease solves that without a message: the agent promises to
kill its workers (to *fence*) once it has gone without an answer for so long, and the controller waits for longer.

The two clocks need not agree, so neither side ever compares times of both. Each counts an interval of its own:

    time    agent                                   link    controller
    0.0 s   sends beat 1                            ok
    0.2 s                                                   hears beat 1, answers
    0.4 s   hears the answer: holds the lease
            up to beat 1 + lease - margin = 3.0 s
    0.5 s   sends beat 2, and so on                 cut     hears nothing more
    1.95 s                                                  beat 1 arrived 1.75 s ago: the node is suspected
    3.0 s   fences: SIGKILL to every worker
    5.2 s                                                   arrival + lease + margin: the node is lost (silent),
                                                            its replicas may start elsewhere

The agent counts from the *sending* of the last heartbeat that was acknowledged. The controller counts from its
*arrival* (see `connection.failure_detector`). A message arrives after it was sent, so the agent starts to count first,
counts for less time, and has fenced whenever the controller calls the node silent, however slow the network is. If the
agent counted from the arrival of the answer instead, a slow answer would extend the lease by the time it took.

A heartbeat carries the time of its sending on the agent's own clock, and the answer returns it. An answer to an old
heartbeat therefore never extends the lease by more than it should.

Why these defaults (`graph.JobOptions`):

    heartbeat_ns          0.5 s   Eight heartbeats fit into a lease: a lost packet or a short pause costs nothing.
    lease_ns              4 s     Shorter leases fence healthy nodes when a host is overloaded; longer ones let the job
                                  stand still for longer after a node has died without proof.
    lease_margin_ns       1 s     Taken off on the agent's side and added on the controller's. These two seconds are
                                  for SIGKILL to take effect, and for an agent that runs late or has a slow clock.
    controller_outage_ns  10 min  How long workers are kept while a controller restarts; see below.

**When the controller itself is gone.** An agent whose connection is refused on its own host has proof of a different
kind: the host is up and nothing listens, so no controller runs that could replace anything. Each refusal then extends
the lease by its length, up to `controller_outage_ns` less the margin after the first. A new controller knows of this,
and places nothing that ran on such a node before the outage is over or the agent has joined (`Sessions.take_over`). A
refusal over a network proves nothing: a firewall, or a host that has just booted, refuses for a controller that lives.

**When the agent itself stands still**, stopped by a signal or blocked in the kernel, it cannot fence. Its guardian
watches the lease in its place. The agent writes the time of its fence into memory that both share. Once that time is
LATE_NS (0.5 s) past, and anything but the agent has then run for as long, the guardian kills the whole node: 1 s after
the fence was due, and 1 s before the controller calls the node silent. An agent that merely runs late keeps its node. A
node that stood still as a whole ran nothing: when it goes on, its agent has LATE_NS to find out.

The clock has to run on while a host is suspended (CLOCK_BOOTTIME). A process that was paused handles overdue deadlines
before any queued message, so a late answer cannot save a lease that is over.
"""

from __future__ import annotations

from flowdist.graph import MS, JobOptions

LATE_NS = 500 * MS  # for an agent that runs late to fence; its guardian grants it twice


class Lease:
    """Lease of one agent. Times are on the agent's own clock, in ns."""

    def __init__(self, options: JobOptions) -> None:
        self._options, self._lasts_ns = options, options.lease_ns - options.lease_margin_ns
        self.acked_ns: int | None = None  # when the last acknowledged heartbeat was sent; None: no lease
        self.answered_ns = 0  # when the controller gave the last answer that has arrived, on its clock; 0: none
        self.beat_at_ns: int | None = None  # when the next heartbeat is due
        self.outage_since_ns: int | None = None  # since when connections on this host are refused
        self.refused_ns: int | None = None  # the last refusal

    def acked(self, sent_ns: int, answered_ns: int = 0) -> None:
        """Renew the lease: the controller has acknowledged the heartbeat of `sent_ns`. An outage of it is over.

        `answered_ns` is the time of the answer on the controller's clock, which the next heartbeat returns.
        """
        self.answered_ns = max(self.answered_ns, answered_ns)
        if self.acked_ns is None or sent_ns > self.acked_ns:
            self.acked_ns = sent_ns
        self.outage_since_ns = self.refused_ns = None

    def refused(self, now: int, is_local: bool = True) -> None:
        """Extend the lease after a refusal on this host (`is_local`): elsewhere it does not prove an outage."""
        if not is_local:
            return
        if self.outage_since_ns is None:
            self.outage_since_ns = now
        self.refused_ns = now

    def drop(self) -> None:
        """Give up the lease, after fencing: no heartbeat and no fence is due until the agent joins again."""
        self.acked_ns = self.beat_at_ns = self.outage_since_ns = self.refused_ns = None

    def beat(self, now: int) -> None:
        """Record that a heartbeat or a join is sent at the time `now`, and set the time of the next heartbeat."""
        self.beat_at_ns = now + self._options.heartbeat_ns

    def fence_at(self) -> int | None:
        """Return when (ns) every worker has to be killed; None if the agent holds no lease.

        During an outage each refusal extends the time by a lease, up to `controller_outage_ns` less the margin.
        """
        if self.acked_ns is None:
            return None
        fence_at = self.acked_ns + self._lasts_ns
        if self.outage_since_ns is None or self.refused_ns is None:
            return fence_at
        outage_ns = self._options.controller_outage_ns - self._options.lease_margin_ns
        return min(max(fence_at, self.refused_ns + self._lasts_ns), self.outage_since_ns + outage_ns)

    def renew(self, now: int, round_trip_ns: int) -> int | None:
        """Renew the lease as if each heartbeat that could be sent and answered by `now` had been, for a simulator.

        Answers come in the middle of `round_trip_ns`. Return when the last was sent; None if there was none.
        """
        beat, period = self.beat_at_ns, self._options.heartbeat_ns
        if beat is None or beat + round_trip_ns > now:
            return None
        last = beat + (now - round_trip_ns - beat) // period * period
        self.acked(last, last + round_trip_ns // 2)
        self.beat_at_ns = last + period
        return last
