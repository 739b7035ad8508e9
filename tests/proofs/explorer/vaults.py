"""The vault of a node: which copies of shards its process holds, and which may still come (R24).

The first generation of a gang saves one snapshot: rank 0 as soon as it runs, the others at any time or never, also when
their worker has ended, or the generation is over. Only the shard of rank 0 gets to the other nodes. So the snapshot
becomes whole at any time or never, and one node has all of it. With more copies, or generations that save, the smallest
job has more states than can be tried.

A node knows no other node, so the model has more than can happen: the shard of rank 0 may come as soon as the own order
to start is there, whether or not rank 0 has ever run, and whoever the buddies are. A new vault may get it again. That
is safe: a property that holds in more orders of events holds in those that can happen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flowdist.control.controller import Controller
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import OfVault, ReleaseCopies, SetBuddies, StartReplica
from flowdist.control.protocol.events import Event
from flowdist.control.protocol.ids import NodeName, SnapshotRef, WorldName
from flowdist.graph import RoleGraph
from flowdist.record.journal import Header, record
from tests.proofs.judge.snapshots import snapshot_complaints

SAVED_STEP = 1  # of each snapshot
VAULT_PORT = 7_000
SAVED_GENERATION = 1  # the only one that saves


@dataclass(slots=True)
class VaultState:
    """The process of a vault, or the lack of one. `port` is the one on which it listens, or 0.

    `number` counts the vaults that the node has had since it started, so that each listens on another port. `held` are
    the copies that it has, and `to_come` those that it may get, as its agent will be told. `buddies` are those of each
    world, as the last order names them.
    """

    port: int = 0
    number: int = 0
    held: dict[io.CopyStored, None] = field(default_factory=dict)
    to_come: dict[io.CopyStored, None] = field(default_factory=dict)
    buddies: dict[WorldName, tuple[NodeName, ...]] = field(default_factory=dict)

    def expect_others(self, start: StartReplica) -> None:
        """Expect the shard of rank 0 of a generation, from its node."""
        if start.rank > 0 and _saves(start):
            self.to_come[_shard_of(start, 0)] = None

    def expect_own(self, start: StartReplica) -> None:
        """Expect the shard of a worker that runs. It may come once the worker has ended: the vault outlives it."""
        if _saves(start):
            self.to_come[_shard_of(start, start.rank)] = None

    def hold(self, shard: io.CopyStored) -> None:
        """Hold a copy that was to come."""
        del self.to_come[shard]
        self.held[shard] = None

    def obey(self, order: OfVault) -> None:
        """Carry out an order: keep who the buddies are, or drop all copies of a snapshot."""
        match order:
            case SetBuddies() if self.port:
                self.buddies[order.world] = tuple(name for name, _ in order.buddies)
            case ReleaseCopies():
                released = (order.world, order.generation, order.step)
                kept = [each for each in self.held if (each.world, each.generation, each.step) != released]
                self.held = dict.fromkeys(kept)
            case _:
                pass


def has_vaults(graph: RoleGraph) -> bool:
    """Return whether a role of the job has snapshots, so that each node has a vault."""
    return any(role.snapshots is not None for role in graph.roles)


def _saves(start: StartReplica) -> bool:
    return start.generation == SAVED_GENERATION


def _shard_of(start: StartReplica, rank: int) -> io.CopyStored:
    """Return the shard of a rank in the generation of a start order, as a vault acknowledges it."""
    digest = f"{start.generation}/{rank}"
    return io.CopyStored(start.world, start.generation, SAVED_STEP, rank, start.world_size, 1, digest)


def is_held(held: Iterable[io.CopyStored], snapshot: SnapshotRef, rank: int) -> bool:
    """Return whether the shard of a rank in a snapshot is among the copies of a vault."""
    wanted = (snapshot.generation, snapshot.step, rank)
    return any((each.generation, each.step, each.rank) == wanted for each in held)


def judge_starts(graph: RoleGraph, fresh: Controller, entries: Iterable[tuple[Event, int]]) -> None:
    """Have the judge of snapshots hear a record, which a fresh controller answers anew.

    Raises:
        AssertionError: A start order goes on from another snapshot than it should, by the record alone.
    """
    header = Header(graph, tuple(node.name for node in graph.cluster.nodes))
    records = [record(n, at, event, fresh.handle(event, at)) for n, (event, at) in enumerate(entries, 1)]
    wrong = snapshot_complaints([header, *records])
    assert not wrong, "; ".join(complaint.text for complaint in wrong)
