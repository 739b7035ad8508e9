"""Copies of snapshots, as vaults acknowledge and lose them (R24).

Only an acknowledged copy counts, on a usable node. The first one of a shard is of the generation that is present then
and of a member that lives: as with checkpoints, what comes later may be of a fenced attempt (R19). It counts on when
its generation is over, and so do further copies with its digest, as those for a new buddy.
"""

from __future__ import annotations

from bisect import bisect_right

from flowdist.control.job.state import JobState, Replica, Snapshot, World
from flowdist.control.protocol.effects import ReleaseCopies
from flowdist.control.protocol.events import CopyBroken, CopyHeld
from flowdist.control.protocol.ids import NodeName
from flowdist.control.snapshots.keeping import candidate, release_old, worlds_with_snapshots

NAMES_MAX = 8  # ranks that a text names


def hold(job: JobState, event: CopyHeld) -> None:
    """Record a copy that counts, and release what is not needed any more; have the vault drop one that cannot count."""
    world, node = job.worlds.get(event.world), job.nodes.get(event.node)
    if world is None or node is None or not node.usable or job.ending is not None:
        return
    snapshot = world.snapshots.get((event.generation, event.step))
    digests = snapshot.copies.get(event.rank, {}) if snapshot is not None else {}
    if event.node in digests:
        return
    if digests and event.digest not in digests.values():
        return  # a copy that differs from the others of its shard is none
    if not digests and not _counts(job, world, event):
        if snapshot is None:
            job.emit(ReleaseCopies(event.node, world.name, event.generation, event.step))
        return
    if snapshot is None:
        snapshot = Snapshot(event.generation, event.step, event.world_size)
        world.snapshots[snapshot.age] = snapshot
    snapshot.add(event.rank, event.node, event.digest)
    if event.generation == world.generation:  # a generation that saves its state has read it
        world.note_read()
    release_old(job, world)


def _counts(job: JobState, world: World, event: CopyHeld) -> bool:
    """Return whether the copy is of the present generation, and of a member that lives (R19)."""
    if job.roles[world.roles[0]].spec.snapshots is None or world.phase not in ("running", "stopping"):
        return False
    first = job.replicas[world.members[0]].order
    if first is None or not first.generation == world.generation == event.generation:
        return False
    if event.world_size != first.world_size or not 0 <= event.rank < first.world_size or event.step < 0:
        return False
    place = bisect_right(world.members, event.rank, key=lambda id: _rank(job.replicas[id])) - 1
    return job.replicas[world.members[place]].is_live


def _rank(member: Replica) -> int:
    assert member.order is not None
    return member.order.rank


def lose_copy(job: JobState, event: CopyBroken) -> None:
    """Record that a copy cannot be read any more."""
    world = job.worlds.get(event.world)
    if world is not None:
        lost = [each for each in _held(world, event.node) if each == (event.generation, event.step, event.rank)]
        _lose(job, world, event.node, f"broken on {event.node}" + (event.why and f" ({event.why})"), lost)


def lose_copies(job: JobState, name: NodeName, cause: str) -> None:
    """Record that a lost node holds nothing any more; `cause` says how, as in `lost with node2`."""
    for world in worlds_with_snapshots(job):
        if world.buddies.pop(name, None) is not None:
            world.has_other_nodes = True
        _lose(job, world, name, cause, _held(world, name))


def note_vault(job: JobState, name: NodeName, port: int, copies: tuple[CopyHeld, ...] = ()) -> None:
    """Record the vault of a usable node, and that it holds nothing besides these copies; port 0: it has none."""
    node = job.nodes.get(name)
    if node is None or not node.usable:
        return
    has_moved, node.vault_port = node.vault_port != port, port
    listed = {(each.world, each.generation, each.step, each.rank) for each in copies}
    for world in worlds_with_snapshots(job):
        world.has_other_nodes |= has_moved
        if has_moved:
            world.buddies.pop(name, None)  # a new vault knows no buddies, also if they are the same
        lost = [each for each in _held(world, name) if (world.name, *each) not in listed]
        _lose(job, world, name, f"lost with the vault of {name}", lost)


def _held(world: World, name: NodeName) -> list[tuple[int, int, int]]:
    """Return the copies that a node holds, each as the generation, the step and the rank."""
    found = world.snapshots.values()
    return [(*each.age, rank) for each in found for rank, holders in each.copies.items() if name in holders]


def _lose(job: JobState, world: World, name: NodeName, cause: str, lost: list[tuple[int, int, int]]) -> None:
    """Remove these copies of a node, and tell the user if the snapshot to go on from next is not whole any more.

    A snapshot that has no copy left is removed.
    """
    before, reads = candidate(world), world.reads
    named = reads.holders() if reads is not None and lost else []
    for generation, step, rank in lost:
        snapshot = world.snapshots[generation, step]
        snapshot.remove(rank, name)
        if reads is not None and (reads.generation, reads.step) == snapshot.age:
            world.is_unreadable |= not any(holder in snapshot.copies[rank] for holder in named[rank])
        if not any(snapshot.copies.values()):
            del world.snapshots[snapshot.age]
    job.touch(world)
    if before is not None and not before.least and job.ending is None:
        text = f"of step {before.step} {_shards(before)} {cause}; {_next(world)} is next"
        job.note("snapshot_lost", world.name, f"{world.name}: {text}", "warning")


def _shards(snapshot: Snapshot) -> str:
    lost = [rank for rank in range(snapshot.world_size) if not snapshot.copies.get(rank)]
    if len(lost) > NAMES_MAX:
        return f"{len(lost)} of {snapshot.world_size} shards are"
    first = ", ".join(map(str, lost[:-1]))
    return f"the shards of ranks {first} and {lost[-1]} are" if first else f"the shard of rank {lost[0]} is"


def _next(world: World) -> str:
    if (snapshot := candidate(world)) is not None:
        return f"the snapshot of step {snapshot.step}"
    return f"the checkpoint of step {world.checkpoint.step}" if world.checkpoint is not None else "the beginning"
