"""Signs of life of the workers of an attempt: progress, stalls, readiness, versions (R23).

The functions record in the attempt what the agent has learned. The argument `report` sends an event to the controller.
Times are on the agent's own clock, in ns.

The first version that workers publish or acknowledge is reported at once, because a replica may be ready with it. Later
ones follow at most once in a heartbeat, the newest of them alone: a role that publishes a thousand versions a second
needs no thousand lines in the journal.
"""

from __future__ import annotations

from flowdist.control.agent.attempts import Attempt
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AskStep, StopAtStep, TellPeers
from flowdist.control.protocol.ids import VERSION_MAX, NodeName
from flowdist.control.protocol.messages import Reporter
from flowdist.control.protocol.xid import is_bad
from flowdist.graph import RoleGraph


def progressed(
    attempt: Attempt,
    event: io.WorkerProgressed | io.WorkerStepped | io.WorkerSpent,
    now: int,
    heartbeat_ns: int,
    report: Reporter,
) -> None:
    """Record the step of a worker, or its count of steps, and put off the next look for signs of life.

    It is reported now, or the time to do so is set. If the attempt had stalled, and nothing is missing any more, its
    revival is reported. Time that a worker has spent on saving or restoring is recorded and reported in the same way;
    it is no sign of life, as a worker may save again and again and make no step.
    """
    if isinstance(event, io.WorkerSpent):
        attempt.note_spent(event.on, event.ns, now)
        _plan_spent(attempt, now, heartbeat_ns, report)
        return
    if isinstance(event, io.WorkerStepped):
        attempt.note_count(event.local_rank, event.steps, now)
    else:
        attempt.note_step(event.local_rank, event.step, now)
    _plan_report(attempt, now, heartbeat_ns, report)
    if attempt.stalled is not None and attempt.missed(now, None) is None:
        _revive(attempt, report)
    look_at = attempt.next_look()
    is_asked = attempt.look_at_ns is None and look_at is not None and look_at <= now  # SignsSeen plans the next look
    if attempt.stalled is None and not is_asked:
        attempt.look_at_ns = look_at


def note_signs(attempt: Attempt, seen: io.SignsSeen, now: int, report: Reporter) -> None:
    """Handle the driver's answer to LookForSigns: report a stall or revival (R15), and set the next look."""
    if attempt.stop_grace_ns is not None:
        return
    output_ns = seen.output_ns
    missed = attempt.missed(now, output_ns)
    if missed is None:
        if attempt.stalled is not None:
            _revive(attempt, report)
        attempt.look_at_ns = attempt.next_look(output_ns, now)
        return
    limit_ns = (attempt.role.start_timeout_ns if missed == "start" else attempt.role.hang_after_ns) or 0
    if attempt.stalled is None:
        was_seen = missed != "output" or output_ns is not None or bool(attempt.counts)
        key = (attempt.order.replica, attempt.order.attempt)
        attempt.stalled = ev.ReplicaStalled(*key, missed, limit_ns, attempt.step, was_seen, seen.state)
        report(attempt.stalled)
    if missed == "output":
        attempt.look_at_ns = now + limit_ns


def _revive(attempt: Attempt, report: Reporter) -> None:
    attempt.stalled = None
    report(ev.ReplicaRevived(attempt.order.replica, attempt.order.attempt))


def tell_workers(attempt: Attempt, order: TellPeers | AskStep | StopAtStep, report: Reporter) -> list[io.AgentOutput]:
    """Return the outputs that pass an order on to the workers; AskStep to starting ones is answered here."""
    if isinstance(order, TellPeers):
        return [io.WritePeers(order.replica, order.attempt, order.addresses)]
    attempt.is_noticed = True
    if isinstance(order, StopAtStep):
        return [io.TellWorkers(order.replica, order.attempt, order.step)]
    if attempt.phase == "starting":
        report(ev.StepTold(order.replica, order.attempt, None))
        return []
    return [io.AskWorkers(order.replica, order.attempt)]


def check_left(attempt: Attempt, report: Reporter) -> None:
    """Report that the replica has left the agreed step, if every live worker has. A worker that has ended has left."""
    if attempt.has_left():
        report(ev.ReplicaLeftStep(attempt.order.replica, attempt.order.attempt))


def _plan_report(attempt: Attempt, now: int, heartbeat_ns: int, report: Reporter) -> None:
    """Report the step of an attempt now, or set the time to do so; do nothing if the controller knows it.

    The first step is reported at once, then at most one for each heartbeat, and at most one in a hundredth of the age
    of the attempt. So the journal of a job of days holds some hundred steps of each replica.
    """
    if not attempt.has_news:
        return
    if attempt.reported_ns is None:
        report_news(attempt, now, report)
    elif attempt.report_at_ns is None:
        attempt.report_at_ns = attempt.reported_ns + report_gap_ns(attempt, now, heartbeat_ns)
        if attempt.report_at_ns <= now:
            report_news(attempt, now, report)


def _plan_spent(attempt: Attempt, now: int, heartbeat_ns: int, report: Reporter) -> None:
    """Report the time spent on saving or restoring with the next step, or set the time to do so, as for steps."""
    if attempt.spent == attempt.spent_reported or attempt.report_at_ns is not None:
        return
    since = now if attempt.reported_ns is None else attempt.reported_ns
    attempt.report_at_ns = since + report_gap_ns(attempt, now, heartbeat_ns)
    if attempt.report_at_ns <= now:
        report_news(attempt, now, report)


def report_news(attempt: Attempt, now: int, report: Reporter) -> None:
    """Report what the controller does not know: time spent on saving or restoring, then the present step, if newer."""
    _report_spent(attempt, report)
    if attempt.has_news:
        report_step(attempt, now, report)
    attempt.report_at_ns = None
    if attempt.reported_ns is not None:  # else the first step is still to be reported at once
        attempt.reported_ns = now


def _report_spent(attempt: Attempt, report: Reporter) -> None:
    for on, ns in attempt.spent.items():
        if ns != attempt.spent_reported.get(on):
            report(ev.ReplicaSpent(attempt.order.replica, attempt.order.attempt, on, ns))
    attempt.spent_reported = dict(attempt.spent)


def report_gap_ns(attempt: Attempt, now: int, heartbeat_ns: int) -> int:
    """Return the least time (ns) between two step reports: a heartbeat, or a hundredth of its age if longer."""
    return max(heartbeat_ns, (now - attempt.started_ns) // 100)


def report_step(attempt: Attempt, now: int, report: Reporter) -> None:
    """Report the present step of an attempt, or the steps counted, now. A report planned for later is cancelled."""
    attempt.reported_ns, attempt.report_at_ns = now, None
    key = (attempt.order.replica, attempt.order.attempt)
    if attempt.counts:
        attempt.count_reported = attempt.count
        report(ev.ReplicaStepped(*key, attempt.count_reported))
    else:
        attempt.step_reported = attempt.step
        report(ev.ReplicaProgressed(*key, attempt.step_reported))


def resend(attempt: Attempt, now: int, report: Reporter) -> None:
    """Send the controller again, after the agent has joined, what it may not know of an attempt.

    A report may have been lost with the last connection, and the inventory of the join does not hold these: the time
    spent on saving and restoring, the step, from which step on workers take samples, checkpoints that were offered and
    not answered, a stall, that all workers are in elastic code, that a worker outlives SIGKILL, that all have left the
    world at the agreed step. What is not the case is not sent.
    """
    key = (attempt.order.replica, attempt.order.attempt)
    attempt.spent_reported = {}
    _report_spent(attempt, report)
    if attempt.step >= 0 or attempt.counts:
        report_step(attempt, now, report)
    for sampling in attempt.samplings.values():
        report(sampling)
    for offer in attempt.offers.values():
        report(offer)
    if attempt.stalled is not None:
        report(attempt.stalled)
    if attempt.is_elastic_reported:
        report(ev.ReplicaElastic(*key))
    if attempt.is_unkillable:
        report(ev.ReplicaUnkillable(*key))
    if attempt.has_left():
        report(ev.ReplicaLeftStep(*key))


def note_gpu(bad: dict[int, str], event: io.GpuFaulted, node: NodeName, report: Reporter) -> None:
    """Report an error of a GPU, and add it to `bad` if it is of no use any more; one in `bad` is not reported again."""
    if event.gpu in bad:
        return
    if is_bad(event.xid):
        bad[event.gpu] = event.reason
    report(ev.GpuFailed(node, event.gpu, event.reason, event.xid))


def check_ready(attempt: Attempt, report: Reporter) -> None:
    """Turn a running attempt to "ready" and report that, once the driver's probe or all ready() have passed."""
    ready = attempt.role.ready
    if attempt.phase != "running" or ready is None:
        return
    if attempt.is_probed or (ready.how == "call" and len(attempt.ready_ranks) == attempt.role.procs):
        attempt.phase = "ready"
        report(ev.ReplicaReady(attempt.order.replica, attempt.order.attempt))


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


def note_sampling(attempt: Attempt, event: io.WorkerSampling, report: Reporter) -> None:
    """Report at once from which step on a worker takes samples, so that its commits come later."""
    key = (attempt.order.replica, attempt.order.attempt)
    told = ev.ReplicaSampling(*key, event.local_rank, event.begin, event.rank, event.ranks, event.sampling)
    if attempt.samplings.get(event.local_rank) != told:
        attempt.samplings[event.local_rank] = told
        report(told)


def _has_news(attempt: Attempt) -> bool:
    """Return whether the controller does not know the versions of the attempt."""
    return attempt.published != attempt.published_reported or attempt.version != attempt.acknowledged_reported
