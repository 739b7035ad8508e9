"""Heartbeats and steps of an agent that a simulator computes instead of playing: see `sim/workers/fast_forward.py`."""

from __future__ import annotations

from flowdist.control.agent import signs
from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.ids import ReplicaId


def take_heartbeat(agent: Agent, now: int) -> msg.Heartbeat | None:
    """Return the heartbeat due before `now` (ns), as sent when due, for the simulator to deliver; None if none was."""
    due = agent.lease.beat_at_ns
    if due is None or due >= now:
        return None
    agent.lease.beat(due)
    return msg.Heartbeat(agent.spec.name, agent.incarnation, due, agent.lease.answered_ns)


def catch_up(agent: Agent, replica: ReplicaId, number: int, step: int, now: int) -> None:
    """Record that all workers of the replica's latest attempt have reached `step` just now; report nothing."""
    attempt = agent.attempts.get(replica)
    if attempt is not None and attempt.order.attempt == number:
        for local_rank in range(attempt.role.procs):
            attempt.note_step(local_rank, step, now)


def reports_at_once(agent: Agent, replica: ReplicaId, until: int, gap_ns: int | None = None) -> bool:
    """Return whether the agent would report each step of a replica at once up to `until`, so that these may be skipped.

    Its latest attempt has to run with nothing pending. `gap_ns` is between two reports; None: from the last to `until`.
    """
    attempt = agent.attempts.get(replica)
    if attempt is None or not agent.is_connected or not attempt.is_undisturbed:
        return False
    gap_ns = until - (attempt.reported_ns or 0) if gap_ns is None else gap_ns
    return signs.report_gap_ns(attempt, until, agent.graph.options.heartbeat_ns) <= gap_ns
