"""Heartbeats of a simulated node that are computed: taken as sent and answered, with no entry of the queue for each."""

from __future__ import annotations

from flowdist.control.agent.agent import Agent
from flowdist.control.agent.fast_forward import take_heartbeat
from flowdist.control.protocol.messages import Acked, Heartbeat
from flowdist.sim.engine.network import LATENCY_NS

ROUND_TRIP_NS = 2 * LATENCY_NS


class ComputedHeartbeats:
    """The heartbeats of one agent that were not played, up to the last one.

    Args:
        agent: The agent, whose lease they renew.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._sent_ns: int | None = None  # when the last one was sent
        self._is_untold = False  # the controller does not know of the last one yet

    def renew(self, now: int) -> Heartbeat | None:
        """Renew the lease as if each heartbeat that could be sent and answered before `now` (ns) had been.

        Returns:
            The heartbeat that was due before `now`, but cannot have been answered by then; None if there is none. The
            caller puts it on its way if `is_on_its_way`, and `answer_to` it otherwise.
        """
        sent_ns = self._agent.lease.renew(now - 1, ROUND_TRIP_NS)
        if sent_ns is not None:
            self._note(sent_ns)
        return take_heartbeat(self._agent, now)

    def is_on_its_way(self, beat: Heartbeat, now: int) -> bool:
        """Return whether a heartbeat, which was due a moment ago, arrives at `now` or later.

        If it were sent now it, and all messages after it, would arrive later than where every heartbeat is played.
        """
        return beat.sent_ns + LATENCY_NS >= now

    def answer_to(self, beat: Heartbeat) -> Acked:
        """Return the controller's answer to a heartbeat that has arrived already, and note that it was sent."""
        self._note(beat.sent_ns)
        return Acked(self._agent.epoch, beat.incarnation, beat.sent_ns, beat.sent_ns + LATENCY_NS)

    def _note(self, sent_ns: int) -> None:
        self._sent_ns, self._is_untold = sent_ns, True

    def take_heard(self) -> int | None:
        """Return when (ns) the controller has heard the last heartbeat; None if it has been told of that one before."""
        if not self._is_untold or self._sent_ns is None:
            return None
        self._is_untold = False
        return self._sent_ns + LATENCY_NS
