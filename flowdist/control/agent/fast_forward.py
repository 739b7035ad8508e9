"""Heartbeats and steps of an agent that a simulator computes instead of playing: see `sim/workers/fast_forward.py`."""

from __future__ import annotations

from flowdist.control.agent import signs
from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.ids import ReplicaId


def take_heartbeat(agent: Agent, now: int) -> msg.Heartbeat | None:
    """Return the heartbeat that was due before `now` (ns), for the simulator to deliver; None if none was due.

    The heartbeat counts as sent at the time at which it was due, and the next one is planned from there.
    """
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
    """Return whether the agent would report each step of a replica without delay, so that reports may be skipped.

    An agent limits its reports, so that a step that comes too soon is reported later. The latest attempt has to run
    without anything pending, and the agent has to be connected. Reports are skipped up to `until` (ns). `gap_ns` is the
    time between two reports; None: the time from the last report to `until`.
    """
    attempt = agent.attempts.get(replica)
    if attempt is None or not agent.is_connected or not attempt.is_undisturbed:
        return False
    gap_ns = until - (attempt.reported_ns or 0) if gap_ns is None else gap_ns
    return signs.report_gap_ns(attempt, until, agent.graph.options.heartbeat_ns) <= gap_ns
