"""The recorded operations of a worker that saves, carried out one after the other in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from flowdist.sim.engine.queue import Queue
from flowdist.sim.user_code.checkpoints import Disk, Operation
from flowdist.sim.user_code.model_worker import ModelWorker


class Writer:
    """The operations of one worker in one checkpoint, each of which takes the same time. `begin_next` starts it.

    A worker that is paused stops in the middle of an operation. That operation completes as soon as the worker resumes,
    because it is a system call that the kernel had begun.

    Args:
        queue: Virtual time.
        disk: Where the operations are carried out.
        worker: The worker that saves.
        operations: Its operations in order; the writer removes each from this list when it is done.
        span_ns: How long all operations take together, in ns.
        offer: Called with the worker and each commit, instead of an operation on the disk.
        done: Called once after the last operation, unless the worker ends before.
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
        """Return whether operations are left, and the worker has not ended. A paused worker may be busy."""
        return bool(self._left) and not self._is_dead

    def begin_next(self) -> None:
        """Begin the next operation, and schedule its completion; call `done` if there is none."""
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
        """Complete all operations that are left at this very time; nothing if the worker is paused or has ended."""
        while self.is_busy and self._frozen_ns is None:
            self._finish()

    def freeze(self) -> None:
        """Stop in the middle of the present operation; nothing if the worker is paused already."""
        if self._frozen_ns is None:
            self._frozen_ns = self._queue.now
            self._turn += 1

    def thaw(self) -> None:
        """Go on after `freeze`: complete the interrupted operation at once; nothing if the worker is not paused."""
        if self._frozen_ns is not None:
            self._frozen_ns = None
            if self.is_busy:
                self._finish()

    def die(self) -> None:
        """End the worker: tear the file of a write in progress, and drop the operations after it."""
        if self.is_busy:
            until = self._queue.now if self._frozen_ns is None else self._frozen_ns
            done = (until - self._began_ns) / max(1, self._gap_ns)
            self._disk.cut_short(self.worker.replica, self._left[0], done)
        self._is_dead = True
        self._turn += 1
