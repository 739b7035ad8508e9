"""Nodes that join, join again and are lost: their death is proven, or their lease is over and they have fenced (R19).

A bad GPU, given up by the driver or held by dead processes, goes to no replica until its node joins anew without
reporting it. Replicas that have it are lost and placed again as for a lost node, as failures of kind `gpu_lost`.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from flowdist.control.incidents.ending import forget_store
from flowdist.control.job.facts import Connected, Failure, Loss
from flowdist.control.job.state import JobState, Node, Replica
from flowdist.control.membership.formation import abandon_openings
from flowdist.control.placement.bad_nodes import cordon_flapping
from flowdist.control.placement.placement import unplace, update_free
from flowdist.control.protocol.effects import AskStep, OpenStore, StopAtStep, StopReplica, TellPeers
from flowdist.control.protocol.events import GpuFailed, InventoryItem, NodeJoined, NodeStandsStill, ReplicaExited
from flowdist.control.protocol.ids import NODE_RANK, NodeName, ReplicaId, WorldName, is_unnamed, unnamed_of_rank
from flowdist.control.protocol.xid import why_kept
from flowdist.control.snapshots.copies import lose_copies, note_vault
from flowdist.control.snapshots.keeping import has_lost_state, worlds_with_snapshots
from flowdist.graph import FailureKind
from flowdist.graph.capacity import offered, subtract, without


def join(job: JobState, event: NodeJoined) -> list[InventoryItem]:
    """Record a node that joins, or connects again; if it comes back without what it ran, its loss is recorded first.

    Return the inventory items about present attempts, and a failure for each that the agent does not know any more, for
    the caller to record. A late join of an earlier incarnation is ignored (R20).
    """
    known = job.nodes.get(event.node)
    if known is not None and event.incarnation < known.incarnation:
        return []
    if known is not None and (not known.usable or event.incarnation != known.incarnation):
        lose_node(job, event.node, f"{event.node} came back without what it ran")
    if event.node not in job.node_order:
        _take_place(job, event)
    job.missing.pop(event.node, None)
    is_added = known is None or not known.usable
    if is_added:
        _add(job, event, known)
    node = job.nodes[event.node]
    node.awaits_inventory = False
    live = [job.replicas[name] for name in node.replicas if job.replicas[name].is_live]
    present = frozenset((replica.id, replica.attempt) for replica in live)
    job.facts.append(Connected(event, present, is_added))
    note_vault(job, event.node, event.vault_port, event.copies)
    job.facts += event.copies
    for gpu, reason in event.bad_gpus:  # of a new node, `_add` has left them out already
        lose_gpu(job, GpuFailed(event.node, gpu, reason))
    if event.is_warming:
        job.warming[event.node] = None
    else:
        warmed_up(job, event.node)
    listed = {(item.replica, item.attempt) for item in event.inventory}
    gone = [each for each in live if each.phase != "starting" and (each.id, each.attempt) not in listed]
    return [item for item in event.inventory if (item.replica, item.attempt) in present] + list(map(_forgotten, gone))


def _forgotten(replica: Replica) -> InventoryItem:
    exited = ReplicaExited(replica.id, replica.attempt, "start_failed", detail="its agent does not know the attempt")
    return InventoryItem(replica.id, replica.attempt, "exited", exited=exited)


def _take_place(job: JobState, event: NodeJoined) -> None:
    """Give an unknown node the place of an expected unnamed one: that of its `node-rank` label, else the first."""
    first = next((name for name in job.node_order if is_unnamed(name)), None)
    if first is None:
        return
    own = unnamed_of_rank(dict(event.spec.labels).get(NODE_RANK, ""), first)
    place = own if own in job.node_order else first
    job.node_order[event.node] = job.node_order.pop(place)
    job.missing.pop(place, None)


def _add(job: JobState, event: NodeJoined, known: Node | None) -> None:
    """Add a usable node on which nothing runs; of its record from before (`known`), failures and cordons are kept."""
    place = job.node_order.setdefault(event.node, len(job.node_order))
    node = Node(event.spec, event.address, event.incarnation, place, offered(event.spec))
    if known is not None:  # processes that outlive SIGKILL are still there, and failures still count
        node.stuck, node.failures = known.stuck, known.failures
        node.cordoned, node.cordon_cause = ("", "") if known.is_leaving else (known.cordoned, known.cordon_cause)
        for (replica, _), gpus in node.stuck.items():
            node.free = subtract(node.free, job.role_of(replica).need, gpus)
    node.bad_gpus = {gpu: reason for gpu, reason in event.bad_gpus if 0 <= gpu < node.spec.gpu}
    node.free = without(node.free, tuple(node.bad_gpus))
    job.nodes[event.node] = node
    insort(job.usable, (place, event.node))
    update_free(job, event.node)
    reasons = ", ".join(dict.fromkeys(node.bad_gpus.values()))
    lacks = f", without GPU {', '.join(map(str, node.bad_gpus))}: {reasons}" if node.bad_gpus else ""
    job.note("node_joined", event.node, f"{event.node} joined{lacks}", "warning" if lacks else "info")


def warmed_up(job: JobState, name: NodeName) -> None:
    """Record that a warming node has imported what workers need: running worlds may grow onto it now (R13)."""
    if name in job.warming:
        del job.warming[name]
        job.placement_changed = True


def note_still(job: JobState, event: NodeStandsStill) -> None:
    """Record that processes on a node stand still, or go on; while they are flowdist's, nothing is placed there.

    What runs there is left alone: it may well work.
    """
    node = job.nodes.get(event.node)
    if node is None or not node.usable:
        return
    _note_stopped(job, node, tuple(each for each in event.workers if each in node.replicas))
    if node.stands_still == event.who:
        return
    node.stands_still = event.who
    update_free(job, event.node)
    if event.who:
        text = f"{event.node}: {event.who} is stopped, by SIGSTOP or a debugger; nothing new is placed there"
        job.note("node_stands_still", event.node, text, "warning")
    else:
        job.note("node_goes_on", event.node, f"{event.node}: no process of flowdist is stopped any more")


def _note_stopped(job: JobState, node: Node, workers: tuple[ReplicaId, ...]) -> None:
    """Record which replicas on a node have a worker that is stopped. Whether that is a hang, `hang_after` decides."""
    name, newly = node.spec.name, [str(each) for each in workers if each not in node.stopped]
    if newly:
        text = f"{name}: a worker of {', '.join(newly)} is stopped, by SIGSTOP or a debugger"
        job.note("worker_stands_still", name, text, "warning")
    elif node.stopped and not workers:
        job.note("worker_goes_on", name, f"{name}: no worker is stopped any more")
    node.stopped = workers


def greet(job: JobState, connected: Connected) -> None:
    """Send the orders that the agent of a node that has connected may lack; cordon a new node that was lost too often.

    An attempt that is not present is ordered to stop, except suspended workers whose next start is still to come.
    """
    event, present, is_added = connected
    if is_added:
        cordon_flapping(job, event.node)
    for item in event.inventory:
        if (item.replica, item.attempt) in present:
            _repeat_orders(job, job.replicas[item.replica], item)
        elif item.phase in ("starting", "running", "ready") or (
            item.phase == "suspended" and not _awaits_start(job, event.node, item)
        ):
            job.emit(StopReplica(event.node, item.replica, item.attempt, 0))
    known = {(item.replica, item.attempt) for item in event.inventory}
    for replica in [job.replicas[name] for name in job.nodes[event.node].replicas]:
        lacks_order = replica.phase == "starting" and (replica.id, replica.attempt) not in known
        if lacks_order and replica.order is not None and not has_lost_state(job.worlds[replica.world]):
            job.emit(replica.order)
    for world in worlds_with_snapshots(job):
        if world.has_other_nodes:
            world.buddies.pop(event.node, None)  # it is told once the world runs
        elif event.node in world.buddies:
            job.emit(world.buddies[event.node])
    for world in [job.worlds[name] for name in job.nodes[event.node].stores]:
        if world.phase == "opening":
            job.emit(OpenStore(event.node, world.name, world.generation))


def _awaits_start(job: JobState, name: NodeName, item: InventoryItem) -> bool:
    """Return whether the suspended workers of an item are still wanted on the node: a start is to come, or was lost."""
    replica = job.replicas.get(item.replica)
    if replica is None or replica.node != name:
        return False
    lost = replica.phase == "starting" and replica.attempt == item.attempt + 1
    return lost or (replica.id in job.suspended and replica.attempt == item.attempt)


def _repeat_orders(job: JobState, replica: Replica, item: InventoryItem) -> None:
    """Repeat the last orders (stop, agreed step, addresses) about a live attempt; an agent ignores known ones."""
    if item.phase in ("suspended", "stopped", "exited") or replica.node is None:
        return
    notice = job.worlds[replica.world].notice
    if replica.phase == "stopping":
        grace_ns = replica.stop_grace_ns
        job.emit(StopReplica(replica.node, replica.id, replica.attempt, grace_ns, in_place=replica.in_place))
    elif notice is not None and replica.id in notice.asked:
        job.emit(AskStep(replica.node, replica.id, replica.attempt))
    elif notice is not None and notice.is_answered:  # before the last answer there is no step to name (R14)
        job.emit(StopAtStep(replica.node, replica.id, replica.attempt, notice.stop_at))
    if replica.known_addresses:
        job.emit(TellPeers(replica.node, replica.id, replica.attempt, replica.known_addresses))


def lose_node(job: JobState, name: NodeName, cause: str, because: str = "", *, asked: bool = False) -> None:
    """Record the loss of a node, once: nothing runs there any more, its replicas are lost, and its seats are free.

    `cause` is a sentence that names the node, `because` the same without. One `asked` to leave is not to blame (R22).
    """
    job.missing.pop(name, None)
    node = job.nodes.get(name)
    if node is None:
        job.placement_changed = True  # no world has to wait for it any longer
        return
    was_usable, node.lost_because = node.usable, because
    _give_up(job, name)
    update_free(job, name)
    lost, unseated = _vacate(job, name, cause)
    if was_usable:
        is_blamed = not asked and not node.is_leaving
        job.facts.append(Loss(name, cause, lost, name, is_told=True, is_blamed=is_blamed, unseated=unseated))
        lose_copies(job, name, f"lost with {name}")


def _give_up(job: JobState, name: NodeName) -> None:
    """Make the node unusable, and forget that it is suspected, warming up or leaving."""
    node = job.nodes[name]
    job.suspected.pop(name, None)
    job.warming.pop(name, None)
    job.leaving.pop(name, None)
    if node.usable:
        node.usable = False
        del job.usable[bisect_left(job.usable, (node.order, name))]


def _vacate(job: JobState, name: NodeName, cause: str) -> tuple[tuple[Failure, ...], tuple[WorldName, ...]]:
    """Free every seat and store on the node; return a failure for each replica that ran there, and the worlds hit."""
    lost: list[Failure] = []
    replicas = [job.replicas[replica] for replica in job.nodes[name].replicas]
    for replica in replicas:
        if replica.is_live:
            lost.append(Failure(replica.id, "node_lost", cause, at_ns=job.now, was_told=not replica.is_up))
            job.end_attempt(replica)
            replica.member_since = 0
        unplace(job, replica)
        replica.ports, replica.ports_node = (), None  # the agent that chose them is lost
    return tuple(lost), (*_forget_stores(job, name), *(replica.world for replica in replicas))


def _forget_stores(job: JobState, name: NodeName) -> list[WorldName]:
    hosted = list(job.nodes[name].stores)
    for world in hosted:
        forget_store(job, job.worlds[world])
    return hosted


def give_up_node(job: JobState, replica: Replica) -> None:
    """Give up the node of a replica of which a worker outlives SIGKILL: all else there is killed (R6).

    Its resources stay taken. The other replicas start elsewhere only when the agent has reported their end.
    """
    name, gpus = replica.node, replica.gpus
    assert name is not None
    node = job.nodes[name]
    for mate in node.replicas:
        job.dismiss(job.replicas[mate])
    _give_up(job, name)
    job.end_attempt(replica)
    replica.member_since = 0
    unplace(job, replica)
    node.stuck[replica.id, replica.attempt] = gpus
    node.free = without(subtract(node.free, job.role_of(replica.id).need, gpus), tuple(node.bad_gpus))
    update_free(job, name)
    lost = []
    others = [job.replicas[other] for other in node.replicas]
    for other in others:
        if other.is_up:
            lost.append(other)
            job.end_attempt(other, "stopping")
            other.member_since = 0
            job.emit(StopReplica(name, other.id, other.attempt, 0))
        elif not other.is_live:
            unplace(job, other)
    abandon_openings(job, [*_forget_stores(job, name), *(other.world for other in others)])
    node.lost_because = f"a worker of {replica.id} outlives SIGKILL"
    cause = f"{name} lost ({node.lost_because})"
    job.decided("node_lost", name, cause, "error")
    kinds: list[tuple[Replica, FailureKind]] = [(replica, "unkillable"), *((other, "node_lost") for other in lost)]
    failures = tuple(Failure(each.id, kind, cause, at_ns=job.now) for each, kind in kinds)
    job.facts.append(Loss(name, cause, failures, name))
    lose_copies(job, name, f"lost with {name}")


def lose_gpu(job: JobState, event: GpuFailed) -> None:
    """Record that a GPU is bad, which loses the replicas on it; or warn only if it stays in use, see `why_kept`."""
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
    """End what is suspended on a bad GPU, and take seats there from replicas that do not run; openings start anew."""
    holders = [job.replicas[name] for name in job.nodes[event.node].replicas if event.gpu in job.replicas[name].gpus]
    idle = [replica for replica in holders if not replica.is_live]
    for replica in idle:
        unplace(job, replica)
    abandon_openings(job, [replica.world for replica in idle])
