"""Workers that stay in place while their world forms anew: the controller's side of it.

A replica whose workers are all in elastic code is ordered to leave its generation instead of ending. Its workers are
*suspended* then: they have left the old generation (R6), and live on the seat that the replica keeps. The next start of
the replica continues with these workers. They end if the replica loses its seat, or has to start with new processes.
"""

from __future__ import annotations

from flowdist.control.job.state import Incident, JobState, Replica, World
from flowdist.control.protocol.effects import StopReplica
from flowdist.control.protocol.ids import NodeName


def may_stay(job: JobState, incident: Incident, world: World) -> bool:
    """Return whether the incident lets workers of the world stay in place. Each replica has conditions of its own, too.

    Workers may not stay in a world that hangs, after a change of addresses in their command, or if the incident
    restarts something that the world depends on: they still hold connections to it.
    """
    if world.hangs or incident.kind == "address_changed":
        return False
    upstream = {name for role in job.roles_of(world) for name in role.upstream}
    others = (role for name in incident.worlds if name != world.name for role in job.worlds[name].roles)
    return not any(role in upstream for role in others)


def leaves_in_place(job: JobState, replica: Replica) -> bool:
    """Return whether the replica itself can stop in place: its workers run elastic code, and it keeps node and GPUs."""
    if not replica.is_elastic or replica.phase not in ("running", "ready") or replica.node is None:
        return False
    node = job.nodes[replica.node]
    return node.usable and not node.is_leaving and node.bad_gpus.keys().isdisjoint(replica.gpus)


def note_suspended(job: JobState, replica: Replica) -> None:
    """Record that workers of the replica's ended attempt wait in place for its next start, unless its node is lost.

    This is recorded with the end: what else the same message tells may take these workers away.
    """
    if replica.node is not None and job.nodes[replica.node].usable:
        job.suspended[replica.id] = None


def end_suspended(job: JobState, replica: Replica) -> None:
    """Order workers that wait in place to be killed if their node is lost, so that nothing can continue them."""
    if replica.node is not None and not job.nodes[replica.node].usable:
        job.emit(StopReplica(replica.node, replica.id, replica.attempt, 0))


def take_suspended(job: JobState, replica: Replica) -> bool:
    """Return whether the start of the replica continues with its suspended workers, and forget that they are suspended.

    If their command names addresses that have changed they are ordered to end (R5).
    """
    before = replica.order
    if (
        before is not None
        and before.addresses != replica.known_addresses
        and job.role_of(replica.id).spec.address_edges
    ):
        job.dismiss(replica)
    continues = replica.id in job.suspended
    job.suspended.pop(replica.id, None)
    replica.is_elastic = replica.in_place = False
    return continues


def note_start(job: JobState, replica: Replica, world: World, before: NodeName | None, continues: bool) -> None:
    """Record a start of the replica in its counts and in the open incident of its world, if there is one.

    The new attempt has no version: workers that continue in place may have lost theirs, and have to say so (R23).

    The start counts as in place if it continues suspended workers (`continues`), and none of them was lost in the
    incident. `before` is the node of the attempt before; None: there was none.
    """
    incident = job.incident(world.incident) if world.incident is not None else None
    stays = continues and (incident is None or replica.id not in incident.lost)
    replica.starts_in_place += stays
    replica.version = -1
    replica.is_checked, replica.was_refused, replica.admitted = False, False, None
    if incident is not None:
        incident.restarted[replica.id] = None
        incident.stayed.pop(replica.id, None)
        if stays:
            incident.stayed[replica.id] = None
        if replica.node is not None and before not in (None, replica.node):
            incident.moved[replica.id] = replica.node


def staying(job: JobState, incident: Incident) -> int:
    """Return how many replicas of the incident have the order to leave in place, or are suspended already."""
    members = (member for name in incident.worlds for member in job.members_of(job.worlds[name]))
    return sum(member.in_place or member.id in job.suspended for member in members)
