"""Services that run and do nothing, since they hang or their node stands still: whoever needs one waits in its work.

One that is gone is another matter: who reconnects waits for it, who restarts with it does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowdist.control.protocol.ids import ReplicaId

if TYPE_CHECKING:
    from flowdist.sim.engine.simulation import Simulation


class Standstill:
    """`stall` and `go_on` of `sim.work` are told of the worlds that wait."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._since: dict[tuple[ReplicaId, int], int] = {}  # attempts, and from when on
        self.hung: dict[tuple[ReplicaId, int], None] = {}  # those of any role that will never do anything again

    def begins(self, replica: ReplicaId, attempt: int) -> None:
        """An attempt does nothing from now on; of a task its own world says so."""
        if self._sim.graph.role(replica.role).kind == "service":
            self._since[replica, attempt] = self._sim.queue.now
            for world in self._sim.work.users(replica.role):
                self._sim.work.stall(world, f"{replica} stands still")

    def ends(self, replica: ReplicaId) -> None:
        """It does something again, or is gone, or another attempt serves in its place."""
        for key in [key for key in self._since if key[0] == replica]:
            del self._since[key]
            for world in self._sim.work.users(replica.role):
                self._sim.work.go_on(world, f"{replica} stands still")

    def output_ns(self, replica: ReplicaId, attempt: int) -> int | None:
        """When it wrote into its log last: a service does all the time. None for tasks, which report steps."""
        if self._sim.graph.role(replica.role).kind != "service":
            return None
        return self._since.get((replica, attempt), self._sim.queue.now)

    def has_begun(self, replica: ReplicaId, attempt: int) -> bool:
        """It is a service, and stands still."""
        return (replica, attempt) in self._since
