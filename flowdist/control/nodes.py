"""Nodes come, come back and are lost.

A silent node has fenced by the time that it is called silent, one that is gone is proven dead: in both cases nothing
of it runs any more (R19), and each loss leads to a decision (R12).
"""

from __future__ import annotations

from flowdist.control.effects import OpenStore, StopReplica
from flowdist.control.events import InventoryItem, NodeJoined, ReplicaExited
from flowdist.control.ids import NodeName
from flowdist.control.membership import abandon_opening
from flowdist.control.placement import unplace
from flowdist.control.recovery import lose
from flowdist.control.state import JobState, Node, Replica
from flowdist.graph.model import FailureKind


def join(job: JobState, event: NodeJoined) -> list[InventoryItem]:
    """Write the node down. Returns the items of its inventory that are news to be recorded."""
    known = job.nodes.get(event.node)
    if known is not None and event.incarnation < known.incarnation:
        return []
    same = known is not None and known.usable and event.incarnation == known.incarnation
    if known is not None and not same:
        lose_node(job, event.node, f"{event.node} came back without what it ran")
    job.known_nodes[event.node] = None
    if not same:
        place = job.node_order.setdefault(event.node, len(job.node_order))
        node = Node(event.spec, event.address, event.incarnation, place)
        if known is not None:
            node.stuck = known.stuck
        job.nodes[event.node] = node
        job.notify(f"{event.node} joined")
    return _reconcile(job, event) if known is not None and same else _refuse_strays(job, event)


def _refuse_strays(job: JobState, event: NodeJoined) -> list[InventoryItem]:
    """A node that starts anew should run nothing; what it runs all the same is stopped."""
    for item in event.inventory:
        if item.phase in ("starting", "running", "ready"):
            job.emit(StopReplica(event.node, item.replica, item.attempt, 0))
    return []


def _reconcile(job: JobState, event: NodeJoined) -> list[InventoryItem]:
    """The connection was lost, not the node: orders may have been lost with it. Say again what is not so."""
    items = {(item.replica, item.attempt): item for item in event.inventory}
    news = []
    for item in event.inventory:
        replica = job.replicas.get(item.replica)
        if replica is not None and replica.node == event.node and replica.attempt == item.attempt and replica.is_live:
            news.append(item)
        elif item.phase in ("starting", "running", "ready"):
            job.emit(StopReplica(event.node, item.replica, item.attempt, 0))
    for name in list(job.nodes[event.node].replicas):
        replica = job.replicas[name]
        if replica.is_live and (replica.id, replica.attempt) not in items:
            news += _say_again(job, replica)
    for world in job.worlds.values():
        if world.phase == "opening" and world.store_node == event.node:
            job.emit(OpenStore(event.node, world.name, world.generation))
    return news


def _say_again(job: JobState, replica: Replica) -> list[InventoryItem]:
    if replica.phase == "starting" and replica.order is not None:
        job.emit(replica.order)
        return []
    kind: FailureKind = "start_failed"
    exited = ReplicaExited(replica.id, replica.attempt, kind, detail="its agent does not know it any more")
    return [InventoryItem(replica.id, replica.attempt, "exited", exited=exited)]


def lose_node(job: JobState, name: NodeName, cause: str) -> None:
    """Nothing runs there any more: its replicas are lost, its seats are free."""
    job.known_nodes.pop(name, None)
    node = job.nodes.get(name)
    if node is None:
        return
    was_usable, node.usable = node.usable, False
    lost = vacate(job, name)
    if not was_usable:
        return
    job.notify(f"{cause}, and with it {', '.join(str(replica.id) for replica in lost)}" if lost else cause, "warning")
    if job.ending is None and lost:
        lose(job, lost, name, cause)


def vacate(job: JobState, name: NodeName) -> list[Replica]:
    """End every attempt on the node and free every seat. Returns the replicas that nobody had told to stop."""
    lost: list[Replica] = []
    for replica in [job.replicas[replica] for replica in job.nodes[name].replicas]:
        if replica.is_up:
            lost.append(replica)
        if replica.is_live:
            job.end_attempt(replica)
            replica.member_since = 0
        unplace(job, replica)
        replica.ports, replica.ports_node = (), None
    leave_stores(job, name)
    return lost


def leave_stores(job: JobState, name: NodeName) -> None:
    """Worlds that were about to start with a seat there choose anew; the stores that it hosted are gone."""
    for world in job.worlds.values():
        if world.store_node == name:
            world.store_node = None
        if world.phase == "opening" and any(replica.node in (None, name) for replica in job.members_of(world)):
            abandon_opening(job, world)


def give_up_node(job: JobState, replica: Replica) -> None:
    """A worker of the replica outlives SIGKILL: its node is of no use, what else runs there is killed (R6).

    The GPUs of that worker stay taken. The others are lost, but replaced only when their end is reported.
    """
    name, gpus = replica.node, replica.gpus
    assert name is not None
    node = job.nodes[name]
    job.known_nodes.pop(name, None)
    node.usable = False
    job.end_attempt(replica)
    unplace(job, replica)
    node.stuck[replica.id] = gpus
    lost = []
    for other in [job.replicas[other] for other in node.replicas]:
        if other.is_up:
            lost.append(other)
            job.end_attempt(other, "stopping")
            job.emit(StopReplica(name, other.id, other.attempt, 0))
        elif not other.is_live:
            unplace(job, other)
    leave_stores(job, name)
    cause = f"{name} is lost: a worker of {replica.id} outlives SIGKILL"
    job.notify(cause, "error")
    if lost and job.ending is None:
        lose(job, lost, name, cause)
