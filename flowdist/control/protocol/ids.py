"""The names of replicas, their attempts, worlds and nodes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

NODE_RANK = "node-rank"  # a label of a node: which placeholder it takes


class ReplicaId(NamedTuple):
    """One member of a role, written as `trainer/0`. Sorts by role, then by index."""

    role: str
    index: int  # type: ignore[assignment]  # hides tuple.index

    def __str__(self) -> str:
        return f"{self.role}/{self.index}"


NodeName = str
WorldName = str  # the role of a gang, `ps/0` for a replica that is a world of its own
Addresses = tuple[tuple[str, str], ...]  # ("ps:rpc", "host:port,host:port"): all replicas of a role, in order


class OfAttempt(msgspec.Struct, frozen=True):
    """Base of all that is said about one attempt of a replica: to the controller, to its agent, and by the agent."""

    replica: ReplicaId
    attempt: int


def unnamed_nodes(first: int, total: int) -> tuple[NodeName, ...]:
    """Return placeholders for nodes that are expected, and whose names are unknown until they join."""
    return tuple(f"host {number} of {total}" for number in range(first, total + 1))


def rank_of_unnamed(name: NodeName) -> str:
    """Return the rank of a placeholder, from 0, as the label NODE_RANK has it."""
    return str(int(name.split()[1]) - 1)


def is_unnamed(name: NodeName) -> bool:
    """Return whether the name is a placeholder. The name of a real node has no space in it."""
    return " " in name
