"""Checkpoints of user code: recorded when they begin, carried out while they last, offered by commits, and answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.user_code.calls import Calls
from flowdist.sim.user_code.checkpoints import Disk, Operation
from flowdist.sim.user_code.model_worker import ModelWorker, Playing, Serving, attempt
from flowdist.sim.user_code.saving import Writer
from flowdist.worker.model import tell_committed


class Saves:
    """Checkpoints of all models of one simulation: the writers at work, and the commits that wait for an answer.

    `latest` is the name of the last checkpoint that was accepted, by world, and `steps` its step,
    unless a fault has damaged a file since.

    Args:
        ctx: The simulation.
        nodes: The nodes by name, with the agents that get the commits.
        disk: Where the models write.
        calls: How the models are called.
        on_offer: Called with replica and attempt for each `commit()`, just before the agent gets it.
    """

    def __init__(
        self,
        ctx: Context,
        nodes: dict[NodeName, SimNode],
        disk: Disk,
        calls: Calls,
        on_offer: Callable[[ReplicaId, int], None],
    ) -> None:
        self._ctx, self._nodes, self._disk, self._calls, self._on_offer = ctx, nodes, disk, calls, on_offer
        self.latest: dict[str, str] = {}
        self.steps: dict[str, int] = {}
        self._writers: dict[tuple[ReplicaId, int], list[Writer]] = {}
        self._offers: dict[tuple[ReplicaId, int, str], tuple[ModelWorker, str]] = {}

    @property
    def is_busy(self) -> bool:
        """Return whether any worker has operations of a checkpoint left to carry out."""
        return any(writer.is_busy for writers in self._writers.values() for writer in writers)

    def record(self, running: Playing | Serving, worker: ModelWorker, name: str, step: int) -> list[Operation]:
        """Call the method `name` of a model, and return its operations on the store, none of which is carried out yet.

        `name` is "checkpoint" or "publish"; a model without that method has no operations. If the disk is full, the
        trace gets a line that the checkpoint is not saved, once for a checkpoint.
        """
        if not hasattr(worker.model, name):
            return []
        worker.store.begin_record(step)
        self._calls.ask(running, worker, getattr(worker.model, name), step)
        if worker.store.is_refused and running.unsaved != step:
            self._ctx.note_unsaved(worker.world, step, worker.replica.role)
            if isinstance(running, Playing):
                running.unsaved = step  # every rank's write fails, and one line of the trace is enough
        return worker.store.end_record()

    def new_writer(
        self, worker: ModelWorker, operations: list[Operation], span_ns: int, done: Callable[[], None]
    ) -> Writer:
        """Return a new writer of recorded operations, which has not begun; `Writer` says what the arguments are."""
        writer = Writer(self._ctx.queue, self._disk, worker, operations, span_ns, self.offer, done)
        known = self._writers.setdefault((worker.replica, worker.attempt), [])
        known[:] = [other for other in known if other.is_busy]
        known.append(writer)
        return writer

    def writers_of(self, workers: Iterable[ModelWorker]) -> list[Writer]:
        """Return the writers of the attempts to which the workers belong, each once."""
        keys = dict.fromkeys((worker.replica, worker.attempt) for worker in workers)
        return [writer for key in keys for writer in self._writers.get(key, [])]

    def carry_out(self, worker: ModelWorker, operation: Operation) -> None:
        """Carry out one operation at once, without a writer."""
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
        """Handle the agent's answer to a commit: note an accepted checkpoint as the latest, and call `committed()`.

        An answer to a commit that no model made, such as that of a computed workload, is ignored.
        """
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
