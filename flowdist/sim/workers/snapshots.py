"""Snapshots of simulated gangs: when they are taken, copied to buddies, and read (R24).

The copy on the own node is complete `size` / COPIED_BYTES after the step, if the worker lives until then; else it is
torn, and never acknowledged. Training waits for it: each step is longer by its part of that. Then the vault sends the
copy to one buddy after the other, each in `size` / SENT_BYTES. What is lost on the way is not sent again: the next
snapshot is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import MS, SECOND, SnapshotSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.engine.queue import Violation
from flowdist.sim.engine.vault import Shard, ShardName
from flowdist.sim.user_code.workload import COPIED_BYTES, USUAL_SIZE, WorldModel
from flowdist.sim.workers.worlds import Partitions

SENT_BYTES = 1 << 30  # a second: from node to node
READ_AGAIN_NS, READS_MAX = SECOND, 600  # how long until a shard that cannot be read is tried again, and how often


class Snapshots:
    """The snapshots of all worlds of one simulation, in the vaults of its nodes."""

    def __init__(self, ctx: Context, nodes: dict[NodeName, SimNode], partitions: Partitions) -> None:
        self._ctx, self._queue, self._nodes, self._partitions = ctx, ctx.queue, nodes, partitions
        self.is_used = any(role.snapshots is not None for role in ctx.graph.roles)
        self._taken: dict[str, tuple[int, int]] = {}  # by world: generation and step of the last one
        self._reading: dict[tuple[ReplicaId, int], int] = {}  # how often each attempt has tried to read its shards

    def plan(self, world: str, model: WorldModel) -> None:
        """Plan the next snapshot of a world, again whenever its timing has changed."""
        spec = model.pace.snapshots
        if spec is None:
            return
        generation, last = self._taken.get(world, (0, 0))
        least = max(model.step_at(self._queue.now), (last if generation == model.generation else model.first_step) + 1)
        step = -(-least // spec.every) * spec.every
        at = model.time_of_step(step) if step < model.pace.workload.steps else None
        if at is not None:
            self._queue.at(max(at, self._queue.now), self._take, world, model, model.version, step)

    def _take(self, world: str, model: WorldModel, version: int, step: int) -> None:
        """Begin the copies of all members, and plan the next snapshot."""
        if model.version != version or model.begun_ns is None or self._taken.get(world) == (model.generation, step):
            return
        self._taken[world] = (model.generation, step)
        for start in list(model.members.values()):
            node, key = self._nodes[start.node], (start.replica, start.attempt)
            if node.is_alive and node.workers.get(key) and key not in node.hung:
                names = _shards(start, node, step)
                node.vault.held.update({name: Shard() for name in names})
                self._queue.after(self._ns(start, len(names), COPIED_BYTES), self._saved, node, start, names)
        self.plan(world, model)

    def _saved(self, node: SimNode, start: StartReplica, names: list[ShardName]) -> None:
        """Complete the copies on the own node, if the workers live, and send them to the first buddy."""
        if not node.is_alive or node.waits(lambda: self._saved(node, start, names)):
            return
        key = (start.replica, start.attempt)
        if not node.workers.get(key) or key in node.hung:
            return
        self._store(node, names, start.world_size, self._size(start))
        self._send(node, start, names, list(node.vault.buddies.get(start.world, ())))

    def _send(self, node: SimNode, start: StartReplica, names: list[ShardName], buddies: list[NodeName]) -> None:
        """Begin to send copies to the first of the buddies; what it has then of a shard is torn."""
        buddy = self._nodes.get(buddies[0]) if buddies else None
        if buddy is None:
            return
        for name in names if buddy.is_alive else ():
            buddy.vault.held.setdefault(name, Shard())
        takes = self._ns(start, len(names), SENT_BYTES)
        self._queue.after(takes, self._arrived, node, buddy, start, names, buddies[1:])

    def _arrived(
        self, node: SimNode, buddy: SimNode, start: StartReplica, names: list[ShardName], others: list[NodeName]
    ) -> None:
        """Complete the copies on a buddy, unless one of the two nodes has died or they cannot reach each other."""

        def again() -> None:
            self._arrived(node, buddy, start, names, others)

        if not node.is_alive or node.waits(again):
            return
        if buddy.is_alive:
            if buddy.waits(again):
                return
            intact = [name for name in names if self._is_intact(node, name)]
            if not self._partitions.parts(node.name, buddy.name):
                self._store(buddy, intact, start.world_size, self._size(start))
        self._send(node, start, names, others)

    def _store(self, node: SimNode, names: list[ShardName], world_size: int, size: int) -> None:
        """Complete copies in a vault, which acknowledges them; one that was released meanwhile is gone."""
        for name in names:
            shard = node.vault.held.get(name)
            if shard is not None and not shard.is_whole:
                shard.is_whole = True
                node.tell(io.CopyStored(*name, world_size, size, name.digest))

    def _is_intact(self, node: SimNode, name: ShardName) -> bool:
        """Return whether a vault has a copy with the right checksum; a broken one is dropped, and reported."""
        shard = node.vault.held.get(name)
        if shard is not None and shard.is_broken:
            del node.vault.held[name]
            node.tell(io.CopyDamaged(*name, "its checksum is wrong"))
        return shard is not None and not shard.is_broken

    def begin_read(self, node: SimNode, start: StartReplica) -> int | None:
        """Note that an attempt reads its part of a snapshot; return how long that takes (ns), None if it reads none."""
        if start.snapshot is None:
            return None
        self._reading[start.replica, start.attempt] = 0
        wanted = self._wanted(node, start)
        holders = start.snapshot.holders()
        is_near = all(node.name in holders[rank] for rank in wanted)
        return self._ns(start, len(wanted), COPIED_BYTES if is_near else SENT_BYTES)

    def read(self, node: SimNode, start: StartReplica, then: Callable[[SimNode, StartReplica], None]) -> bool:
        """Return whether an attempt has its state: it read none, or now all shards that it needs.

        Otherwise `then` is called a second later. A broken copy is dropped, so that the controller learns of it.
        """
        key = (start.replica, start.attempt)
        tries = self._reading.get(key)
        if tries is None:
            return True
        assert start.snapshot is not None
        holders = start.snapshot.holders()
        # all of them: each may be broken
        found = [self._find(node, start, rank, holders[rank]) for rank in self._wanted(node, start)]
        if all(found):
            del self._reading[key]
            return True
        self._reading[key] = tries + 1
        if tries < READS_MAX:
            self._queue.after(READ_AGAIN_NS, then, node, start)
        return False

    def _wanted(self, node: SimNode, start: StartReplica) -> range:
        """Return the ranks of the snapshot whose shards a replica reads: in another world size, others than its own."""
        assert start.snapshot is not None
        size, ranks = start.snapshot.world_size, node.procs_of(start.replica)
        first = start.rank * size // start.world_size
        return range(first, max(first + 1, -(-(start.rank + ranks) * size // start.world_size)))

    def _find(self, node: SimNode, start: StartReplica, rank: int, holders: Sequence[NodeName]) -> bool:
        """Return whether one of the holders of a shard can be reached, and has it; Violation if a copy is torn."""
        chosen = start.snapshot
        assert chosen is not None
        name = ShardName(start.world, chosen.generation, chosen.step, rank)
        for holder in (self._nodes.get(each) for each in holders):
            if holder is None or not holder.is_alive or holder.is_paused:
                continue
            if self._partitions.parts(node.name, holder.name) or not self._is_intact(holder, name):
                continue
            if not holder.vault.held[name].is_whole:
                raise Violation("torn snapshot", f"{start.replica} reads {name.digest} of {holder.name}, which is torn")
            return True
        return False

    def _spec(self, start: StartReplica) -> SnapshotSpec:
        spec = self._ctx.graph.role(start.replica.role).snapshots
        assert spec is not None
        return spec

    def _size(self, start: StartReplica) -> int:
        return self._spec(start).size or USUAL_SIZE

    def _ns(self, start: StartReplica, shards: int, bytes_per_s: int) -> int:
        """Return how long the copies of so many shards of a replica take, in ns."""
        return max(MS, shards * self._size(start) * SECOND // bytes_per_s)


def _shards(start: StartReplica, node: SimNode, step: int) -> list[ShardName]:
    ranks = range(start.rank, start.rank + node.procs_of(start.replica))
    return [ShardName(start.world, start.generation, step, rank) for rank in ranks]
