"""Network partitions between nodes: worlds with members on both sides wait, and so do worlds cut off from a service.

The agents still reach the controller. A partition from the controller is a fault of the link of a node: see `network`.
"""

from __future__ import annotations

from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.worlds import Worlds


class Partitions:
    """The partitions that are in force, by the fault that made them."""

    def __init__(self, ctx: Context, worlds: Worlds) -> None:
        self._ctx, self._worlds = ctx, worlds
        self._parted: dict[str, tuple[str, list[str]]] = {}  # nodes that cannot reach each other, by the fault

    def part(self, why: str, node: str, others: list[str]) -> None:
        """Cut the connections between the workers of a node and those of other nodes."""
        self._parted[why] = (node, others)
        for world in list(self._worlds.models):
            self.update(world)

    def join(self, why: str) -> None:
        """End a partition."""
        del self._parted[why]
        for world in list(self._worlds.models):
            self._worlds.resume(world, why)
            self._worlds.resume(world, _away(why))

    def splits(self, model: WorldModel) -> bool:
        """Return whether members of the world cannot reach each other."""
        return any(why in self._parted for why in model.stalls)

    def waits_for_service(self, model: WorldModel) -> bool:
        """Return whether the world waits for something other than a partition among its members."""
        return any(why not in self._parted for why in model.stalls)

    def update(self, world: str) -> None:
        """Stall or resume a world, whose members or services have changed, for each partition that splits it."""
        if not self._parted or world not in self._worlds.models:
            return
        members = {start.node for start in self._worlds.models[world].members.values()}
        served = self._nodes_of_services(world)
        for why, (node, others) in self._parted.items():
            is_split = node in members and not members.isdisjoint(others)
            is_away = (node in members and not served.isdisjoint(others)) or (
                node in served and not members.isdisjoint(others)
            )
            for waits, reason in ((is_split, why), (is_away, _away(why))):
                if waits:
                    self._worlds.stall(world, reason)
                else:
                    self._worlds.resume(world, reason)

    def update_users(self, service: str) -> None:
        """Update the worlds that depend on a service, of which a replica has come or gone."""
        for world in self._worlds.users(service) if self._parted else ():
            self.update(world)

    def _nodes_of_services(self, world: str) -> set[str]:
        job, nodes = self._ctx.job, set()
        for role in job.worlds[world].roles:
            for gate in self._ctx.graph.role(role).gates:
                nodes |= {job.replicas[replica].node or "" for replica in self._worlds.serving.get(gate.role, ())}
        return nodes


def _away(why: str) -> str:
    """Return the reason for which a world waits that a partition cuts off from a service, and not from a member."""
    return f"{why}, from a service"
