"""User code in virtual time: the models that roles bring (`simulate=`) are made, resumed, stepped, saved and called.

A model is an instance of the class that `simulate=` names: one for each worker. The steps of a world are played one
after the other, each at its time. One entry of the queue plays all the steps that end before the next entry, because
nothing can happen between them. What a model writes in a checkpoint is recorded when the checkpoint begins, and carried
out while it lasts. An exception in a model ends its worker with exit code 1.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId, replica_of
from flowdist.errors import FlowdistError
from flowdist.faults.streams import draw
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.engine.queue import Violation
from flowdist.sim.user_code.answers import combine, restored, state_of
from flowdist.sim.user_code.checkpoints import Damage, Disk, Operation
from flowdist.sim.user_code.model_worker import ModelWorker, Playing, Raised, Serving, attempt
from flowdist.sim.user_code.played import ModelError, Played, PlayedStep
from flowdist.sim.user_code.saves import Saves, Writer
from flowdist.sim.user_code.workload import WorldModel
from flowdist.worker.api import peers_among
from flowdist.worker.call import import_file

OLD_CHECKPOINT = "old checkpoint"  # the property that each restore begins at the latest checkpoint
WRITTEN = 4, 5  # all ranks have written their parts after 4/5 of a checkpoint's time; they publish in the rest


@dataclass(slots=True)
class UserCode:
    """All user code of a simulation: makes models, calls their methods in virtual time, and collects their results."""

    ctx: Context
    nodes: dict[NodeName, SimNode]  # by name; a worker whose model raises exits on its node
    on_offer: Callable[[ReplicaId, int], None]  # called for each `commit()` of an attempt, before the agent gets it
    plays_steps: bool = False  # each step has an entry of the queue, not one for all that end before the next entry
    on_version: Callable[[StartReplica, int], None] | None = None  # called with each version that a model publishes
    disk: Disk = field(default_factory=Disk)
    played: Played = field(default_factory=Played)
    latest: dict[str, str] = field(init=False)  # name of the last checkpoint that was accepted, by world
    saves: Saves = field(init=False)
    _saves_planned: int = 0  # entries of the queue that begin a checkpoint of a service
    _at_ns: int = 0  # the time of the step that was played last, which may be later than the queue's
    _classes: dict[str, Any] = field(default_factory=dict)
    _playing: dict[str, Playing] = field(default_factory=dict)
    _serving: dict[ReplicaId, Serving] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.saves = Saves(self.ctx, self.nodes, self.disk, self.ask, self.on_offer)
        self.latest = self.saves.latest
        for role in self.ctx.graph.roles:
            if role.simulate:
                self._classes[role.name] = load_model(self.ctx.graph, role)

    def has_model(self, role: str) -> bool:
        """Return whether the role names a class of user code (`simulate=`)."""
        return role in self._classes

    def plays(self, world: str) -> bool:
        """Return whether user code is at work in the world: between `begin` and `halt`, if a role has a model."""
        return world in self._playing

    @property
    def plays_any(self) -> bool:
        """Return whether user code is at work in any world of a task."""
        return bool(self._playing)

    # calls

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
        self._fail(worker, returned, self.ctx.queue.now if at is None else at)
        return None

    def _fail(self, worker: ModelWorker, raised: Raised, at: int) -> None:
        """Record what user code raised, and schedule the exit of its worker at the time `at` in ns."""
        self.played.errors.append(ModelError(worker.replica, worker.attempt, at, *raised[1:]))
        node, key = self.nodes[worker.start.node], (worker.replica, worker.attempt, worker.local_rank)
        self.ctx.queue.at(at, lambda: node.exit_worker(*key, code=raised.code, detail=raised.placed))

    # a world of a task

    def begin(self, world: str, model: WorldModel) -> None:
        """Make the models of all workers of a generation, and resume from the step that their `restore()` returns.

        Called when the last member has started up. It does nothing if no role of the world has a model. If a model
        raises, its worker exits. Raises Violation if the ranks resume from different steps, or from one before the
        latest checkpoint.
        """
        starts = sorted(model.members.values(), key=lambda start: start.rank)
        workers = [worker for start in starts for worker in self._workers_of(start)]
        if not workers:
            return
        playing = self._playing[world] = Playing(world, model, workers)
        for worker in workers:
            self.ask(playing, worker, worker.make, self._classes[worker.replica.role])
        most = model.pace.workload.steps
        steps = [self.ask(playing, worker, restored, worker.model, worker.latest(), most) for worker in workers]
        if playing.has_failed:
            return
        if len(set(steps)) > 1:
            text = ", ".join(f"rank {rank} from {step}" for rank, step in enumerate(steps))
            raise Violation("same start", f"the ranks of {world} resume from different steps: {text}")
        committed = self.saves.steps.get(world, 0)
        if steps[0] < committed:  # `steps` has none that a fault has damaged
            raise Violation(OLD_CHECKPOINT, f"{world} restored step {steps[0]} although {committed} was committed")
        playing.done = steps[0]
        model.resume_from(steps[0], self.ctx.queue.now)
        self.played.resumes(world, workers[0].info.generation, steps[0], self.ctx.queue.now)

    def _workers_of(self, start: StartReplica) -> list[ModelWorker]:
        role = self.ctx.graph.role(start.replica.role)
        if role.name not in self._classes:
            return []
        procs = role.procs_on(self.nodes[start.node].spec)
        return [ModelWorker(self, start, rank, self.ctx.seed) for rank in range(procs)]

    def plan(self, world: str, model: WorldModel) -> None:
        """Schedule the next step of the world, if there is one, in place of the one that was scheduled before."""
        playing = self._playing.get(world)
        if playing is None or playing.has_failed or playing.done >= model.pace.workload.steps:
            return
        at = model.time_of_step(playing.done + 1)
        playing.pump += 1
        if at is not None:
            turn, version = playing.pump, model.version
            self.ctx.queue.at(at, lambda: self._pump(playing, turn, version))

    def _pump(self, playing: Playing, turn: int, version: int) -> None:
        """Play the step that is due and those before the next entry of the queue, unless `turn` or `version` is old."""
        model = playing.model
        if turn != playing.pump or version != model.version or model.begun_ns is None:
            return
        self.catch_up(playing.world)
        steps = model.pace.workload.steps
        while not (self.plays_steps or playing.has_failed or playing.done >= steps):
            at, other = model.time_of_step(playing.done + 1), self.ctx.queue.next_at
            if at is None or (other is not None and at >= other):
                break
            self._play(playing, at)
        self.plan(playing.world, model)

    def catch_up(self, world: str) -> bool:
        """Play the steps that are done by now, before anything needs the models; False if one has raised."""
        playing, now = self._playing.get(world), self.ctx.queue.now
        if playing is None:
            return True
        model = playing.model
        while model.begun_ns is not None and not playing.has_failed and playing.done < model.step_at(now):
            self._play(playing, now)
        return not playing.has_failed

    def catch_up_all(self) -> None:
        """Call `catch_up` for each world in which user code is at work."""
        for world in self._playing:
            self.catch_up(world)

    def _play(self, playing: Playing, at: int) -> None:
        """Call `step()`, then `combine()`, of each rank at the time `at` (ns), and record the step if none raises."""
        step, parts = playing.done, []
        self._at_ns = at
        self.played.calls += 1
        for worker in playing.workers:
            worker.consumed, worker.logged = [], {}
            parts.append(self.ask(playing, worker, worker.model.step, step, at=at))
        for worker in playing.workers:
            if hasattr(worker.model, "combine"):
                self.ask(playing, worker, combine, worker.model, step, parts, at=at)
        if playing.has_failed:
            return
        samples = tuple(sample for worker in playing.workers for sample in worker.consumed)
        first = playing.workers[0]
        self.played.steps[playing.world][step] = PlayedStep(first.info.generation, samples, first.logged)
        playing.done += 1

    def halt(self, model: WorldModel) -> None:
        """Play the steps that a generation has done by now, and end its user code; nothing if there is none.

        The step in progress is played too, without its result, if at least half of it is done and a service has a
        model: services may have had calls from a step that never ends.
        """
        playing = next((playing for playing in self._playing.values() if playing.model is model), None)
        if playing is None:
            return
        self.catch_up(playing.world)
        del self._playing[playing.world]
        if model.begun_ns is None:
            return
        left = model.time_of_step(playing.done + 1)
        if playing.has_failed or not self._serving or left is None or playing.done >= model.pace.workload.steps:
            return
        if 0 < (left - self.ctx.queue.now) * 2 <= model.steps.ns:
            for worker in playing.workers:
                attempt(worker.model.step, playing.done)

    def finish(self, world: str) -> bool:
        """Play the last steps of a world, and record what `state()` of its ranks returns; False if a model raised."""
        self.catch_up(world)
        playing = self._playing.get(world)
        if playing is None:
            return True
        telling = [worker for worker in playing.workers if hasattr(worker.model, "state")]
        states = [self.ask(playing, worker, state_of, worker.model) for worker in telling]
        if not playing.has_failed:
            self.played.ended(world, states)
        return not playing.has_failed

    # checkpoints

    def save(self, world: str, span_ns: int) -> None:
        """Begin a checkpoint: call `checkpoint()` of each rank, and carry out what the ranks write within `span_ns`.

        When the last rank has written, `publish()` of each rank is called and carried out in the same way.
        """
        self.catch_up(world)
        playing = self._playing.get(world)
        if playing is None or playing.has_failed:
            return
        now, count = self.ctx.queue.now, len(playing.workers)
        self.played.saves.append((now, now + span_ns))
        playing.saving = playing.done
        written_ns = span_ns * WRITTEN[0] // WRITTEN[1]
        writers: list[Writer] = []

        def written() -> None:
            playing.busy -= 1
            if playing.busy == 0 and self._playing.get(world) is playing:  # the generation has not ended
                self._publish(playing, span_ns - written_ns)

        for worker in playing.workers:
            operations = self.saves.record(playing, worker, "checkpoint", playing.done)
            if playing.has_failed:
                return
            share = (count + len(writers) + 1) / (2 * count)  # from half of the time to all of it
            if self.ctx.seed:
                share = 0.5 + draw(self.ctx.seed, f"{worker.replica}#{worker.attempt}", "checkpoint", playing.done) / 2
            writers.append(self.saves.new_writer(worker, operations, round(written_ns * share), written))
        playing.busy = count
        for writer in writers:
            writer.begin_next()

    def _publish(self, playing: Playing, span_ns: int) -> None:
        for worker in playing.workers:
            operations = self.saves.record(playing, worker, "publish", playing.saving)
            if playing.has_failed:
                return
            self.saves.new_writer(worker, operations, span_ns, lambda: None).begin_next()

    def save_at_once(self, world: str) -> None:
        """Write and publish a checkpoint of the world at this very time, after the world has stopped to drain.

        If a checkpoint is being written already, that one is completed instead, except for workers that are paused.
        """
        self.catch_up(world)
        playing = self._playing.get(world)
        if playing is None:
            return
        is_busy = any(writer.is_busy for writer in self.saves.writers_of(playing.workers))
        for name in ("checkpoint", "publish"):
            for writer in self.saves.writers_of(playing.workers) if is_busy else ():
                writer.hurry()
            for worker in playing.workers if not is_busy else ():
                for operation in [] if playing.has_failed else self.saves.record(playing, worker, name, playing.done):
                    self.saves.carry_out(worker, operation)

    def offer_soon(self, worker: ModelWorker, operation: Operation) -> None:
        """Pass a commit that a model made outside of a checkpoint to its agent, at the time of the step in progress."""
        self.ctx.queue.at(self._at_ns, lambda: self.saves.offer(worker, operation))

    # faults and ends

    def ended(self, replica: ReplicaId, number: int) -> None:
        """Handle the end of the processes of attempt `number`: it leaves a torn file, and cannot be called any more."""
        self.saves.ended(replica, number)
        serving = self._serving.get(replica)
        if serving is not None and serving.worker.attempt == number:
            serving.is_there = False

    def damage(self, role: str, writer: ReplicaId | None, how: Damage, spec: str) -> None:
        """Damage one file of the role's newest accepted checkpoint, written by `writer`; `spec` decides which."""
        steps = [file.step for name, file in self.disk.of(role).items() if name in self.latest.values()]
        found = self.disk.newest(role, writer, max(steps, default=None))
        if found:
            for world in self.ctx.job.roles[role].worlds:
                self.saves.steps.pop(world, None)  # whoever can read it still may go back behind it
            self.disk.damage(role, found[int(draw(self.ctx.seed, spec, "damage") * len(found))], how)

    def tell(self, worker: ModelWorker, event: io.WorkerInput) -> None:
        """Pass what a model reports to its agent, at the time of the step, unless the worker has ended."""

        def tell_now() -> None:
            node = self.nodes[worker.start.node]
            if worker.local_rank in node.workers.get((worker.replica, worker.attempt), ()):
                node.tell(event)
                if isinstance(event, io.WorkerPublished) and self.on_version is not None:
                    self.on_version(worker.start, event.version)

        self.ctx.queue.at(max(self._at_ns, self.ctx.queue.now), tell_now)

    # services

    def serve(self, start: StartReplica) -> bool:
        """Make the model of a service, restore it, and plan its checkpoints; return False if it raised and exits."""
        role = self.ctx.graph.role(start.replica.role)
        if role.name not in self._classes:
            return True
        worker = self._workers_of(start)[0]
        serving = Serving(worker)
        self.ask(serving, worker, worker.make, self._classes[role.name])
        if hasattr(worker.model, "restore"):
            self.ask(serving, worker, worker.model.restore)
        if serving.has_failed:
            return False
        self._serving[start.replica] = serving
        if hasattr(worker.model, "checkpoint"):
            self._plan_save(role, serving)
        return True

    def _plan_save(self, role: RoleSpec, serving: Serving) -> None:
        """Schedule the checkpoints of a service, one after the other, until the replica ends."""
        load = role.workload

        def save() -> None:
            self._saves_planned -= 1
            if not serving.is_there or self.ctx.queue.planned == self._saves_planned:
                return  # if nothing but saves is left, the queue has to run empty: the job can make no progress
            self.catch_up_all()
            serving.saves += 1
            operations: list[Operation] = []
            for name in ("checkpoint", "publish"):
                operations += self.saves.record(serving, serving.worker, name, serving.saves)
            self.saves.new_writer(serving.worker, operations, load.checkpoint_ns, lambda: None).begin_next()
            plan(load.checkpoint_every_ns + load.checkpoint_ns)

        def plan(after_ns: int) -> None:
            self._saves_planned += 1
            self.ctx.queue.after(after_ns, save)

        plan(load.checkpoint_every_ns)

    def addresses(self, caller: str, role: str, port: str) -> list[str]:
        """Return an address that `call` takes, such as `ps/0:store`, for each replica that has a node, by index.

        RuntimeError, as of `flowdist.worker.peers`, if `caller` has no gate on the role, or that no such port.
        """
        job = self.ctx.job
        upstream = [job.roles[gate.role] for gate in job.roles[caller].spec.gates]
        known = {
            f"{other.spec.name}:{name}": [f"{replica.id}:{name}" for replica in job.replicas_of(other) if replica.node]
            for other in upstream
            for name in other.spec.ports
        }
        return peers_among(known, role, port)

    def call(self, address: str, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of a service's model with copies; ConnectionError if it does not serve, or raises and exits."""
        serving = self._serving.get(replica_of(address.partition(":")[0]))
        if serving is None or not serving.is_there:
            raise ConnectionError(f"{address} is not there")
        returned = attempt(getattr(serving.worker.model, method), *args)
        if isinstance(returned, Raised):
            self._fail(serving.worker, returned, self.ctx.queue.now)
            raise ConnectionError(f"{address} failed in {method}(): {returned.line}")
        return returned

    def close(self) -> Played:
        """Record what `state()` of each service returns, and return all results, at the end of the simulation."""
        for replica, serving in self._serving.items():
            if hasattr(serving.worker.model, "state"):
                state = attempt(state_of, serving.worker.model)
                if isinstance(state, Raised):
                    self.played.clashes.append(f"state() of {replica} failed: {state.placed}")
                else:
                    self.played.ended(str(replica), [state])
        return self.played


def load_model(graph: RoleGraph, role: RoleSpec) -> Any:
    """Import and return the class that `simulate=` of a role names: `module:Class` or `path/file.py:Class`.

    Raises FlowdistError, with the place in the user's code, if the import fails or the result is no such class.
    """
    folder = str(Path(graph.source).parent) if graph.source else ""
    place, _, name = role.simulate.rpartition(":")
    try:
        found = getattr(_module(place, folder), name)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
        message = f"role {role.name!r}: simulate={role.simulate!r} cannot be imported: {error!r}{where}"
        raise FlowdistError(message, help="it is imported from the folder of the topology file") from None
    missing = [name for name in ("restore", "step") if role.kind == "task" and not callable(getattr(found, name, None))]
    if not isinstance(found, type) or missing:
        what = f"has no method {missing[0]}()" if isinstance(found, type) else "is no class"
        raise FlowdistError(f"role {role.name!r}: simulate={role.simulate!r} {what}", help="see docs/models.md")
    return found


@lru_cache(maxsize=64)
def _module(place: str, folder: str) -> ModuleType:
    """Import a module, once for each pair of arguments, and leave `sys.path` as it was.

    A module is first looked up in the folder; `place` may also be the path of a file. Modules of the same name that
    were imported from other folders are hidden during the import, so two folders may each have a `model.py`.
    """
    is_file = "/" in place
    before = list(sys.path)
    sys.path.insert(0, str(Path(place).parent) if is_file else folder)
    hidden = _strangers(folder) if not is_file else {}
    try:
        return import_file(place, f"flowdist_model_{Path(place).stem}") if is_file else importlib.import_module(place)
    finally:
        sys.path[:] = before
        sys.modules.update(hidden)


def _strangers(folder: str) -> dict[str, ModuleType]:
    """Remove modules from `sys.modules` that only share a name with a file in the folder, and return them."""
    names = {path.stem for path in Path(folder or ".").glob("*.py")}
    hidden = {}
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if Path(file).parent != Path(folder):
                hidden[name] = sys.modules.pop(name)
    return hidden
