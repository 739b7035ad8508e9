"""Services as their users see them: a world that depends on a service waits while a replica of it is away or stalled.

A replica is away once it has ended: its users (the worlds of roles with a gate on its role) wait for the next attempt,
or are restarted with it. One that still starts up is away, too, for a user that begins to work before it serves. A
replica that hangs, or whose node is paused, is stalled: it runs and does nothing.
"""

from __future__ import annotations

from flowdist.control.protocol.ids import ReplicaId
from flowdist.record.accounts import Accounts
from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.workers.worlds import Partitions, Worlds


class Services:
    """The replicas of services that serve, are away or are stalled, and the worlds that wait for the last two.

    `hung` holds the attempts of all roles, tasks too, that hang for ever, in the order in which they began to.
    """

    def __init__(
        self, ctx: Context, worlds: Worlds, partitions: Partitions, code: UserCode, accounts: Accounts
    ) -> None:
        self._ctx, self._worlds, self._partitions = ctx, worlds, partitions
        self._code, self._accounts = code, accounts
        self.away: dict[ReplicaId, None] = {}  # replicas that users need, and that do not serve
        self.hung: dict[tuple[ReplicaId, int], None] = {}
        self._since: dict[tuple[ReplicaId, int], int] = {}  # when attempts of services have stalled

    def begin(self, replica: ReplicaId, attempt: int) -> None:
        """Record that an attempt of a service has started up and serves: worlds that wait for it resume."""
        self.thaw(replica)
        self._worlds.serving.setdefault(replica.role, {})[replica] = attempt
        self.away.pop(replica, None)
        self._accounts.move(replica, "productive", self._ctx.queue.now)
        self._resume_users(replica)
        self._partitions.update_users(replica.role)

    def await_by(self, world: str) -> None:
        """Make a world that begins to work wait for the replicas that it depends on and that do not serve yet."""
        job = self._ctx.job
        for name in dict.fromkeys(gate.role for role in job.roles_of(job.worlds[world]) for gate in role.spec.gates):
            role, serving = job.roles[name], self._worlds.serving.get(name, {})
            for replica in job.replicas_of(role) if role.spec.kind == "service" else ():
                if replica.node is not None and replica.id not in serving:
                    self.away[replica.id] = None
                    self._worlds.stall(world, str(replica.id))

    def end(self, replica: ReplicaId, attempt: int) -> None:
        """Record that an attempt of a service, if it serves, serves no more: the worlds that need it wait.

        A world that is restarted with the service need not wait. If the service runs user code every user waits, since
        a call to a replica that is away would fail.
        """
        self.thaw(replica, attempt)
        serving = self._worlds.serving.get(replica.role, {})
        if serving.get(replica) != attempt:
            return
        del serving[replica]
        self.away[replica] = None
        self._accounts.stop_serving(replica, self._ctx.queue.now)
        for world in self._worlds.users(replica.role, None if self._code.has_model(replica.role) else "reconnect"):
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
            self._resume_users(replica)

    def _is_given_up(self, replica: ReplicaId) -> bool:
        job, state = self._ctx.job, self._ctx.job.replicas[replica]
        return state.node is None and job.worlds[state.world].incident is None and job.ending is None

    def _resume_users(self, replica: ReplicaId) -> None:
        for world in self._worlds.users(replica.role):
            self._worlds.resume(world, str(replica))

    def freeze(self, replica: ReplicaId, attempt: int) -> None:
        """Record that an attempt does nothing from now on: if it is of a service, all its users wait."""
        if self._ctx.graph.role(replica.role).kind == "service":
            self._since[replica, attempt] = self._ctx.queue.now
            self._accounts.stand_still(replica, self._ctx.queue.now)
            for world in self._worlds.users(replica.role):
                self._worlds.stall(world, _why(replica))

    def thaw(self, replica: ReplicaId, attempt: int | None = None) -> None:
        """Resume the worlds that wait for a stalled attempt: it works again, or has ended; None: another one serves."""
        for key in [key for key in self._since if key[0] == replica and attempt in (None, key[1])]:
            del self._since[key]
            self._accounts.serve_again(replica, self._ctx.queue.now)
            for world in self._worlds.users(replica.role):
                self._worlds.resume(world, _why(replica))

    def output_ns(self, replica: ReplicaId, attempt: int) -> int | None:
        """Return when an attempt of a service wrote output last, in ns: now, or when it stalled; None for a task."""
        if self._ctx.graph.role(replica.role).kind != "service":
            return None
        return self._since.get((replica, attempt), self._ctx.queue.now)


def _why(replica: ReplicaId) -> str:
    return f"{replica} stands still"
