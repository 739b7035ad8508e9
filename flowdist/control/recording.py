"""Recording of an event: what has happened is written down in the state, and as facts that are judged afterwards.

Nothing is decided here: no effect and no incident. An event of what is over changes nothing (R20).
"""

from __future__ import annotations

from flowdist.control.incidents.ending import forget_store
from flowdist.control.incidents.hangs import note_revived, note_stalled
from flowdist.control.incidents.suspects import note_heard, note_suspected
from flowdist.control.job.facts import Change, Ended, OldRestore
from flowdist.control.job.state import JobState, Replica
from flowdist.control.membership.attempts import note_exited, note_started, note_stopped
from flowdist.control.membership.drain import note_left, note_step
from flowdist.control.membership.nodes import join, lose_gpu, lose_node, note_still, warmed_up
from flowdist.control.membership.samples import note_sampling
from flowdist.control.membership.versions import note_acknowledged, note_checked, note_published
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.snapshots.copies import lose_copy, note_vault
from flowdist.graph import format_duration


def record(job: JobState, event: ev.Event) -> None:
    """Write the event down in the state. An event about an attempt that is over changes nothing (R20)."""
    if ev.is_of_attempt(event):
        replica = _current(job, event.replica, event.attempt)
        if replica is not None:
            _record_of_replica(job, replica, event)
        return
    match event:
        case ev.CheckpointOffered() | ev.CopyHeld():  # before the others, because they come most often
            job.facts.append(event)
        case ev.NodeJoined():
            for item in join(job, event):
                _record_item(job, item)
            note_heard(job, ev.NodeHeard(event.node))
        case ev.NodeWarm():
            warmed_up(job, event.node)
        case ev.NodeLeft() | ev.NodeGone() | ev.NodeSilent():
            _node_lost(job, event)
        case ev.NodeSuspected():
            note_suspected(job, event.node)
        case ev.NodeHeard():
            note_heard(job, event)
        case ev.NodeStandsStill():
            note_still(job, event)
        case ev.GpuFailed():
            lose_gpu(job, event)
        case ev.StoreLost():
            _store_lost(job, event)
        case ev.VaultOpened():
            note_vault(job, event.node, event.port)
        case ev.VaultLost():
            note_vault(job, event.node, 0)
        case ev.CopyBroken():
            lose_copy(job, event)
        case ev.ControllerStarted():
            _take_over(job, event)
        case ev.TimePassed():
            pass
        case _:  # the type of `facts` says which events these are
            job.facts.append(event)


def _take_over(job: JobState, event: ev.ControllerStarted) -> None:
    """Record a controller of a higher epoch: every usable node is suspected until it connects (R21)."""
    if event.epoch <= job.epoch:
        return
    job.epoch = event.epoch
    for _, name in job.usable:
        job.nodes[name].awaits_inventory = True
        note_suspected(job, name)
    job.note("controller_back", "", f"the controller is back, as epoch {event.epoch}; what runs goes on", "warning")


def _node_lost(job: JobState, event: ev.NodeLeft | ev.NodeGone | ev.NodeSilent) -> None:
    if isinstance(event, ev.NodeLeft):
        lose_node(job, event.node, f"{event.node} left", "it left", asked=True)
        return
    because = f"not heard for {format_duration(job.graph.options.silent_after_ns)}"
    if isinstance(event, ev.NodeGone):
        because = event.cause
    elif (node := job.nodes.get(event.node)) is not None and node.awaits_inventory:
        because = "not heard since the controller is back"
    lose_node(job, event.node, f"{event.node} lost ({because})", because)


def _record_of_replica(job: JobState, replica: Replica, event: ev.AttemptEvent) -> None:
    match event:
        case ev.ReplicaProgressed() | ev.ReplicaStepped():
            _progressed(job, replica, event)
        case ev.ReplicaSpent():
            pass  # decides nothing: it is recorded for the time accounts
        case ev.ReplicaStarted():
            note_started(job, replica, event)
        case ev.ReplicaStopped():
            note_stopped(job, replica, event)
            job.facts.append(Ended(replica.id))
        case ev.ReplicaReady():
            note_checked(job, replica, event)
        case ev.ReplicaPublished():
            note_published(job, replica, event)
        case ev.ReplicaAcknowledged():
            note_acknowledged(job, replica, event)
        case ev.ReplicaSampling():
            note_sampling(job, replica, event)
        case ev.ReplicaStartsCold():
            role = job.roles[replica.id.role]
            if not role.is_cold:
                role.is_cold = True
                text = f"{role.spec.name} starts cold on {replica.node}: {event.detail}"
                job.note("role_cold", role.spec.name, text, "warning")
        case ev.ReplicaElastic():
            replica.is_elastic = True
        case ev.ReplicaExited():
            note_exited(job, replica, event)
            job.facts.append(Ended(replica.id))
        case ev.ReplicaStalled():
            note_stalled(job, replica, event)
        case ev.ReplicaRevived():
            note_revived(job, replica)
        case ev.StepTold():
            note_step(job, replica, event)
        case ev.ReplicaLeftStep():
            note_left(job, replica)
            job.facts.append(event)
        case _:
            job.facts.append(event)


def _progressed(job: JobState, replica: Replica, event: ev.ReplicaProgressed | ev.ReplicaStepped) -> None:
    """Record a report of steps. Progress is to be further than ever (R8).

    Counted steps may have begun anywhere: only a count that no attempt has reached before is sure to be further. A
    single step is not: a job that merely re-forms may take one each time. Counts lag: they do not say who is behind.
    """
    world = job.worlds[replica.world]
    if isinstance(event, ev.ReplicaStepped):
        if event.steps > world.counted:
            world.counted, world.progressed = event.steps, True
    else:
        if replica.step <= 0 < event.step:
            note_restore(job, replica, event.step)
        replica.step = event.step
        if event.step > world.step:
            world.step, world.progressed = event.step, True
        if event.step <= 0:
            return  # a script may report at its start that it has done none
    if world.stepped_ns is None:
        job.facts.append(event)


def _current(job: JobState, replica: ReplicaId, attempt: int) -> Replica | None:
    """Return the replica, if that attempt is its present one and not over; else None (R20)."""
    found = job.replicas.get(replica)
    if found is None or found.attempt != attempt or not found.is_live:
        return None
    return found


def _record_item(job: JobState, item: ev.InventoryItem) -> None:
    """Record an item of a node's inventory as the events that may have been lost with the connection."""
    if item.phase in ("running", "ready"):
        record(job, ev.ReplicaStarted(item.replica, item.attempt, item.ports))
    if item.phase == "ready":
        record(job, ev.ReplicaReady(item.replica, item.attempt))
    if item.phase == "suspended" and item.exited is None:
        record(job, ev.ReplicaStopped(item.replica, item.attempt, suspended=True))
    if item.phase == "stopped":
        record(job, ev.ReplicaStopped(item.replica, item.attempt))
    if item.exited is not None:
        record(job, item.exited)


def _store_lost(job: JobState, event: ev.StoreLost) -> None:
    """Record that a world's present store died: the world re-forms at no cost, as no user code has failed."""
    world = job.worlds.get(event.world)
    if world is None or world.generation != event.generation or world.store_node is None or job.ending:
        return
    cause = f"the store of {world.name} (generation {world.generation}) died" + (event.detail and f": {event.detail}")
    if world.phase in ("opening", "running"):
        forget_store(job, world)
        job.facts.append(Change("store_lost", world.name, cause, (world.name,), "not counted"))


def note_restore(job: JobState, replica: Replica, step: int) -> None:
    """Record that the first step of an attempt is older than the latest checkpoint of an earlier generation.

    Who picks a checkpoint by himself, such as the newest name as text, does the same steps again after every restart,
    and nothing else looks wrong. A mate in a joint world may count in another way. `step` is the first above 0.
    """
    world = job.worlds[replica.world]
    latest = world.checkpoint
    if latest is None or latest.generation >= world.generation or latest.replica.role != replica.id.role:
        return
    if step >= latest.step or (world.name, world.generation) in ((old.world, old.generation) for old in job.restores):
        return
    found = OldRestore(job.now, world.name, world.generation, replica.id, step, latest.step)
    job.restores.append(found)
    job.note("old_restore", replica.id, found.text, "warning")
