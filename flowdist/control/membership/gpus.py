"""GPUs that are no good: one that its driver has given up, or whose memory dead processes still hold, leaves the pool.

Nobody is given it again before its node has joined anew, and joined without it being bad. Whoever has it, or a share of
it, is lost through no fault of its own, and re-placed as if a node had been lost: with the same rules, by another name.
"""

from __future__ import annotations

from flowdist.control.job.facts import Failure, Loss
from flowdist.control.job.state import JobState, Node, Replica
from flowdist.control.membership.formation import abandon_opening
from flowdist.control.placement.placement import unplace, update_free
from flowdist.control.protocol.events import GpuFailed
from flowdist.control.protocol.xid import why_kept
from flowdist.graph.capacity import without


def leave_out(node: Node, bad: tuple[tuple[int, str], ...]) -> None:
    """A node joins, and some of its GPUs are known to be bad."""
    node.bad_gpus = {gpu: reason for gpu, reason in bad if 0 <= gpu < node.spec.gpu}
    node.free = without(node.free, tuple(node.bad_gpus))


def lose_gpu(job: JobState, event: GpuFailed) -> None:
    """Whoever has the GPU is told to stop, and loses its seat when it has."""
    node = job.nodes.get(event.node)
    if node is None or not node.usable or event.gpu in node.bad_gpus or not 0 <= event.gpu < node.spec.gpu:
        return
    cause = f"GPU {event.gpu} of {event.node} is bad: {event.reason}"
    if why := why_kept(event.xid):
        job.notify(f"GPU {event.gpu} of {event.node}: {event.reason}; {why}, the GPU stays in use", "warning")
        return
    node.bad_gpus[event.gpu] = event.reason
    node.free = without(node.free, (event.gpu,))
    holders = [job.replicas[replica] for replica in node.replicas if event.gpu in job.replicas[replica].gpus]
    lost = [replica for replica in holders if replica.is_up]
    job.notify(f"{cause}; lost replicas: {', '.join(str(replica.id) for replica in lost)}" if lost else cause, "error")
    for replica in holders:
        job.dismiss(replica)
        if replica.is_up:
            replica.member_since = 0
    _choose_anew(job, holders)
    update_free(job, event.node)
    if job.ending is None and lost:
        job.facts.append(Loss(event.node, cause, tuple(Failure(replica.id, "gpu_lost", cause) for replica in lost)))


def _choose_anew(job: JobState, holders: list[Replica]) -> None:
    """Seats of those that do not run are free at once; worlds that were about to start with one choose anew."""
    idle = [replica for replica in holders if not replica.is_live]
    for replica in idle:
        unplace(job, replica)
    for world_name in job.in_order(dict.fromkeys(replica.world for replica in idle)):
        if job.worlds[world_name].phase == "opening":
            abandon_opening(job, job.worlds[world_name])
