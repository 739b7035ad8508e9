"""Copies of checkpoints in the memory of peers: whether a generation has to read its checkpoint from the disk.

Each node of a world has, in its memory, the parts of the checkpoint that its own workers wrote, and a copy of those of
another node. So after the loss of one node all parts are in memory still. After the loss of a second one, before the
world works again, they may not be, and all read from the disk.
"""

from __future__ import annotations

from flowdist.control.protocol.ids import NodeName
from flowdist.graph import WorkloadSpec
from flowdist.sim.engine.node import SimNode
from flowdist.sim.user_code.workload import WorldModel


class PeerMemory:
    """The nodes that have the checkpoints of each world in memory.

    Args:
        nodes: The nodes by name.
    """

    def __init__(self, nodes: dict[NodeName, SimNode]) -> None:
        self._nodes = nodes
        self._holders: dict[str, dict[NodeName, int]] = {}  # by world: its nodes, and the number of earlier agents

    def begin(self, world: str, model: WorldModel) -> None:
        """Note that the members of a generation have restored their state and work: their nodes have the copies now."""
        names = dict.fromkeys(start.node for start in model.members.values())
        self._holders[world] = {name: self._nodes[name].starts for name in names}

    def restore_ns(self, world: str, load: WorkloadSpec) -> int:
        """Return how long a member of a new generation needs to read its checkpoint, in ns."""
        if load.peer_restore_ns is None:
            return load.restore_ns
        lost = sum(self._is_lost(name, starts) for name, starts in self._holders.get(world, {}).items())
        return load.restore_ns_after(lost)

    def _is_lost(self, name: NodeName, starts: int) -> bool:
        """Return whether the memory of a node is gone, or cannot be reached, since it had so many earlier agents."""
        node = self._nodes.get(name)
        return node is None or not node.is_alive or node.starts != starts or node.net.is_cut("up")
