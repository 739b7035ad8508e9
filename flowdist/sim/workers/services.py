"""Services as their users see them: a world that depends on a service waits while a replica of it is away or stalled.

A replica is away once it has ended: its users wait for the next attempt, or are restarted with it. A replica that
hangs, or whose node is paused, runs and does nothing.
"""

from __future__ import annotations

from flowdist.control.protocol.ids import ReplicaId
from flowdist.record.accounts import Accounts
from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.workers.partitions import Partitions
from flowdist.sim.workers.worlds import Worlds


class Services:
    """The replicas of services that serve, or are away for now."""

    def __init__(
        self, ctx: Context, worlds: Worlds, partitions: Partitions, code: UserCode, accounts: Accounts
    ) -> None:
        self._ctx, self._worlds, self._partitions = ctx, worlds, partitions
        self._code, self._accounts = code, accounts
        self.away: dict[ReplicaId, None] = {}  # replicas that served before, and do not now

    def begin(self, replica: ReplicaId, attempt: int) -> None:
        """Note that a replica serves, for the first time or again, and resume the worlds that waited for it."""
        self._worlds.serving.setdefault(replica.role, {})[replica] = attempt
        self.away.pop(replica, None)
        self._accounts.move(replica, "productive", self._ctx.queue.now)
        for world in self._waiting_users(replica.role):
            self._worlds.resume(world, str(replica))
        self._partitions.update_users(replica.role)

    def end(self, replica: ReplicaId, attempt: int) -> None:
        """Note that an attempt has ended. Its users wait, unless another attempt serves already.

        That is so when its node was paused and the replica was replaced meanwhile.
        """
        serving = self._worlds.serving.get(replica.role, {})
        if serving.get(replica) != attempt:
            return
        del serving[replica]
        self.away[replica] = None
        self._accounts.stop_serving(replica, self._ctx.queue.now)
        for world in self._waiting_users(replica.role):
            self._worlds.stall(world, str(replica))
        self._partitions.update_users(replica.role)

    def forget_unseated(self) -> None:
        """Resume the users of replicas that have lost their seat: no list of addresses has them any more."""
        for replica in [replica for replica in self.away if self._ctx.job.replicas[replica].node is None]:
            del self.away[replica]
            for world in self._waiting_users(replica.role):
                self._worlds.resume(world, str(replica))

    def _waiting_users(self, service: str) -> list[str]:
        """Return the worlds that wait while a replica of the service is away.

        A world that is restarted with the service need not wait. If the service runs user code every user waits,
        since a call to a replica that is away would fail.
        """
        return self._worlds.users(service, None if self._code.has_model(service) else "reconnect")


class StalledServices:
    """The attempts of services that do nothing, and since when.

    `hung` holds the attempts of all roles that will never do anything again, in the order in which they hung.
    """

    def __init__(self, ctx: Context, worlds: Worlds) -> None:
        self._ctx, self._worlds = ctx, worlds
        self._since: dict[tuple[ReplicaId, int], int] = {}
        self.hung: dict[tuple[ReplicaId, int], None] = {}

    def begin(self, replica: ReplicaId, attempt: int) -> None:
        """Let an attempt do nothing from now on. Only services count: a task holds up its own world by itself."""
        if self._ctx.graph.role(replica.role).kind == "service":
            self._since[replica, attempt] = self._ctx.queue.now
            for world in self._worlds.users(replica.role):
                self._worlds.stall(world, _why(replica))

    def end(self, replica: ReplicaId) -> None:
        """Resume the users of a replica that works again, has ended, or is served by another attempt."""
        for key in [key for key in self._since if key[0] == replica]:
            del self._since[key]
            for world in self._worlds.users(replica.role):
                self._worlds.resume(world, _why(replica))

    def output_ns(self, replica: ReplicaId, attempt: int) -> int | None:
        """Return when an attempt wrote its last output, in ns: now, for a service that works; None for tasks."""
        if self._ctx.graph.role(replica.role).kind != "service":
            return None
        return self._since.get((replica, attempt), self._ctx.queue.now)

    def has_begun(self, replica: ReplicaId, attempt: int) -> bool:
        """Return whether the attempt is a service that does nothing."""
        return (replica, attempt) in self._since


def _why(replica: ReplicaId) -> str:
    return f"{replica} stands still"
