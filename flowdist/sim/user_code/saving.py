"""A worker that saves: its recorded operations, carried out one after the other in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from flowdist.sim.engine.queue import Queue
from flowdist.sim.user_code.checkpoints import Disk, Operation
from flowdist.sim.user_code.model_worker import ModelWorker


class Writer:
    """The operations of one worker. Each takes as long as the others.

    A worker that is paused stops in the middle of an operation. That operation completes as soon as the worker resumes,
    because the kernel was at it, whatever happens to the process next.

    Args:
        queue: Virtual time.
        disk: Where the operations are carried out.
        worker: The worker.
        operations: What it does, in order.
        span_ns: How long all of it takes.
        offer: Called with each commit.
        done: Called when all is done.
    """

    def __init__(
        self,
        queue: Queue,
        disk: Disk,
        worker: ModelWorker,
        operations: list[Operation],
        span_ns: int,
        offer: Callable[[ModelWorker, Operation], None],
        done: Callable[[], None],
    ) -> None:
        self._queue, self._disk, self.worker, self._left = queue, disk, worker, operations
        self._gap_ns = span_ns // max(1, len(operations))
        self._offer, self._done = offer, done
        self._began_ns = queue.now
        self._turn = 0  # entries of the queue with an earlier turn do nothing
        self._frozen_ns: int | None = None
        self._is_dead = False

    @property
    def is_busy(self) -> bool:
        return bool(self._left) and not self._is_dead

    def begin_next(self) -> None:
        """Begin the next operation, or finish if there is none."""
        if not self._left:
            self._done()
            return
        self._disk.begin(self.worker.replica, self._left[0])
        self._began_ns, turn = self._queue.now, self._turn
        self._queue.after(self._gap_ns, lambda: self._finish() if turn == self._turn else None)

    def _finish(self) -> None:
        self._turn += 1
        operation = self._left.pop(0)
        if operation.kind == "commit":
            self._offer(self.worker, operation)
        else:
            self._disk.finish(self.worker.replica, operation)
        self.begin_next()

    def hurry(self) -> None:
        """Do everything that is left now, unless the worker is paused."""
        while self.is_busy and self._frozen_ns is None:
            self._finish()

    def freeze(self) -> None:
        """Pause the worker."""
        if self._frozen_ns is None:
            self._frozen_ns = self._queue.now
            self._turn += 1

    def thaw(self) -> None:
        """Resume the worker, and complete the operation that it was in."""
        if self._frozen_ns is not None:
            self._frozen_ns = None
            if self.is_busy:
                self._finish()

    def die(self) -> None:
        """End the worker: the operation that it was in stays unfinished."""
        if self.is_busy:
            until = self._queue.now if self._frozen_ns is None else self._frozen_ns
            done = (until - self._began_ns) / max(1, self._gap_ns)
            self._disk.cut_short(self.worker.replica, self._left[0], done)
        self._is_dead = True
        self._turn += 1
