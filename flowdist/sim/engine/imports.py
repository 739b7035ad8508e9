"""The imports of one simulated node: the modules of its workers, and the starts that wait until they are imported.

A node begins to import when its agent connects first. New workers of roles with `import_ns` are forked from the process
that imports, so they wait for it. A start that waits can be given up, as in production (`HurrySpawn`).
"""

from __future__ import annotations

from collections.abc import Callable

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import MS
from flowdist.sim.engine.context import Context

SPAWN_NS = 5 * MS  # from the order to fork a worker until it runs


class Imports:
    """The imports of one node. `done_ns` is when they are, or will be, done; None: they have not begun."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.done_ns: int | None = None
        self._waiting: dict[tuple[ReplicaId, int], io.SpawnWorkers] = {}

    def begin(self) -> int:
        """Begin the imports, and return how long they take in ns; 0 if they have begun before, or no role has any."""
        takes = max(role.workload.import_ns for role in self._ctx.graph.roles)
        if not takes or self.done_ns is not None:
            return 0
        self.done_ns = self._ctx.queue.now + takes
        return takes

    def wait(self, order: io.SpawnWorkers, run: Callable[[io.SpawnWorkers], None]) -> bool:
        """Return whether the new workers of an order have to wait for the imports.

        If so `run` is called with the order when they are done, unless the start is given up before.
        """
        rest_ns = (self.done_ns or 0) - self._ctx.queue.now
        if rest_ns <= 0 or not self._ctx.graph.role(order.start.replica.role).workload.import_ns:
            return False
        key = (order.start.replica, order.start.attempt)
        self._waiting[key] = order
        self._ctx.queue.after(rest_ns + SPAWN_NS, self._done, key, run)
        return True

    def _done(self, key: tuple[ReplicaId, int], run: Callable[[io.SpawnWorkers], None]) -> None:
        order = self.give_up(*key)
        if order is not None:
            run(order)

    def give_up(self, replica: ReplicaId, attempt: int) -> io.SpawnWorkers | None:
        """Let the start of an attempt wait no more, and return its order; None if it does not wait."""
        return self._waiting.pop((replica, attempt), None)
