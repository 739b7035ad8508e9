"""How replicas and worlds are named."""

from __future__ import annotations

from typing import NamedTuple

NODE_RANK = "node-rank"  # a label of a node: which of those expected without a name it is


class ReplicaId(NamedTuple):
    """One member of a role. Sorts by role, then by number; reads `trainer/0`."""

    role: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants of an id

    def __str__(self) -> str:
        return f"{self.role}/{self.index}"


NodeName = str
WorldName = str  # the role of a gang, `ps/0` for a replica that is a world of its own
Addresses = tuple[tuple[str, str], ...]  # ("ps:rpc", "host:port,host:port"): all replicas of a role, in order


def unnamed_nodes(first: int, total: int) -> tuple[NodeName, ...]:
    """Nodes that are expected, and whose names nobody knows before they come: from the `first` one on."""
    return tuple(f"host {number} of {total}" for number in range(first, total + 1))


def rank_of_unnamed(name: NodeName) -> str:
    """From 0, as the label NODE_RANK has it."""
    return str(int(name.split()[1]) - 1)


def is_unnamed(name: NodeName) -> bool:
    """Whether it stands for a node of any name. No node's own name has a space in it."""
    return " " in name
