"""Start and death of the nodes of a simulation."""

from __future__ import annotations

from collections.abc import Callable

from flowdist.control.protocol.events import NodeGone
from flowdist.control.protocol.ids import NodeName
from flowdist.faults.targets import added_node
from flowdist.graph import MS, NodeSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.controller import SimController
from flowdist.sim.engine.node import SimNode

PROOF_NS = 10 * MS  # from the death of an agent to the arrival of its guardian's proof at the controller


class Machines:
    """Control of which nodes of one simulation run: it makes, starts and kills them.

    Args:
        ctx: The simulation.
        nodes: The nodes by name; shared with other parts, and filled here.
        controller: The controller to which the nodes connect.
        new_node: Makes a node from its spec and the number of earlier nodes of this name.
        arrival_ns: Time from the start of a node until its agent connects.
    """

    def __init__(
        self,
        ctx: Context,
        nodes: dict[NodeName, SimNode],
        controller: SimController,
        new_node: Callable[[NodeSpec, int], SimNode],
        arrival_ns: int = 0,
    ) -> None:
        self._arrival_ns = arrival_ns
        self._ctx, self._nodes, self._controller, self._new_node = ctx, nodes, controller, new_node

    def add(self, spec: NodeSpec) -> None:
        """Start a node with a fresh agent, and let it connect `arrival_ns` later.

        The node takes the place of the one that had its name before, if any.
        """
        before = self._nodes.get(spec.name)
        node = self._new_node(spec, before.starts + 1 if before is not None else 0)
        self._nodes[spec.name] = node
        self._controller.note_new(node)
        self._ctx.queue.after(self._arrival_ns, node.connect)

    def add_like_first(self, name: NodeName) -> None:
        """Start a node with the size and the labels of the first declared node."""
        self.add(added_node(name, self._ctx.graph))

    def kill(self, node: SimNode) -> None:
        """Kill a node, its agent and its workers. The controller gets the proof (`NodeGone`) 10 ms later."""
        node.die()
        gone = NodeGone(node.spec.name, "killed")
        self._ctx.queue.after(PROOF_NS, self._controller.handle, gone)
