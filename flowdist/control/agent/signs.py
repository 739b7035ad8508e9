"""What the workers of an attempt show of themselves: progress, silence, and that they have left the agreed step.

`say` reports an event to the controller. Times are the agent's own clock.
"""

from __future__ import annotations

from collections.abc import Callable

from flowdist.control.agent.attempts import Attempt
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AskStep, StopAtStep
from flowdist.control.protocol.ids import NodeName
from flowdist.control.protocol.messages import Reported
from flowdist.control.protocol.xid import is_bad

Say = Callable[[Reported], None]


def progressed(attempt: Attempt, event: io.WorkerProgressed, now: int, heartbeat_ns: int, say: Say) -> None:
    """A worker is further than before."""
    attempt.note_step(event.local_rank, event.step, now)
    _plan_to_tell(attempt, now, heartbeat_ns, say)
    if attempt.stalled is not None and attempt.missed(now, None) is None:
        _revive(attempt, say)
    look_at = attempt.next_look()
    is_asked = attempt.look_at_ns is None and look_at is not None and look_at <= now  # the answer plans the next look
    if attempt.stalled is None and not is_asked:
        attempt.look_at_ns = look_at


def judge(attempt: Attempt, output_ns: int | None, now: int, say: Say) -> None:
    """The moment to look has come, and it was looked: report a stall, or look again later (R15)."""
    if attempt.stop_grace_ns is not None:
        return
    missed = attempt.missed(now, output_ns)
    if missed is None:
        if attempt.stalled is not None:
            _revive(attempt, say)
        attempt.look_at_ns = attempt.next_look()
        if not attempt.signs and output_ns is not None and attempt.role.hang_after_ns is not None:
            attempt.look_at_ns = max(output_ns, attempt.started_ns) + attempt.role.hang_after_ns
        return
    limit_ns = (attempt.role.start_timeout_ns if missed == "start" else attempt.role.hang_after_ns) or 0
    if attempt.stalled is None:
        was_seen = missed != "output" or output_ns is not None
        key = (attempt.order.replica, attempt.order.attempt)
        attempt.stalled = ev.ReplicaStalled(*key, missed, limit_ns, attempt.step, was_seen)
        say(attempt.stalled)
    if missed == "output":
        attempt.look_at_ns = now + limit_ns


def _revive(attempt: Attempt, say: Say) -> None:
    attempt.stalled = None
    say(ev.ReplicaRevived(attempt.order.replica, attempt.order.attempt))


def give_notice(attempt: Attempt, order: AskStep | StopAtStep, say: Say) -> list[io.AgentOutput]:
    """Its workers are to stop soon: whatever of it ends from now on has stopped (R16)."""
    attempt.is_noticed = True
    if isinstance(order, StopAtStep):
        return [io.TellWorkers(order.replica, order.attempt, order.step)]
    if attempt.phase == "starting":
        say(ev.StepTold(order.replica, order.attempt, None))
        return []
    return [io.AskWorkers(order.replica, order.attempt)]


def check_left(attempt: Attempt, say: Say) -> None:
    """The last worker has left the agreed step; whoever has ended has left as well."""
    if attempt.has_left():
        say(ev.ReplicaLeftStep(attempt.order.replica, attempt.order.attempt))


def _plan_to_tell(attempt: Attempt, now: int, heartbeat_ns: int, say: Say) -> None:
    """A replica is as far as its least advanced worker.

    News are told at once, then at most once a heartbeat, and ever more rarely as the attempt grows old, at most once in
    a hundredth of its age: a job of days must not fill its journal with steps.
    """
    if attempt.step <= attempt.step_told:
        return
    if attempt.told_ns is None:
        tell_step(attempt, now, say)
    elif attempt.tell_at_ns is None:
        attempt.tell_at_ns = attempt.told_ns + told_after_ns(attempt, now, heartbeat_ns)
        if attempt.tell_at_ns <= now:
            tell_step(attempt, now, say)


def told_after_ns(attempt: Attempt, now: int, heartbeat_ns: int) -> int:
    """How long after it was told last a step is told."""
    return max(heartbeat_ns, (now - attempt.started_ns) // 100)


def tell_step(attempt: Attempt, now: int, say: Say) -> None:
    attempt.step_told = attempt.step
    attempt.told_ns, attempt.tell_at_ns = now, None
    say(ev.ReplicaProgressed(attempt.order.replica, attempt.order.attempt, attempt.step_told))


def say_again(attempt: Attempt, now: int, say: Say) -> None:
    """What an inventory does not hold, and may have been lost with the connection."""
    key = (attempt.order.replica, attempt.order.attempt)
    if attempt.step >= 0:
        tell_step(attempt, now, say)
    for offer in attempt.offers.values():
        say(offer)
    if attempt.stalled is not None:
        say(attempt.stalled)
    if attempt.is_elastic_told:
        say(ev.ReplicaElastic(*key))
    if attempt.is_unkillable:
        say(ev.ReplicaUnkillable(*key))
    if attempt.has_left():
        say(ev.ReplicaLeftStep(*key))


def note_gpu(bad: dict[int, str], event: io.GpuFaulted, node: NodeName, say: Say) -> None:
    """What is bad stays so, and is said again whenever the node joins; what the GPU outlives is told and forgotten."""
    if event.gpu in bad:
        return
    if is_bad(event.xid):
        bad[event.gpu] = event.reason
    say(ev.GpuFailed(node, event.gpu, event.reason, event.xid))


def check_ready(attempt: Attempt, say: Say) -> None:
    """Say when the attempt has passed its readiness check, if it has one and runs."""
    ready = attempt.role.ready
    if attempt.phase != "running" or ready is None:
        return
    if attempt.is_probed or (ready.how == "call" and len(attempt.ready_ranks) == attempt.role.procs):
        attempt.phase = "ready"
        say(ev.ReplicaReady(attempt.order.replica, attempt.order.attempt))
