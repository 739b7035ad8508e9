"""Copies of checkpoints in the memory of peers, in macro mode: how many nodes with them are gone (`peer_restore`).

When a generation begins to work, the nodes of its members have the parts of the checkpoint and a copy of each. A node
loses them when it dies, and they are out of reach while it is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable


class PeerMemory:
    """Nodes of a gang that have its checkpoints in memory. Nodes are numbers, times are ns."""

    def __init__(self) -> None:
        self._holders: set[int | None] = set()
        self._dead: set[int] = set()  # those of them that have died since
        self._cut_until: dict[int, int] = {}

    def begin(self, nodes: Iterable[int | None]) -> None:
        """Note that a generation with members on these nodes begins to work; None stands for no node."""
        self._holders = set(nodes)
        self._dead.clear()

    def kill(self, node: int) -> None:
        """Note that a node dies."""
        if node in self._holders:
            self._dead.add(node)

    def cut_off(self, node: int, until: int) -> None:
        """Note that a node is cut off until a time."""
        self._cut_until[node] = until

    def lost(self, now: int) -> int:
        """Return of how many nodes with a part of the checkpoint the memory is gone, or out of reach."""
        away = {node for node, until in self._cut_until.items() if now < until and node in self._holders}
        return len(self._dead | away)
