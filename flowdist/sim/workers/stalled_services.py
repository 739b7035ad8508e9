"""Services that run and do nothing, because they hang or their node is paused: the worlds that need one wait.

A service that has ended is different: its users wait for the next attempt, or are restarted with it (`services.py`).
"""

from __future__ import annotations

from flowdist.control.protocol.ids import ReplicaId
from flowdist.sim.engine.context import Context
from flowdist.sim.workers.worlds import Worlds


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
