"""The controller objects to nothing that an honest agent says, whatever faults befall it."""

from __future__ import annotations

import pytest

from flowdist.control.connection.objections import objection
from flowdist.control.invariants import Checks
from flowdist.control.protocol.messages import ToController
from flowdist.sim.engine.controller import SimController
from flowdist.sim.faults.nemesis import Nemesis
from flowdist.sim.simulation import Simulation
from flowdist.testing.campaign import horizon
from flowdist.testing.kit import graph_of
from tests.choosing import examples
from tests.sim.test_simulation import TOPOLOGIES


class Objecting(SimController):
    """A controller that fails the test if it would refuse a message."""

    def hear(self, message: ToController) -> None:
        assert objection(message, self._ctx.controller.state, message.node) == ""
        super().hear(message)


class Objected(Simulation):
    """A simulation with that controller."""

    def _new_controller(self, checks: Checks) -> SimController:
        return Objecting(self.ctx, self.nodes, self, checks)


@pytest.mark.parametrize("name", ["gang.py", "ps.py", "core.py"])
def test_nothing_that_an_honest_agent_says_is_refused(name: str) -> None:
    graph = graph_of(TOPOLOGIES / name)
    until = horizon(graph)
    for seed in range(examples(8, 200)):
        result = Objected(graph, Nemesis(graph, until).plan(seed), seed=seed).run(until)
        assert result.violation is None, f"seed {seed}"
