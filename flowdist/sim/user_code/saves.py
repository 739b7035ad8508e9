"""Checkpoints of user code: recorded when they begin, carried out while they last, offered by commits, and answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.engine.queue import Queue
from flowdist.sim.user_code.checkpoints import Disk, Operation
from flowdist.sim.user_code.model_worker import ModelWorker, Playing, Serving, attempt
from flowdist.worker.model import tell_committed


class Writer:
    """The operations of one worker in one checkpoint, each of which takes the same time. `begin_next` starts it.

    A worker that is paused stops in the middle of an operation. That operation completes as soon as the worker resumes,
    because it is a system call that the kernel had begun. All take `span_ns` together; `done` is called after the last,
    unless the worker ends before.
    """

    def __init__(
        self,
        queue: Queue,
        disk: Disk,
        worker: ModelWorker,
        operations: list[Operation],
        span_ns: int,
        carry_out: Callable[[ModelWorker, Operation], None],
        done: Callable[[], None],
    ) -> None:
        self._queue, self._disk, self.worker, self._left = queue, disk, worker, operations
        self._gap_ns = span_ns // max(1, len(operations))
        self._carry_out, self._done = carry_out, done
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
        self._carry_out(self.worker, self._left.pop(0))
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


class Saves:
    """Checkpoints of all models of one simulation: the writers at work, and the commits that wait for an answer.

    `latest` is the name of the last checkpoint that was accepted, by world, and `steps` its step, unless a fault has
    damaged a file since. Models are called by `ask`, and agents get commits just after `on_offer` is called.
    """

    def __init__(
        self,
        ctx: Context,
        nodes: dict[NodeName, SimNode],
        disk: Disk,
        ask: Callable[..., Any],
        on_offer: Callable[[ReplicaId, int], None],
    ) -> None:
        self._ctx, self._nodes, self._disk, self._ask, self._on_offer = ctx, nodes, disk, ask, on_offer
        self.latest: dict[str, str] = {}
        self.steps: dict[str, int] = {}
        self._writers: dict[tuple[ReplicaId, int], list[Writer]] = {}
        self._offers: dict[tuple[ReplicaId, int, str], tuple[ModelWorker, str]] = {}

    @property
    def is_busy(self) -> bool:
        """Return whether any worker has operations of a checkpoint left to carry out."""
        return any(writer.is_busy for writers in self._writers.values() for writer in writers)

    def record(self, running: Playing | Serving, worker: ModelWorker, name: str, step: int) -> list[Operation]:
        """Call `checkpoint` or `publish` (`name`) of a model, and return its operations, none of which is carried out.

        If the disk is full, the trace gets a line that the checkpoint is not saved, once for a checkpoint.
        """
        if not hasattr(worker.model, name):
            return []
        worker.store.begin_record(step)
        self._ask(running, worker, getattr(worker.model, name), step)
        if worker.store.is_refused and running.unsaved != step:
            self._ctx.note_unsaved(worker.world, step, worker.replica.role)
            if isinstance(running, Playing):
                running.unsaved = step  # every rank's write fails, and one line of the trace is enough
        return worker.store.end_record()

    def new_writer(
        self, worker: ModelWorker, operations: list[Operation], span_ns: int, done: Callable[[], None]
    ) -> Writer:
        """Return a new writer of recorded operations, which has not begun; `Writer` says what the arguments are."""
        writer = Writer(self._ctx.queue, self._disk, worker, operations, span_ns, self.carry_out, done)
        known = self._writers.setdefault((worker.replica, worker.attempt), [])
        known[:] = [other for other in known if other.is_busy]
        known.append(writer)
        return writer

    def writers_of(self, workers: Iterable[ModelWorker]) -> list[Writer]:
        """Return the writers of the attempts to which the workers belong, each once."""
        keys = dict.fromkeys((worker.replica, worker.attempt) for worker in workers)
        return [writer for key in keys for writer in self._writers.get(key, [])]

    def carry_out(self, worker: ModelWorker, operation: Operation) -> None:
        """Complete one operation: pass a commit to the agent, and have the disk do all else."""
        if operation.kind == "commit":
            self.offer(worker, operation)
        else:
            self._disk.finish(worker.replica, operation)

    def offer(self, worker: ModelWorker, operation: Operation) -> None:
        """Pass a commit to the worker's agent, which passes it to the controller; `answered` gets the answer."""
        key, start, path = (worker.replica, worker.attempt), worker.start, f"{worker.world}/{operation.name}"
        self._on_offer(*key)
        self._offers[*key, path] = worker, operation.name
        self._nodes[start.node].tell(io.WorkerOffered(*key, start.generation, path, operation.step))

    def answered(self, answer: io.AnswerWorker) -> None:
        """Handle the answer to a commit of a model: note an accepted checkpoint as the latest; call `committed()`."""
        worker, name = self._offers.pop((answer.replica, answer.attempt, answer.path), (None, ""))
        if worker is None:
            return
        if answer.accepted:
            self.latest[worker.world], self.steps[worker.world] = name, answer.step
        attempt(tell_committed, worker.model, answer.step, answer.accepted)

    def ended(self, replica: ReplicaId, number: int) -> None:
        """End the writes of attempt `number`: one in progress leaves a torn file, and later ones never happen."""
        for writer in self._writers.pop((replica, number), []):
            writer.die()

    def freeze(self, replica: ReplicaId, number: int) -> None:
        """Pause what the workers of attempt `number` write; nothing if they write no checkpoint."""
        for writer in self._writers.get((replica, number), []):
            writer.freeze()

    def thaw(self, replica: ReplicaId, number: int) -> None:
        """Let the workers of attempt `number` go on writing after `freeze`; nothing if they were not paused."""
        for writer in list(self._writers.get((replica, number), [])):
            writer.thaw()
