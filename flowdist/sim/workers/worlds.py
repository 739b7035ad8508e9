"""The worlds of tasks of one simulation: what each waits for, and the end of its generations."""

from __future__ import annotations

from collections.abc import Callable

from flowdist.control.protocol.ids import ReplicaId
from flowdist.record.accounts import Accounts
from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.accounts import end_work


def _ignore(*_: object) -> None:
    return None


class Worlds:
    """The model of each world of tasks, by name.

    `models` holds the worlds, and `serving` the attempts of services that have started up, by role. Parts that plan
    for a world set `on_resume`, called when nothing keeps a world waiting any more, and `on_change`, called whenever
    a reason to wait comes or goes.
    """

    def __init__(self, ctx: Context, code: UserCode, accounts: Accounts) -> None:
        self._ctx, self._queue, self._code, self._accounts = ctx, ctx.queue, code, accounts
        self.models: dict[str, WorldModel] = {}
        self.serving: dict[str, dict[ReplicaId, int]] = {}
        self.on_resume: Callable[[str, WorldModel], None] = _ignore
        self.on_change: Callable[[str], None] = _ignore

    def model_of(self, replica: ReplicaId, attempt: int) -> WorldModel | None:
        """Return the world of which this very attempt is a member; None if it is a member of none."""
        model = self.models.get(self._ctx.job.replicas[replica].world)
        start = model.members.get(replica) if model is not None else None
        return model if start is not None and start.attempt == attempt else None

    def users(self, service: str, on_restart: str | None = None) -> list[str]:
        """Return the worlds that depend on a service.

        Args:
            service: The role.
            on_restart: Only worlds whose dependency says this ("reconnect", "restart"); None: all of them.
        """
        edges = self._ctx.graph.dependents(service)
        roles = [spec.name for spec, gate in edges if on_restart in (None, gate.on_restart)]
        return list(dict.fromkeys(world for role in roles for world in self._ctx.job.roles[role].worlds))

    def stall(self, world: str, why: str) -> None:
        """Have a world wait, in whichever generation, until `resume` is called with the same reason."""
        model = self.models.get(world)
        if model is not None:
            model.stall(why, self._queue.now)
            self.on_change(world)

    def hold(self, world: str, why: str) -> None:
        """Have a world wait, because a member of its present generation makes no progress."""
        model = self.models.get(world)
        if model is not None:
            model.hold(why, self._queue.now)
            self.on_change(world)

    def resume(self, world: str, why: str) -> None:
        """Remove a reason to wait. The world steps again when it was the last one."""
        model = self.models.get(world)
        if model is not None and model.resume(why, self._queue.now) and model.begun_ns is not None:
            self.on_resume(world, model)
        self.on_change(world)

    def halt(self, model: WorldModel) -> None:
        """End the work of the present generation and book its time."""
        self._code.halt(model)
        if model.begun_ns is not None:
            end_work(self._accounts, self._ctx.job, model, self._queue.now)
        model.halt(self._queue.now)
