"""Network partitions between nodes: worlds with members on both sides wait, and so do worlds cut off from a service.

The agents still reach the controller. A partition from the controller is a fault of the link of a node: see `network`.
"""

from __future__ import annotations

from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.worlds import Worlds


class Partitions:
    """The partitions that are in force. Each is named by the fault that made it (`why`)."""

    def __init__(self, ctx: Context, worlds: Worlds) -> None:
        self._ctx, self._worlds = ctx, worlds
        self._parted: dict[str, tuple[str, list[str]]] = {}  # by partition: a node, and those that it cannot reach

    def part(self, why: str, node: str, others: list[str]) -> None:
        """Begin the partition `why`: workers on a node and workers on the other nodes cannot reach each other.

        Worlds that it splits or cuts off from their services wait. Workers on two of the `others` reach each other.
        """
        self._parted[why] = (node, others)
        for world in list(self._worlds.models):
            self.update(world)

    def join(self, why: str) -> None:
        """End the partition `why`: no world waits for it any more.

        Raises:
            KeyError: There is no such partition.
        """
        del self._parted[why]
        for world in list(self._worlds.models):
            self._worlds.resume(world, why)
            self._worlds.resume(world, _away(why))

    def splits(self, model: WorldModel) -> bool:
        """Return whether a partition keeps members of the world from reaching each other."""
        return any(why in self._parted for why in model.stalls)

    def waits_for_service(self, model: WorldModel) -> bool:
        """Return whether the world waits for a service that is away, does nothing, or is behind a partition."""
        return any(why not in self._parted for why in model.stalls)

    def update(self, world: str) -> None:
        """Make a world wait for each partition that splits it or cuts it off from a service, and for no other one.

        Called when the members of the world, the replicas of its services, or the partitions have changed. Nothing
        happens if the world has never started.
        """
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
        """Call `update` for each world that depends on a service, of which a replica has come or gone."""
        for world in self._worlds.users(service) if self._parted else ():
            self.update(world)

    def _nodes_of_services(self, world: str) -> set[str]:
        job, nodes = self._ctx.job, set()
        for role in job.worlds[world].roles:
            for gate in self._ctx.graph.role(role).gates:
                nodes |= {job.replicas[replica].node or "" for replica in self._worlds.serving.get(gate.role, ())}
        return nodes


def _away(why: str) -> str:
    """Return the reason to wait of a world that the partition `why` cuts off from a service."""
    return f"{why}, from a service"
