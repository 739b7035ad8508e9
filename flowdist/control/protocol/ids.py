"""Names of replicas, worlds and nodes, and placeholders for nodes whose names are not known yet."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

NODE_RANK = "node-rank"  # key of a node's label; its value is the rank of the placeholder that the node takes


class ReplicaId(NamedTuple):
    """One member of a role, written as `trainer/0`. Sorts by role, then by index."""

    role: str
    index: int  # type: ignore[assignment]  # hides tuple.index

    def __str__(self) -> str:
        return f"{self.role}/{self.index}"


def replica_of(name: str) -> ReplicaId:
    """Return the replica of a name such as `trainer/0`."""
    role, _, index = name.rpartition("/")
    return ReplicaId(role, int(index))


NodeName = str
WorldName = str  # the role of a gang, `ps/0` for a replica that is a world of its own
ExitCause = Literal["", "collective_timeout"]  # of the end of a worker, as far as the driver recognises it
ProcessState = Literal["", "stopped", "zombie", "uninterruptible"]  # of a worker; empty: any other, or unknown
Activity = Literal["saving", "restoring"]  # what workers spend time on besides steps
Addresses = tuple[tuple[str, str], ...]  # ("ps:rpc", "host:port,host:port"): all replicas of a role, in order


class Shards(NamedTuple):
    """Shards of `ranks` ranks in a row that the same nodes hold, each node by its place among the vaults."""

    ranks: int
    holders: tuple[int, ...]


class SnapshotRef(msgspec.Struct, frozen=True):
    """Snapshot from which a generation goes on (R24): the state of its ranks at a step of an earlier one.

    `shards` says who holds the shard of each rank, in order of ranks, and `vaults` has the names of all of these nodes
    with the addresses of their vaults. Every start order has it, so it is short: a node's ranks are together in it.
    """

    generation: int
    step: int
    shards: tuple[Shards, ...]
    vaults: Addresses

    @property
    def world_size(self) -> int:
        """Return how many ranks have a shard."""
        return sum([each.ranks for each in self.shards])

    def holders(self) -> list[tuple[NodeName, ...]]:
        """Return the nodes that hold the shard of each rank."""
        names = [tuple(self.vaults[place][0] for place in each.holders) for each in self.shards]
        return [found for each, found in zip(self.shards, names, strict=True) for _ in range(each.ranks)]


class OfAttempt(msgspec.Struct, frozen=True):
    """Base of the events of the controller and the inputs and outputs of the agent that are about one attempt."""

    replica: ReplicaId
    attempt: int


class OfNode(msgspec.Struct, frozen=True):
    """Base of the events of the controller that are about a node."""

    node: NodeName


class OfCopy(msgspec.Struct, frozen=True):
    """Base of what is said of one copy: that of the shard of a rank, in the snapshot of a world at a step (R24)."""

    world: WorldName
    generation: int
    step: int
    rank: int


class OfStore(msgspec.Struct, frozen=True):
    """Base of what controller and agent hear and say about the store of one generation of a world."""

    world: WorldName
    generation: int


VERSION_MAX = 1 << 62  # of what a role publishes (R23)
RANK_DIGITS = 10  # more than any number of nodes has


def unnamed_nodes(first: int, total: int) -> tuple[NodeName, ...]:
    """Return the placeholders `host N of total`, from `first` on, for nodes of any name that are expected to join."""
    return tuple(f"host {number} of {total}" for number in range(first, total + 1))


def unnamed_of_rank(rank: str, other: NodeName) -> NodeName:
    """Return the placeholder of that rank in the row of the placeholder `other`; empty if there can be none."""
    if not (rank.isdecimal() and len(rank) < RANK_DIGITS and str(int(rank)) == rank):
        return ""
    return f"host {int(rank) + 1} of {other.split()[3]}"


def is_unnamed(name: NodeName) -> bool:
    """Return whether the name is a placeholder of `unnamed_nodes`. The name of a real node has no space in it."""
    return " " in name
