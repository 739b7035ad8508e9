"""The nodes of a simulation as a cluster sees them: they come up, die, and are brought back."""

from __future__ import annotations

from collections.abc import Callable

from flowdist.control.protocol.events import NodeGone
from flowdist.control.protocol.ids import NodeName
from flowdist.faults.grammar import added_node
from flowdist.graph import MS, NodeSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.controller import SimController
from flowdist.sim.engine.node import SimNode

PROOF_NS = 10 * MS  # from the death of an agent to the proof of it by its guardian


class Machines:
    """The machines of one simulation.

    Args:
        ctx: The simulation.
        nodes: The nodes by name; shared with the parts that look nodes up.
        controller: The controller that the nodes connect to.
        new_node: Makes a node from its spec and the number of earlier starts of a node of this name.
    """

    def __init__(
        self,
        ctx: Context,
        nodes: dict[NodeName, SimNode],
        controller: SimController,
        new_node: Callable[[NodeSpec, int], SimNode],
    ) -> None:
        self._ctx, self._nodes, self._controller, self._new_node = ctx, nodes, controller, new_node

    def add(self, spec: NodeSpec) -> None:
        """Bring a node up, for the first time or again, with a fresh agent that connects at once."""
        before = self._nodes.get(spec.name)
        node = self._new_node(spec, before.starts + 1 if before is not None else 0)
        self._nodes[spec.name] = node
        self._controller.note_new(node)
        self._ctx.queue.after(0, node.connect)

    def add_like_first(self, name: NodeName) -> None:
        """Bring up one more node, as large as the first one of the cluster."""
        self.add(added_node(name, self._ctx.graph))

    def kill(self, node: SimNode) -> None:
        """Power a node off. Its guardian, on another machine, proves the death to the controller 10 ms later."""
        node.die()
        gone = NodeGone(node.spec.name, "killed")
        self._ctx.queue.after(PROOF_NS, self._controller.handle, gone)
