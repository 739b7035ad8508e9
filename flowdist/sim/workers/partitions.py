"""Nodes whose workers do not hear each other: their worlds stand still, and so do those whose service is on the other
side. Agents and controller hear each other all the same, but for a partition from the controller: that is the link's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowdist.graph import RoleGraph
from flowdist.sim.workers.workload import WorldModel

if TYPE_CHECKING:
    from flowdist.sim.engine.simulation import Simulation


class Partitions:
    """`stall` and `go_on` of `sim.work` are told of the worlds that wait."""

    def __init__(self, sim: Simulation, models: dict[str, WorldModel]) -> None:
        self._sim, self._models = sim, models
        self._parted: dict[str, tuple[str, list[str]]] = {}  # nodes that cannot speak to each other, by the fault
        self._services = services_of(sim.graph)

    def part(self, why: str, node: str, others: list[str]) -> None:
        """A node and some others cannot speak to each other."""
        self._parted[why] = (node, others)
        for world in list(self._models):
            self.look(world)

    def join(self, why: str) -> None:
        """They can again."""
        del self._parted[why]
        for world in list(self._models):
            self._sim.work.go_on(world, why)
            self._sim.work.go_on(world, _away(why))

    def splits(self, model: WorldModel) -> bool:
        """Some of its members cannot speak to others."""
        return any(self.is_of_members(why) for why in model.stalls)

    def is_of_members(self, why: str) -> bool:
        """A world stalls because of a partition among its members, and not for a service."""
        return why in self._parted

    def look(self, world: str) -> None:
        """A world with members on both sides of a partition cannot go on, nor one with a service on the other side."""
        if not self._parted or world not in self._models:
            return
        members = {start.node for start in self._models[world].members.values()}
        served = self._nodes_of_services(world)
        for why, (node, others) in self._parted.items():
            is_split = node in members and not members.isdisjoint(others)
            is_away = (node in members and not served.isdisjoint(others)) or (
                node in served and not members.isdisjoint(others)
            )
            for is_so, says in ((is_split, why), (is_away, _away(why))):
                if is_so:
                    self._sim.work.stall(world, says)
                else:
                    self._sim.work.go_on(world, says)

    def look_at_users(self, service: str) -> None:
        """A replica of it is there, or gone."""
        for world in self._sim.work.users(service) if self._parted else ():
            self.look(world)

    def _nodes_of_services(self, world: str) -> set[str]:
        nodes = set()
        for role in self._sim.job.worlds[world].roles:
            for service in self._services[role]:
                nodes |= {self._sim.job.replicas[replica].node or "" for replica in self._sim.work.serving(service)}
        return nodes


def services_of(graph: RoleGraph) -> dict[str, tuple[str, ...]]:
    """The services that each role depends on."""
    return {
        role.name: tuple(gate.role for gate in role.gates if graph.role(gate.role).kind == "service")
        for role in graph.roles
    }


def _away(why: str) -> str:
    """Why a world stalls that waits for its service, other than for a member."""
    return f"{why}, from a service"
