"""Calls of user code: what it raises is recorded, and ends its worker with the exit code of a failed program."""

from __future__ import annotations

from typing import Any

from flowdist.control.protocol.ids import NodeName
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.user_code.model_worker import ModelWorker, Playing, Raised, Serving, attempt
from flowdist.sim.user_code.played import ModelError, Played


class Calls:
    """The calls of the models of one simulation.

    Args:
        ctx: The simulation.
        nodes: The nodes by name. A worker whose model raises exits on its node.
        played: Where exceptions are recorded.
    """

    def __init__(self, ctx: Context, nodes: dict[NodeName, SimNode], played: Played) -> None:
        self._ctx, self._nodes, self._played = ctx, nodes, played

    def ask(
        self, running: Playing | Serving, worker: ModelWorker, function: Any, *args: Any, at: int | None = None
    ) -> Any:
        """Call `function`, which is or calls user code, and return what it returns.

        If it raises, the worker exits at the time `at` (None: now), and None is returned. From then on nothing is
        called for this generation or service, and None is returned at once.
        """
        returned = attempt(function, *args) if not running.has_failed else None
        if not isinstance(returned, Raised):
            return returned
        running.has_failed = True
        self.fail(worker, returned, self._ctx.queue.now if at is None else at)
        return None

    def fail(self, worker: ModelWorker, raised: Raised, at: int) -> None:
        """Record what user code raised, and schedule the exit of its worker at the time `at` in ns."""
        error = ModelError(worker.replica, worker.attempt, at, *raised[1:])
        self._played.errors.append(error)
        node = self._nodes[worker.start.node]

        def end() -> None:
            node.exit_worker(worker.replica, worker.attempt, worker.local_rank, code=raised.code, detail=raised.placed)

        self._ctx.queue.at(at, end)
