"""Invariants of snapshots in memory (R24): what holds of the copies of a world, and of what its members go on from."""

from __future__ import annotations

from flowdist.control.job.state import JobState, World
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import SnapshotRef

SNAPSHOTS_MAX = 5  # that a world keeps: see `keeping`


def check_snapshots(job: JobState, world: World) -> None:
    """Check the copies that a world has, and the snapshot that its generation reads (R24).

    Copies are on usable nodes, those of a shard are equal, and none is of a generation to come. All members go on from
    one snapshot, which stays whole until the world steps, or the job ends.
    """
    assert len(world.snapshots) <= SNAPSHOTS_MAX, f"{world.name} keeps {len(world.snapshots)} snapshots"
    for age, snapshot in world.snapshots.items():
        name = f"the snapshot of {world.name} at step {snapshot.step} of generation {snapshot.generation}"
        assert age == snapshot.age and 1 <= snapshot.generation <= world.generation, f"{name} is out of place"
        assert all(0 <= rank < snapshot.world_size for rank in snapshot.copies), f"{name} has a shard too many"
        counts = [len(copies) for copies in snapshot.copies.values()]
        least = min(counts) if len(counts) == snapshot.world_size else 0
        assert snapshot.least == least, f"{name} has {least} copies of each shard, not {snapshot.least}"
        for copies in snapshot.copies.values():
            assert all(job.nodes[holder].usable for holder in copies), f"{name} has a copy on a lost node"
            assert len(set(copies.values())) <= 1, f"{name} has copies of one shard that differ"
    if world.reads is not None and world.phase == "running" and job.ending is None:
        _check_reads(world, world.reads)


def _check_reads(world: World, reads: SnapshotRef) -> None:
    """Check that of each shard that a generation reads one of the holders that it knows has a copy."""
    known = world.snapshots.get((reads.generation, reads.step))
    assert known is not None and known.least, f"{world.name} reads the snapshot of step {reads.step}: it is lost"
    for rank, names in enumerate(reads.holders()):
        assert known.copies[rank].keys() & set(names), f"{world.name} reads shard {rank}: its holders have lost it"


def check_start(job: JobState, start: StartReplica, chosen: SnapshotRef) -> None:
    """Check, in the state after the event, that the snapshot of a start order is whole, older, and held as it says."""
    name = f"{start.replica} starts from step {chosen.step} of generation {chosen.generation}"
    known = job.worlds[start.world].snapshots.get((chosen.generation, chosen.step))
    assert known is not None and known.least, f"{name}, which is not whole"
    assert chosen.generation < start.generation, f"{name}, which is its own"
    for rank, names in enumerate(chosen.holders()):
        assert any(holder in known.copies[rank] for holder in names), f"{name}, whose shard {rank} is held elsewhere"
