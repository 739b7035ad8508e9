"""Services as their users see them: a world that depends on a service waits while a replica of it is away or stalled.

A replica is away once it has ended: its users (the worlds of roles with a gate on its role) wait for the next attempt,
or are restarted with it. A replica that hangs, or whose node is paused, is stalled: it runs and does nothing.
"""

from __future__ import annotations

from flowdist.control.protocol.ids import ReplicaId
from flowdist.record.accounts import Accounts
from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.workers.partitions import Partitions
from flowdist.sim.workers.worlds import Worlds


class Services:
    """The replicas of services that serve or are away, and the worlds that wait for those that are away."""

    def __init__(
        self, ctx: Context, worlds: Worlds, partitions: Partitions, code: UserCode, accounts: Accounts
    ) -> None:
        self._ctx, self._worlds, self._partitions = ctx, worlds, partitions
        self._code, self._accounts = code, accounts
        self.away: dict[ReplicaId, None] = {}  # replicas that served before, and do not now

    def begin(self, replica: ReplicaId, attempt: int) -> None:
        """Record that an attempt of a service serves, book its time as productive, and resume worlds that wait for it.

        Called when the attempt has started up.
        """
        self._worlds.serving.setdefault(replica.role, {})[replica] = attempt
        self.away.pop(replica, None)
        self._accounts.move(replica, "productive", self._ctx.queue.now)
        for world in self._waiting_users(replica.role):
            self._worlds.resume(world, str(replica))
        self._partitions.update_users(replica.role)

    def end(self, replica: ReplicaId, attempt: int) -> None:
        """Record that an attempt of a service serves no more, and make the worlds that need it wait for its replica.

        Nothing happens for an attempt that does not serve: one of a task, one that has not started up, or one that was
        replaced while its node was paused.
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

    def forget_given_up(self) -> None:
        """Resume the worlds that wait for a replica without which its role goes on, and forget that replica.

        It has no seat, and no incident waits for it: it is over, or waits for room while its role has its minimum. The
        lists of addresses that workers have do not name it any more. A replica that is to move, after a back-off or as
        soon as a node has room, has no seat either; but its users wait for it until it serves there, and at the end of
        the job nothing is given up any more.
        """
        for replica in [replica for replica in self.away if self._is_given_up(replica)]:
            del self.away[replica]
            for world in self._waiting_users(replica.role):
                self._worlds.resume(world, str(replica))

    def _is_given_up(self, replica: ReplicaId) -> bool:
        job, state = self._ctx.job, self._ctx.job.replicas[replica]
        return state.node is None and job.worlds[state.world].incident is None and job.ending is None

    def _waiting_users(self, service: str) -> list[str]:
        """Return the worlds that wait while a replica of the service is away.

        A world that is restarted with the service need not wait. If the service runs user code every user waits,
        since a call to a replica that is away would fail.
        """
        return self._worlds.users(service, None if self._code.has_model(service) else "reconnect")


class StalledServices:
    """The attempts of services that run and do nothing, since when, and the worlds that wait for them.

    `hung` holds the attempts of all roles, tasks too, that hang for ever, in the order in which they began to.
    """

    def __init__(self, ctx: Context, worlds: Worlds) -> None:
        self._ctx, self._worlds = ctx, worlds
        self._since: dict[tuple[ReplicaId, int], int] = {}
        self.hung: dict[tuple[ReplicaId, int], None] = {}

    def begin(self, replica: ReplicaId, attempt: int) -> None:
        """Record that an attempt of a service does nothing from now on, and make all worlds that depend on it wait.

        Nothing happens for a task: the callers make its own world wait.
        """
        if self._ctx.graph.role(replica.role).kind == "service":
            self._since[replica, attempt] = self._ctx.queue.now
            for world in self._worlds.users(replica.role):
                self._worlds.stall(world, _why(replica))

    def end(self, replica: ReplicaId) -> None:
        """Resume the worlds that wait for a stalled replica: it works again, has ended, or another attempt serves.

        Nothing happens if the replica is not stalled.
        """
        for key in [key for key in self._since if key[0] == replica]:
            del self._since[key]
            for world in self._worlds.users(replica.role):
                self._worlds.resume(world, _why(replica))

    def output_ns(self, replica: ReplicaId, attempt: int) -> int | None:
        """Return when an attempt of a service wrote output last, in ns: now, or when it stalled.

        None for a task, whose output is not simulated.
        """
        if self._ctx.graph.role(replica.role).kind != "service":
            return None
        return self._since.get((replica, attempt), self._ctx.queue.now)

    def has_begun(self, replica: ReplicaId, attempt: int) -> bool:
        """Return whether an attempt of a service is recorded as doing nothing."""
        return (replica, attempt) in self._since


def _why(replica: ReplicaId) -> str:
    return f"{replica} stands still"
