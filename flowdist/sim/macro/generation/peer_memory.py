"""Copies of checkpoints in the memory of peers, in macro mode: how many nodes with them are gone (`peer_restore`).

When a generation begins to work, the nodes of its members have the parts of the checkpoint and a copy of each. A node
loses them when it dies, and they are out of reach while it is cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class PeerMemory:
    """Nodes of a gang that have its checkpoints in memory. Nodes are numbers, times are ns."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # the nodes, and how many times each had died by then
        self._deaths: Counter[int] = Counter()
        self._cut_until: dict[int, int] = {}

    def begin(self, nodes: Iterable[int | None]) -> None:
        """Note that a generation with members on these nodes begins to work; None stands for no node."""
        self._holders = {node: self._deaths[node] for node in nodes if node is not None}

    def kill(self, node: int) -> None:
        """Note that a node dies."""
        self._deaths[node] += 1

    def cut_off(self, node: int, until: int) -> None:
        """Note that a node is cut off until a time."""
        self._cut_until[node] = until

    def lost(self, now: int) -> int:
        """Return of how many nodes with a part of the checkpoint the memory is gone, or out of reach."""
        return sum(
            self._deaths[node] != deaths or now < self._cut_until.get(node, 0) for node, deaths in self._holders.items()
        )
