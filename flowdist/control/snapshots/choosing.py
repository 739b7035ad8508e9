"""Choice of what a generation goes on from: made once, for all of its ranks, when its members start (R24)."""

from __future__ import annotations

from itertools import groupby

from flowdist.control.job.state import JobState, World
from flowdist.control.protocol.ids import Shards, SnapshotRef
from flowdist.control.rules import is_last_restart
from flowdist.control.snapshots.keeping import candidate, give_up, release_old

UNREAD_MAX = 5  # charged restarts in a row before the first step: so often is a snapshot read in vain


def choose(job: JobState, world: World) -> SnapshotRef | None:
    """Return the snapshot that the generation goes on from; None: the latest checkpoint, or the beginning.

    The user is told, unless workers that stay in place have a later state in their own memory.
    """
    _note_unread(job, world)
    world.reads, world.is_unreadable = None, False
    snapshot = candidate(world)
    if snapshot is None:
        return None
    holders = [tuple(snapshot.copies[rank]) for rank in range(snapshot.world_size)]
    nodes = [job.nodes[name] for name in sorted({name for names in holders for name in names})]
    places = {node.spec.name: place for place, node in enumerate(nodes)}
    in_rows = [(len(list(row)), names) for names, row in groupby(holders)]
    shards = tuple(Shards(ranks, tuple([places[name] for name in names])) for ranks, names in in_rows)
    vaults = tuple((node.spec.name, f"{node.address}:{node.vault_port}") for node in nodes)
    world.reads = SnapshotRef(snapshot.generation, snapshot.step, shards, vaults)
    release_old(job, world)
    if not any(id in job.suspended for id in world.members):
        least, most = snapshot.least, max([len(each.holders) for each in shards])
        many = f"{least} cop{'y' if most == 1 else 'ies'} each" if least == most else f"{least} to {most} copies each"
        count = f"{snapshot.world_size} shard{'s' * (snapshot.world_size > 1)}"
        where = f"step {snapshot.step} of generation {snapshot.generation}, {count}, {many}"
        job.decided("snapshot_chosen", world.name, f"{world.name} goes on from memory: {where}")
    return world.reads


def _note_unread(job: JobState, world: World) -> None:
    """Count a generation that has failed before its first step with a snapshot, if it has.

    The snapshots are given up for the checkpoint, if there is one, with the last restart that the budget allows, or the
    fifth in a row.
    """
    incident = job.incident(world.incident) if world.incident is not None else None
    if world.reads is None or incident is None or not incident.counted or incident.root_role is None:
        return
    world.unread += 1
    payer = job.roles[incident.root_role]
    is_last = is_last_restart(payer.spec, payer.spent, job.now)
    if world.checkpoint is not None and (is_last or world.unread >= UNREAD_MAX):
        give_up(job, world)
