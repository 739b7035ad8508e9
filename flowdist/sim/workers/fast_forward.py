"""Quiet stretches of a world that steps: between two things that happen its checkpoints need not be played one by one.

Of all the checkpoints before the next thing that is planned only the last is played. The others would have changed
nothing that it does not change again: how far the workers say that they are, and which checkpoint is the latest. So no
decision is another one and none comes at another time; the trace lacks the lines of what was not played, and
`World.checkpoints` does not count it.

At a checkpoint that is played one member of the world tells how far it is, where nobody asks more: control takes the
most advanced of all, and looks at each of them only where it has to find out who hangs. Who loses the controller says
it again to the next: so at each fault the agents of all learn it (`make_known`).

That holds where nobody waits for a step or a checkpoint, every message arrives at once, and each checkpoint would have
been told at once: an attempt that is old tells its progress ever more rarely, and then when it does matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowdist.control.agent.signs import told_after_ns
from flowdist.control.protocol.effects import StartReplica
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.workers.workload import WorldModel

if TYPE_CHECKING:
    from flowdist.sim.engine.simulation import Simulation

SETTLED_NS = 4 * LATENCY_NS  # after a checkpoint all that it brings about is over: the reports, the offer, the answer


def skip_quiet(sim: Simulation, model: WorldModel) -> bool:
    """At the moment of a checkpoint: take those before the last quiet one as played. False when there are none."""
    if not sim.is_quiet:
        return False
    last = model.checkpoints_by(_next_thing(sim) - SETTLED_NS)
    skipped = last - model.offered - 1
    if skipped <= 0:
        return False
    at = model.time_of_checkpoint(last)
    gap = (at - sim.queue.now) // skipped if at is not None else 0
    if at is None or not all(_tells_at_once(sim, start, at, gap) for start in _who_counts(sim, model)):
        return False
    before = model.time_of_checkpoint(last - 1)
    model.skipped.append((sim.queue.now, at if before is None else before))
    model.skip(last - 1)
    return True


def who_tells(sim: Simulation, model: WorldModel) -> list[StartReplica]:
    """The members whose word of how far they are may matter now."""
    counts = _who_counts(sim, model)
    if len(counts) > 1 or not sim.fast_forward or not sim.is_quiet:
        return list(model.members.values())
    [first] = counts
    attempt = sim.nodes[first.node].agent.attempts.get(first.replica)
    quiet_for = sim.queue.now - (attempt.told_ns or 0) if attempt is not None else 0
    return counts if _tells_at_once(sim, first, sim.queue.now, quiet_for) else list(model.members.values())


def make_known(sim: Simulation) -> None:
    """The agents of those who had no need to tell how far they are learn it: whoever joins anew says it again."""
    for model in sim.work.models.values() if sim.fast_forward else ():
        step, model.untold = model.untold, -1
        for start in model.members.values() if step >= 0 else ():
            node = sim.nodes[start.node]
            attempt = node.agent.attempts.get(start.replica)
            if attempt is not None and attempt.order.attempt == start.attempt:
                for local_rank in range(node.procs_of(start.replica)):
                    attempt.note_step(local_rank, step, sim.queue.now)


def _who_counts(sim: Simulation, model: WorldModel) -> list[StartReplica]:
    """Of whom it matters, while it is quiet, how far they are: of all where it is looked who hangs, else of one."""
    first = model.members[min(model.members)]
    specs = [sim.graph.role(name) for name in sim.job.worlds[first.world].roles]
    if any(spec.hang_after_ns is not None or spec.start_timeout_ns is not None for spec in specs):
        return list(model.members.values())
    return [first]


def _next_thing(sim: Simulation) -> int:
    """When something happens next that is no checkpoint: what is planned, the end of a world's work, or of all."""
    times = [sim.queue.next_but(sim.is_no_matter), sim.until]
    for model in sim.work.models.values():
        if model.begun_ns is not None:
            times.append(model.time_of_step(model.pace.workload.steps))
    return min([time for time in times if time is not None])


def _tells_at_once(sim: Simulation, start: StartReplica, until: int, gap: int) -> bool:
    """Whether the member's agent hears of each checkpoint and tells it, and is heard, until that time."""
    node = sim.nodes[start.node]
    attempt = node.agent.attempts.get(start.replica)
    if attempt is None or not node.is_well or not node.agent.is_connected or attempt.phase not in ("running", "ready"):
        return False
    busy = attempt.stalled is not None or attempt.is_noticed or attempt.stop_grace_ns is not None
    if busy or attempt.tell_at_ns is not None or attempt.offers:
        return False
    return told_after_ns(attempt, until, sim.graph.options.heartbeat_ns) <= gap
