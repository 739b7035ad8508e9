"""Services as their users see them: a world that depends on a service waits while a replica of it is away."""

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
        self._away: dict[ReplicaId, None] = {}  # replicas that served before, and do not now

    def begin(self, replica: ReplicaId, attempt: int) -> None:
        """Note that a replica serves, for the first time or again, and resume the worlds that waited for it."""
        self._worlds.serving.setdefault(replica.role, {})[replica] = attempt
        self._away.pop(replica, None)
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
        self._away[replica] = None
        self._accounts.stop_serving(replica, self._ctx.queue.now)
        for world in self._waiting_users(replica.role):
            self._worlds.stall(world, str(replica))
        self._partitions.update_users(replica.role)

    def forget_unseated(self) -> None:
        """Resume the users of replicas that have lost their seat: no list of addresses has them any more."""
        if not self._away:
            return
        for replica in [replica for replica in self._away if self._ctx.job.replicas[replica].node is None]:
            del self._away[replica]
            for world in self._waiting_users(replica.role):
                self._worlds.resume(world, str(replica))

    def _waiting_users(self, service: str) -> list[str]:
        """Return the worlds that wait while a replica of the service is away.

        A world that is restarted with the service need not wait. If the service runs user code every user waits,
        since a call to a replica that is away would fail.
        """
        return self._worlds.users(service, None if self._code.has_model(service) else "reconnect")
