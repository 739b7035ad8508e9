"""Start-ups of simulated workers: how long each takes, cold on a node without the modules of the role, or warm.

A production node imports the modules of the workers once, in a prefix, as soon as it arrives (`import_ns`). Its
workers are forked when that is done, and start warm; `SimNode` lets them wait. A node that joins a running job imports
first too, and worlds grow onto it afterwards (R13). Without `import_ns`, the first start of a role on a node is cold.

With its start-up, an attempt gets the pace of its slowest worker, which it keeps until it ends.
"""

from __future__ import annotations

from fractions import Fraction

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName
from flowdist.faults.streams import draw, spread
from flowdist.graph import RoleGraph, WorkloadSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.user_code.workload import EVEN, WorldModel, pace_of, with_workloads


def with_startup_spread(graph: RoleGraph, share: float | None) -> RoleGraph:
    """Return the graph with this spread of start-ups in the workloads of all roles; None: the graph as it is."""
    return graph if share is None else with_workloads(graph, lambda role: {"startup_spread": share})


class StartUps:
    """The duration of each start-up of one simulation, and the roles that are warm on each node."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._warm: dict[tuple[NodeName, int, str], int] = {}  # by node, its earlier agents, and role: since when

    def takes_ns(self, node: SimNode, start: StartReplica, kept: int) -> int:
        """Return how long, in ns, the start-up takes that begins now, without its restore; `kept` workers rejoin.

        That is `rejoin_ns` of the workload if all workers were suspended. Else it is `startup_ns`, or `warm_startup_ns`
        if the role has started up on this node before or the imports of the node are done, with the seed's spread.
        """
        load = self._ctx.graph.role(start.replica.role).workload
        if kept >= node.procs_of(start.replica):
            return load.rejoin_ns or 0
        factor = spread(self._ctx.seed, f"{start.replica}#{start.attempt}", "startup", load.startup_spread)
        if load.warm_startup_ns is None:
            return round(load.startup_ns * factor)
        now, place = self._ctx.queue.now, (node.spec.name, node.starts, start.replica.role)
        warm_ns = node.imported_ns if load.import_ns else self._warm.get(place)
        if warm_ns is not None and warm_ns <= now:
            return round(load.warm_startup_ns * factor)
        takes = round(load.startup_ns * factor)
        self._warm.setdefault(place, now + takes)
        return takes

    def pace_of(self, start: StartReplica, procs: int) -> Fraction:
        """Return how many times longer than nominal, by `step_spread`, the slowest worker steps; 1 for seed 0."""
        load = self._ctx.graph.role(start.replica.role).workload
        if not load.step_spread or not self._ctx.seed:
            return EVEN
        name = f"{start.replica}#{start.attempt}"
        return pace_of(load, max(draw(self._ctx.seed, name, "step", rank) for rank in range(procs)))


class PeerMemory:
    """The nodes that have the checkpoints of each world in memory.

    Each node of a world has the parts of the checkpoint that its own workers wrote, and a copy of those of another
    node. So after the loss of one node all parts are in memory still. After the loss of a second one, before the world
    works again, they may not be, and all read from the disk.
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
