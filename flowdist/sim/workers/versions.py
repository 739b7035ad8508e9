"""Versions in a simulation (R23): what workers without user code publish and acknowledge.

A role that others need versions of publishes the step from which its generation begins, and then the step of each
checkpoint; a service publishes the number of its attempt. A replica that needs versions fetches the latest one when it
has started up, and each later one, which takes FETCH_NS. The world of a task does not step before it has the first.
Roles with a model (`simulate=`) call `ctx.publish_version` and `ctx.acknowledge_version` themselves.
"""

from __future__ import annotations

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import MS
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.worlds import Worlds

FETCH_NS = 10 * MS  # from a publication to the acknowledgement: longer than any message takes


class Versions:
    """The latest version of each role that publishes, and the replicas that fetch it. `is_used`: any role needs one."""

    def __init__(self, ctx: Context, nodes: dict[NodeName, SimNode], worlds: Worlds, code: UserCode) -> None:
        self._ctx, self._nodes, self._worlds, self._code = ctx, nodes, worlds, code
        self.is_used = any(role.versions is not None for role in ctx.graph.roles)
        self._latest: dict[str, int] = {}
        self._up: dict[ReplicaId, StartReplica] = {}  # replicas without user code that have started up
        code.on_version = self.published

    def started_up(self, start: StartReplica) -> None:
        """Begin to fetch versions for an attempt that has started up; its world waits until it has one."""
        role = self._ctx.graph.role(start.replica.role)
        if role.kind == "service" and self._publishes(role.name):
            self._publish(start, start.attempt)
        if role.versions is None or self._code.has_model(role.name):
            return
        self._up[start.replica] = start
        self._worlds.stall(start.world, _why(start.replica), for_member=True)
        if role.versions.role in self._latest:
            self._ctx.queue.after(FETCH_NS, self._acknowledge, start)

    def ended(self, replica: ReplicaId, attempt: int) -> None:
        """Forget an attempt that has ended."""
        start = self._up.get(replica)
        if start is not None and start.attempt == attempt:
            del self._up[replica]

    def saved(self, model: WorldModel, step: int) -> None:
        """Publish `step` for each role of a world that publishes and has no user code: it begins or has saved there."""
        for role in model.roles if self.is_used else ():
            members = [start for start in model.members.values() if start.replica.role == role]
            if members and self._publishes(role):
                self._publish(min(members, key=lambda start: start.rank), step)

    def published(self, start: StartReplica, version: int) -> None:
        """Record a version that a worker has published, and have the replicas that need it fetch it."""
        role = start.replica.role
        self._latest[role] = version
        for holder in list(self._up.values()):
            edge = self._ctx.graph.role(holder.replica.role).versions
            if edge is not None and edge.role == role:
                self._ctx.queue.after(FETCH_NS, self._acknowledge, holder)

    def _publishes(self, role: str) -> bool:
        return bool(self._ctx.graph.holders_of(role)) and not self._code.has_model(role)

    def _publish(self, start: StartReplica, version: int) -> None:
        self._nodes[start.node].tell(io.WorkerPublished(start.replica, start.attempt, 0, version))
        self.published(start, version)

    def _acknowledge(self, start: StartReplica) -> None:
        """Acknowledge the latest version for an attempt, unless it has ended or hangs."""
        node, key = self._nodes[start.node], (start.replica, start.attempt)
        if self._up.get(start.replica) is not start or not node.workers.get(key) or key in node.hung:
            return
        edge = self._ctx.graph.role(start.replica.role).versions
        assert edge is not None
        node.tell_of_workers(io.WorkerAcknowledged, *key, self._latest[edge.role])
        self._worlds.resume(start.world, _why(start.replica))


def _why(replica: ReplicaId) -> str:
    return f"{replica} has no version yet"
