"""Choice of what a generation goes on from: made once, for all of its ranks, when its members start (R24)."""

from __future__ import annotations

from flowdist.control.job.state import JobState, World
from flowdist.control.protocol.ids import SnapshotRef
from flowdist.control.snapshots.keeping import candidate, release_old


def choose(job: JobState, world: World) -> SnapshotRef | None:
    """Return the snapshot that the generation goes on from; None: the latest checkpoint, or the beginning.

    The user is told, unless workers that stay in place have a later state in their own memory.
    """
    world.reads = None
    snapshot = candidate(world)
    if snapshot is None:
        return None
    holders = tuple(tuple(snapshot.copies[rank]) for rank in range(snapshot.world_size))
    nodes = [job.nodes[name] for name in sorted({name for names in holders for name in names})]
    vaults = tuple((node.spec.name, f"{node.address}:{node.vault_port}") for node in nodes)
    world.reads = SnapshotRef(snapshot.generation, snapshot.step, snapshot.world_size, holders, vaults)
    release_old(job, world)
    if not any(id in job.suspended for id in world.members):
        least, most = snapshot.least, max(map(len, holders))
        many = f"{least} cop{'y' if most == 1 else 'ies'} each" if least == most else f"{least} to {most} copies each"
        shards = f"{snapshot.world_size} shard{'s' * (snapshot.world_size > 1)}"
        where = f"step {snapshot.step} of generation {snapshot.generation}, {shards}, {many}"
        job.decided("snapshot_chosen", world.name, f"{world.name} goes on from memory: {where}")
    return world.reads
