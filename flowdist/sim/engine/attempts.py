"""The check that two attempts of one replica never run at the same time (R19)."""

from __future__ import annotations

from collections.abc import Callable

from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import MS
from flowdist.sim.engine.queue import Queue
from flowdist.sim.engine.violation import Violation

GHOST_NS = 100 * MS  # how long an attempt may still run when its node resumes after it was replaced: until SIGKILL


class RunningAttempts:
    """The attempts that have a live process anywhere in the cluster, one at most for each replica."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._running: dict[ReplicaId, int] = {}

    def began(self, replica: ReplicaId, attempt: int) -> None:
        """Note that an attempt runs.

        Raises:
            Violation: Another attempt of the replica still runs.
        """
        other = self._running.get(replica)
        if other is not None:
            raise Violation("split brain", f"{replica} runs as attempt {attempt} while attempt {other} does")
        self._running[replica] = attempt

    def ended(self, replica: ReplicaId, attempt: int) -> None:
        """Note that an attempt has ended, or that its node is paused.

        A paused attempt gets no CPU. Another may run meanwhile, once the lease of the paused node is over.
        """
        if self._running.get(replica) == attempt:
            del self._running[replica]

    def check_ghosts(self, ran: list[tuple[ReplicaId, int]], still_runs: Callable[[ReplicaId, int], bool]) -> None:
        """Check that the attempts of a node that resumes after a pause end soon if they were replaced meanwhile (R19).

        Args:
            ran: The attempts that ran on the node when it was paused.
            still_runs: Tells whether an attempt has a live worker on that node; called 100 ms later.
        """
        for replica, attempt in ran:
            self._running.setdefault(replica, attempt)

        def check() -> None:
            for replica, attempt in ran:
                other = self._running.get(replica, attempt)
                if other != attempt and still_runs(replica, attempt):
                    raise Violation("split brain", f"{replica} still runs as attempt {attempt} beside attempt {other}")

        self._queue.after(GHOST_NS, check)
