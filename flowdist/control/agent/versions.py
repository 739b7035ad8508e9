"""Versions that the workers of an attempt publish and acknowledge (R23), and when their agent reports them.

The functions record in the attempt what a worker has said. The argument `report` sends an event to the controller.
Times are on the agent's own clock, in ns. The first version is reported at once, because a replica may be ready with
it. Later ones follow at most once in a heartbeat, the newest of them alone: a role that publishes a thousand versions a
second needs no thousand lines in the journal.
"""

from __future__ import annotations

from flowdist.control.agent.attempts import Attempt
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import VERSION_MAX
from flowdist.control.protocol.messages import Reporter
from flowdist.graph import RoleGraph


def note_version(
    attempt: Attempt, event: io.WorkerPublished | io.WorkerAcknowledged, now: int, graph: RoleGraph, report: Reporter
) -> None:
    """Record a version, and report it now or set the time to do so.

    Nothing is recorded if no role asks for it: a published version of a role of which none needs versions, and an
    acknowledged one of a role without `versions=`. A number out of range is ignored as well, and so is a published
    version that is not higher than the one before.
    """
    if not 0 <= event.version <= VERSION_MAX:
        return
    if isinstance(event, io.WorkerPublished):
        if graph.holders_of(attempt.role.name):
            attempt.published = max(attempt.published, event.version)
    elif attempt.role.versions is not None:
        attempt.acknowledged[event.local_rank] = event.version
    if not _has_news(attempt) or attempt.versions_at_ns is not None:
        return
    attempt.versions_at_ns = now
    if attempt.versions_reported_ns is not None:
        attempt.versions_at_ns = max(now, attempt.versions_reported_ns + graph.options.heartbeat_ns)
    if attempt.versions_at_ns <= now:
        report_versions(attempt, now, report)


def report_versions(attempt: Attempt, now: int, report: Reporter) -> None:
    """Report the versions that the controller does not know yet. A report that was planned for later is cancelled."""
    key = (attempt.order.replica, attempt.order.attempt)
    attempt.versions_at_ns = None
    if not _has_news(attempt):
        return
    attempt.versions_reported_ns = now
    if attempt.published != attempt.published_reported:
        attempt.published_reported = attempt.published
        report(ev.ReplicaPublished(*key, attempt.published))
    if attempt.version != attempt.acknowledged_reported:
        attempt.acknowledged_reported = attempt.version
        report(ev.ReplicaAcknowledged(*key, attempt.version))


def resend_versions(attempt: Attempt, now: int, report: Reporter) -> None:
    """Report again, after the agent has joined, the versions of an attempt: a report may have been lost."""
    attempt.published_reported = attempt.acknowledged_reported = -1
    report_versions(attempt, now, report)


def _has_news(attempt: Attempt) -> bool:
    """Return whether the controller does not know the versions of the attempt."""
    return attempt.published != attempt.published_reported or attempt.version != attempt.acknowledged_reported
