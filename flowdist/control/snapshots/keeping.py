"""Upkeep of snapshots: buddies are named, old snapshots released, and one that is lost is not read any longer (R24).

Five snapshots of a world are kept at most, so that its memory has a bound. A snapshot is *full* if each shard has as
many copies as the nodes of the world can hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowdist.control.incidents.recovery import open_incident
from flowdist.control.incidents.restart_set import closure
from flowdist.control.job.facts import FREE
from flowdist.control.job.state import JobState, Snapshot, World
from flowdist.control.protocol.effects import ReleaseCopies, SetBuddies
from flowdist.control.protocol.ids import NodeName, WorldName
from flowdist.control.rules import SNAPSHOT_LOST
from flowdist.control.snapshots.buddies import buddies, place_of


def worlds_with_snapshots(job: JobState) -> list[World]:
    """Return the worlds that have snapshots in memory, in the order of the graph."""
    names = [role.worlds[0] for role in job.roles.values() if role.spec.snapshots is not None]
    return [job.worlds[name] for name in dict.fromkeys(names)]


def newest_snapshot(world: World) -> Snapshot | None:
    """Return the newest snapshot of a world that is whole; None if it has none."""
    return max([each for each in world.snapshots.values() if each.least], key=lambda each: each.age, default=None)


def candidate(world: World) -> Snapshot | None:
    """Return what the next generation would go on from: the newest whole snapshot, unless a checkpoint is further."""
    newest = newest_snapshot(world)
    if newest is None or (world.checkpoint is not None and world.checkpoint.step > newest.step):
        return None
    return newest


def keep_snapshots(job: JobState, names: Sequence[WorldName]) -> None:
    """Do for each of these worlds, which have changed, what follows from its copies and nodes."""
    for name in names:
        world = job.worlds[name]
        if job.roles[world.roles[0]].spec.snapshots is None:
            continue
        release_old(job, world)
        if world.phase != "running":
            continue
        if world.has_other_nodes:
            _name_buddies(job, world)
        if has_lost_state(world):
            _read_another(job, world)


def release_old(job: JobState, world: World) -> None:
    """Have the vaults drop the snapshots of a world that are not kept, and forget these."""
    if len(world.snapshots) < 2 and world.phase not in ("succeeded", "ended"):
        return
    _release(job, world, world.snapshots.keys() - {each.age for each in kept_snapshots(world)})


def give_up(job: JobState, world: World) -> None:
    """Have the vaults drop all snapshots of a world, and tell the user: none could be read, and a checkpoint is there.

    The memory is free then, if it was that which readers lacked.
    """
    assert world.reads is not None and world.checkpoint is not None
    many = "a generation has" if world.unread == 1 else f"{world.unread} generations in a row have"
    what = f"{many} failed before the first step with the snapshot of step {world.reads.step}"
    text = f"{what}; the checkpoint of step {world.checkpoint.step} is next"
    job.note("snapshots_given_up", world.name, f"{world.name}: {text}", "warning")
    _release(job, world, world.snapshots.keys())
    world.unread = 0


def _release(job: JobState, world: World, ages: Iterable[tuple[int, int]]) -> None:
    for age in sorted(ages):
        snapshot = world.snapshots.pop(age)
        holders = {holder: None for holders in snapshot.copies.values() for holder in holders}
        for name in sorted(holders | dict.fromkeys(world.buddies)):
            job.emit(ReleaseCopies(name, world.name, *age))


def kept_snapshots(world: World) -> list[Snapshot]:
    """Return the snapshots of a world that may still be needed; none if it has ended.

    That is the newest full one, so that nothing older is needed, and of those after it: the oldest, of which copies are
    under way, the newest whole one, and the last two, which may become whole. One that is not whole when its generation
    is over never becomes whole.
    """
    if world.phase in ("succeeded", "ended"):
        return []
    found = [each for each in world.snapshots.values() if each.least or each.generation == world.generation]
    found.sort(key=lambda each: each.age)
    most = max(1, wanted_copies(world))
    full = [i for i, each in enumerate(found) if each.least >= most][-1:]
    whole = [i for i, each in enumerate(found) if each.least][-1:]
    after = list(range(full[0] + 1 if full else 0, len(found)))
    return [found[i] for i in sorted({*full, *whole, *after[:1], *after[-2:]})]


def wanted_copies(world: World) -> int:
    """Return how many copies each shard of the world can have, its nodes being what they are; 0: nothing is known."""
    return max([1 + len(order.buddies) for order in world.buddies.values()], default=0)


def _name_buddies(job: JobState, world: World) -> None:
    """Tell the vaults of a running world their buddies, if these have changed."""
    wanted = buddies_of(job, world)
    changed = [order for name, order in wanted.items() if world.buddies.get(name) != order]
    world.buddies, world.has_other_nodes = wanted, False
    for order in changed:
        job.emit(order)


def buddies_of(job: JobState, world: World) -> dict[NodeName, SetBuddies]:
    """Return the order to each vault of a world that names its buddies, from the nodes of its members alone."""
    spec = job.roles[world.roles[0]].spec.snapshots
    assert spec is not None
    names = {member.node: None for member in job.members_of(world) if member.node is not None}
    nodes = [node for name in names if (node := job.nodes[name]).usable and node.vault_port]
    nodes.sort(key=lambda node: node.order)
    places = [(node.spec.name, place_of(node.spec.name, node.spec.labels, spec.apart)) for node in nodes]
    addresses = {node.spec.name: f"{node.address}:{node.vault_port}" for node in nodes}
    before = {name: [buddy for buddy, _ in order.buddies] for name, order in world.buddies.items()}
    found = buddies(places, spec.copies, before)
    return {
        name: SetBuddies(name, world.name, tuple((each, addresses[each]) for each in of_node))
        for name, of_node in found.items()
    }


def has_lost_state(world: World) -> bool:
    """Return whether a generation reads a snapshot of which a shard is lost: its members cannot start.

    They know the holders that were named to them. Copies that came later are for the next generation.
    """
    if world.reads is None or world.phase != "running":
        return False
    snapshot = world.snapshots.get((world.reads.generation, world.reads.step))
    return snapshot is None or not snapshot.least or world.is_unreadable


def _read_another(job: JobState, world: World) -> None:
    """Re-form a world free of charge, because the snapshot that it reads has lost a shard: all have to read another."""
    assert world.reads is not None
    reason = f"{world.name} cannot read the snapshot of step {world.reads.step} any more"
    world.reads = None
    open_incident(job, SNAPSHOT_LOST, world.name, reason, FREE, closure(job, [world.name]))
