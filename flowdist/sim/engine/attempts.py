"""The check that two attempts of one replica never run at the same time (R19)."""

from __future__ import annotations

from collections.abc import Callable

from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import MS
from flowdist.sim.engine.queue import Queue
from flowdist.sim.engine.violation import Violation

GHOST_NS = 100 * MS  # from the resumption of a node to the end of attempts that were replaced meanwhile, by SIGKILL


class RunningAttempts:
    """The attempt of each replica that runs anywhere in the cluster: one at most (R19).

    Attempts whose workers are suspended, and attempts on a paused node, do not count as running.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._running: dict[ReplicaId, int] = {}

    def began(self, replica: ReplicaId, attempt: int) -> None:
        """Record that an attempt runs.

        Raises:
            Violation: An attempt of the replica runs already.
        """
        other = self._running.get(replica)
        if other is not None:
            raise Violation("split brain", f"{replica} runs as attempt {attempt} while attempt {other} does")
        self._running[replica] = attempt

    def ended(self, replica: ReplicaId, attempt: int) -> None:
        """Remove an attempt, which has ended, is suspended, or is on a node that is paused now.

        A paused attempt gets no CPU, so another may run meanwhile, once the lease of the paused node is over. Nothing
        changes if the replica runs as another attempt, or not at all.
        """
        if self._running.get(replica) == attempt:
            del self._running[replica]

    def check_ghosts(self, ran: list[tuple[ReplicaId, int]], still_runs: Callable[[ReplicaId, int], bool]) -> None:
        """Record the attempts on a node that has just resumed, and plan a check in 100 ms.

        The check raises Violation if one of them still runs although another attempt of its replica runs too (R19).

        Args:
            ran: The attempts that run on the node again. One that was replaced meanwhile is checked, but not recorded.
            still_runs: Returns whether an attempt has a live worker on that node.
        """
        for replica, attempt in ran:
            self._running.setdefault(replica, attempt)

        def check() -> None:
            for replica, attempt in ran:
                other = self._running.get(replica, attempt)
                if other != attempt and still_runs(replica, attempt):
                    raise Violation("split brain", f"{replica} still runs as attempt {attempt} beside attempt {other}")

        self._queue.after(GHOST_NS, check)
