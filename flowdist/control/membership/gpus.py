"""Bad GPUs: GPUs that the driver has given up, or whose memory dead processes still hold.

A bad GPU is given to no replica until its node joins anew and does not report the GPU as bad. Replicas that have it, or
a share of it, are lost and placed again by the rules for a lost node, as failures of kind `gpu_lost`.
"""

from __future__ import annotations

from flowdist.control.job.facts import Failure, Loss
from flowdist.control.job.state import JobState, Node
from flowdist.control.membership.formation import abandon_openings
from flowdist.control.placement.placement import unplace, update_free
from flowdist.control.protocol.events import GpuFailed
from flowdist.control.protocol.xid import why_kept
from flowdist.graph.capacity import without


def exclude_bad_gpus(node: Node, bad: tuple[tuple[int, str], ...]) -> None:
    """Record the GPUs that a joining node reports as bad, (number, reason) each, and take them from its free capacity.

    Numbers that the node does not have are ignored.
    """
    node.bad_gpus = {gpu: reason for gpu, reason in bad if 0 <= gpu < node.spec.gpu}
    node.free = without(node.free, tuple(node.bad_gpus))


def lose_gpu(job: JobState, event: GpuFailed) -> None:
    """Record that a GPU is bad: it is given to no replica any more, and the replicas that run on it are lost.

    An error after which the GPU stays in use, see `why_kept`, leads to a warning only. A node that is not up, an
    unknown GPU, or one known as bad changes nothing.
    """
    node = job.nodes.get(event.node)
    if node is None or not node.usable or event.gpu in node.bad_gpus or not 0 <= event.gpu < node.spec.gpu:
        return
    cause = f"GPU {event.gpu} of {event.node} is bad: {event.reason}"
    if why := why_kept(event.xid):
        text = f"GPU {event.gpu} of {event.node}: {event.reason}; {why}, the GPU stays in use"
        job.note("gpu_kept", event.node, text, "warning")
        return
    node.bad_gpus[event.gpu] = event.reason
    node.free = without(node.free, (event.gpu,))
    holders = [job.replicas[replica] for replica in node.replicas if event.gpu in job.replicas[replica].gpus]
    lost = [replica for replica in holders if replica.is_up]
    names = ", ".join(str(replica.id) for replica in lost)
    job.note("gpu_lost", event.node, f"{cause}; lost replicas: {names}" if lost else cause, "error")
    for replica in lost:
        replica.member_since = 0
    update_free(job, event.node)
    job.facts.append(event)
    if job.ending is None and lost:
        failures = tuple(Failure(replica.id, "gpu_lost", cause, at_ns=job.now) for replica in lost)
        job.facts.append(Loss(event.node, cause, failures))


def clear_gpu(job: JobState, event: GpuFailed) -> None:
    """End what is suspended on a bad GPU, and take the seats there of replicas that do not run.

    Worlds that open with such a seat choose their members anew.
    """
    holders = [job.replicas[name] for name in job.nodes[event.node].replicas if event.gpu in job.replicas[name].gpus]
    idle = [replica for replica in holders if not replica.is_live]
    for replica in idle:
        unplace(job, replica)
    abandon_openings(job, [replica.world for replica in idle])
