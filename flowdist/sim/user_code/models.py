"""User code in virtual time: the models that roles bring (`simulate=`), made, resumed, stepped, saved and served.

A world's steps are played one after the other, each at its time, by a pump that plays as many at once as nothing else
comes in between: that changes no decision. What is saved is written down at the beginning of a checkpoint and carried
out while it lasts. An exception is an exit of its worker, with code 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import RoleSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.engine.streams import draw
from flowdist.sim.engine.violation import Violation
from flowdist.sim.user_code.answers import combine, restored, state_of
from flowdist.sim.user_code.checkpoints import Damage, Disk, Operation
from flowdist.sim.user_code.loading import load_model
from flowdist.sim.user_code.model_worker import ModelWorker, Raised, attempt
from flowdist.sim.user_code.played import ModelError, Played, PlayedStep
from flowdist.sim.user_code.saving import Writer
from flowdist.sim.user_code.workload import WorldModel
from flowdist.worker.model import tell_committed

WRITTEN = 4, 5  # the part of a checkpoint's time after which the last rank has written its part


@dataclass(slots=True)
class Playing:
    """A generation of a world at work. `done` are the steps that were played."""

    world: str
    model: WorldModel
    workers: list[ModelWorker]
    done: int = 0
    has_failed: bool = False
    busy: int = 0  # ranks that still write
    saving: int = 0  # the step of the checkpoint that they write
    unsaved: int = -1  # the step of the last of which something could not be written
    pump: int = 0  # what was planned for an earlier one does not happen


@dataclass(slots=True)
class Serving:
    """A replica of a service. `saves` counts its checkpoints."""

    worker: ModelWorker
    is_there: bool = True
    saves: int = 0


@dataclass(slots=True)
class UserCode:
    """`plays_steps`: play each step by itself, as if somebody waited for it."""

    ctx: Context
    nodes: dict[NodeName, SimNode]
    on_offer: Callable[[ReplicaId, int], None]
    plays_steps: bool = False
    disk: Disk = field(default_factory=Disk)
    latest: dict[str, str] = field(default_factory=dict)  # names that were committed, by world
    played: Played = field(default_factory=Played)
    _saves_planned: int = 0  # of services
    _at_ns: int = 0  # the time of the step that is played
    _classes: dict[str, Any] = field(default_factory=dict)
    _playing: dict[str, Playing] = field(default_factory=dict)
    _serving: dict[ReplicaId, Serving] = field(default_factory=dict)
    _writers: dict[tuple[ReplicaId, int], list[Writer]] = field(default_factory=dict)
    _offers: dict[tuple[ReplicaId, int, str], tuple[ModelWorker, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role in self.ctx.graph.roles:
            if role.simulate:
                self._classes[role.name] = load_model(self.ctx.graph, role)

    def has_model(self, role: str) -> bool:
        return role in self._classes

    def plays(self, world: str) -> bool:
        """Its present generation is user code at work."""
        return world in self._playing

    @property
    def plays_any(self) -> bool:
        return bool(self._playing)

    @property
    def is_saving(self) -> bool:
        return any(writer.is_busy for writers in self._writers.values() for writer in writers)

    # a world of a task

    def begin(self, world: str, model: WorldModel) -> None:
        """All of a generation are up: they are made, and resume."""
        workers = [worker for start in _by_rank(model) for worker in self._workers_of(start)]
        if not workers:
            return
        playing = self._playing[world] = Playing(world, model, workers)
        for worker in workers:
            if not self._try(playing, worker, worker.make, self._classes[worker.replica.role]):
                return
        steps: list[int] = []
        for worker in workers:
            done = self._ask(playing, worker, restored, worker.model, worker.latest(), model.pace.workload.steps)
            if playing.has_failed:
                return
            steps.append(done)
        if len(set(steps)) > 1:
            self._refuse_starts(world, steps)
        playing.done = steps[0]
        model.resume_from(steps[0])
        self.played.resumes(world, workers[0].info.generation, steps[0], self.ctx.queue.now)

    def _workers_of(self, start: StartReplica) -> list[ModelWorker]:
        role = self.ctx.graph.role(start.replica.role)
        if role.name not in self._classes:
            return []
        procs = role.procs_on(self.nodes[start.node].spec)
        return [ModelWorker(self, start, rank, self.ctx.seed) for rank in range(procs)]

    def _refuse_starts(self, world: str, steps: list[int]) -> None:
        text = ", ".join(f"rank {rank} from {step}" for rank, step in enumerate(steps))
        raise Violation("same start", f"the ranks of {world} resume from different steps: {text}")

    def plan(self, world: str, model: WorldModel) -> None:
        """The next step of a world that works."""
        playing = self._playing.get(world)
        if playing is None or playing.has_failed or playing.done >= model.pace.workload.steps:
            return
        at = model.time_of_step(playing.done + 1)
        playing.pump += 1
        if at is not None:
            turn, version = playing.pump, model.version
            self.ctx.queue.at(at, lambda: self._pump(playing, turn, version))

    def _pump(self, playing: Playing, turn: int, version: int) -> None:
        """Play what is due, and then what is due before anything else happens."""
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

    def catch_up(self, world: str) -> None:
        """Play every step of a world up to now."""
        playing = self._playing.get(world)
        if playing is None or playing.model.begun_ns is None:
            return
        now = self.ctx.queue.now
        while not playing.has_failed and playing.done < playing.model.step_at(now):
            self._play(playing, now)

    def catch_up_all(self) -> None:
        for world in self._playing:
            self.catch_up(world)

    def _play(self, playing: Playing, at: int) -> None:
        """One step of every rank; then each gets what all have returned."""
        step, parts = playing.done, []
        self._at_ns = at
        self.played.calls += 1
        for worker in playing.workers:
            worker.samples, worker.logged = [], {}
            parts.append(self._ask(playing, worker, worker.model.step, step, at=at))
            if playing.has_failed:
                return
        for worker in playing.workers:
            if hasattr(worker.model, "combine"):
                self._ask(playing, worker, combine, worker.model, step, parts, at=at)
                if playing.has_failed:
                    return
        samples = tuple(sample for worker in playing.workers for sample in worker.samples)
        first = playing.workers[0]
        self.played.steps[playing.world][step] = PlayedStep(first.info.generation, samples, first.logged)
        playing.done += 1

    def halt(self, model: WorldModel) -> None:
        """The world can go on no longer. A step that is more than half done has asked its services for everything."""
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
        if 0 < (left - self.ctx.queue.now) * 2 <= model.pace.workload.step_ns:
            for worker in playing.workers:
                attempt(worker.model.step, playing.done)

    def finish(self, world: str) -> bool:
        """The last step is done. False when one on the way there has failed."""
        self.catch_up(world)
        playing = self._playing.get(world)
        if playing is None:
            return True
        states: list[dict[str, object]] = []
        for worker in playing.workers:
            if hasattr(worker.model, "state") and not playing.has_failed:
                states.append(self._ask(playing, worker, state_of, worker.model))
        if not playing.has_failed:
            self.played.ended(world, states)
        return not playing.has_failed

    # checkpoints

    def save(self, world: str, span_ns: int) -> None:
        """A checkpoint begins: what each rank writes is written down, and takes its time."""
        self.catch_up(world)
        playing = self._playing.get(world)
        if playing is None or playing.has_failed:
            return
        now, count = self.ctx.queue.now, len(playing.workers)
        self.played.saves.append((now, now + span_ns))
        playing.saving = playing.done
        written_ns = span_ns * WRITTEN[0] // WRITTEN[1]
        writers: list[Writer] = []
        for worker in playing.workers:
            operations = self._record(playing, worker, "checkpoint")
            if playing.has_failed:
                return
            share = (count + len(writers) + 1) / (2 * count)  # from half of the time to all of it
            if self.ctx.seed:
                share = 0.5 + draw(self.ctx.seed, f"{worker.replica}#{worker.attempt}", "checkpoint", playing.done) / 2
            done = self._when_written(playing, span_ns - written_ns)
            writers.append(self._writer(worker, operations, round(written_ns * share), done))
        playing.busy = count
        for writer in writers:
            writer.go_on()

    def _when_written(self, playing: Playing, span_ns: int) -> Any:
        def written() -> None:
            playing.busy -= 1
            if playing.busy == 0 and self._playing.get(playing.world) is playing:  # else one of them is gone
                self._publish(playing, span_ns)

        return written

    def _publish(self, playing: Playing, span_ns: int) -> None:
        for worker in playing.workers:
            operations = self._record(playing, worker, "publish", playing.saving)
            if playing.has_failed:
                return
            self._writer(worker, operations, span_ns, lambda: None).go_on()

    def save_at_once(self, world: str) -> None:
        """The ranks stop at this step: nothing of it is played in between. What they save already is what they save."""
        self.catch_up(world)
        playing = self._playing.get(world)
        if playing is not None and any(writer.is_busy for writer in self._writers_of(playing)):
            for _ in ("checkpoint", "publish"):
                for writer in self._writers_of(playing):
                    writer.hurry()
            return
        for name in ("checkpoint", "publish") if playing is not None else ():
            assert playing is not None
            for worker in playing.workers:
                for operation in [] if playing.has_failed else self._record(playing, worker, name):
                    self._carry_out(worker, operation)

    def _writers_of(self, playing: Playing) -> list[Writer]:
        keys = dict.fromkeys((worker.replica, worker.attempt) for worker in playing.workers)
        return [writer for key in keys for writer in self._writers.get(key, [])]

    def _record(
        self, playing: Playing | None, worker: ModelWorker, name: str, step: int | None = None
    ) -> list[Operation]:
        number = step if step is not None or playing is None else playing.done
        assert number is not None
        if not hasattr(worker.model, name):
            return []
        worker.store.begin_record(number)
        self._ask(playing, worker, getattr(worker.model, name), number)
        if worker.store.is_refused and (playing is None or playing.unsaved != number):
            self.ctx.note_unsaved(worker.world, number, worker.replica.role)
            if playing is not None:
                playing.unsaved = number  # one rank after the other finds that out
        return worker.store.end_record()

    def _writer(self, worker: ModelWorker, operations: list[Operation], span_ns: int, done: Any) -> Writer:
        writer = Writer(self.ctx.queue, self.disk, worker, operations, span_ns, self._offer, done)
        known = self._writers.setdefault((worker.replica, worker.attempt), [])
        known[:] = [other for other in known if other.is_busy]
        known.append(writer)
        return writer

    def _carry_out(self, worker: ModelWorker, operation: Operation) -> None:
        if operation.kind == "commit":
            self._offer(worker, operation)
        else:
            self.disk.finish(worker.replica, operation)

    def offer_soon(self, worker: ModelWorker, operation: Operation) -> None:
        """User code committed while it did something else."""
        self.ctx.queue.at(self._at_ns, lambda: self._offer(worker, operation))

    def _offer(self, worker: ModelWorker, operation: Operation) -> None:
        key, start, path = (worker.replica, worker.attempt), worker.start, f"{worker.world}/{operation.name}"
        self.on_offer(*key)
        self._offers[*key, path] = worker, operation.name
        self.nodes[start.node].tell(io.WorkerOffered(*key, start.generation, path, operation.step))

    def answered(self, answer: io.AnswerWorker) -> None:
        """The agent writes the pointer before it answers."""
        worker, name = self._offers.pop((answer.replica, answer.attempt, answer.path), (None, ""))
        if worker is None:
            return
        if answer.accepted:
            self.latest[worker.world] = name
        attempt(tell_committed, worker.model, answer.step, answer.accepted)

    # what befalls them

    def ended(self, replica: ReplicaId, number: int) -> None:
        """The processes of an attempt are gone."""
        for writer in self._writers.pop((replica, number), []):
            writer.die()
        serving = self._serving.get(replica)
        if serving is not None and serving.worker.attempt == number:
            serving.is_there = False

    def freeze(self, replica: ReplicaId, number: int) -> None:
        """They get no CPU."""
        for writer in self._writers.get((replica, number), []):
            writer.freeze()

    def thaw(self, replica: ReplicaId, number: int) -> None:
        for writer in list(self._writers.get((replica, number), [])):
            writer.thaw()

    def damage(self, role: str, writer: ReplicaId | None, how: Damage, spec: str) -> None:
        """One file of the newest checkpoint of a role, or of the part that one replica wrote."""
        steps = [file.step for name, file in self.disk.of(role).items() if name in self.latest.values()]
        found = self.disk.newest(role, writer, max(steps, default=None))
        if found:
            self.disk.damage(role, found[int(draw(self.ctx.seed, spec, "damage") * len(found))], how)

    # services

    def serve(self, start: StartReplica) -> bool:
        """A service has started up: it is made, and resumes. False when it fails at that."""
        role = self.ctx.graph.role(start.replica.role)
        if role.name not in self._classes:
            return True
        worker = self._workers_of(start)[0]
        if not self._try(None, worker, worker.make, self._classes[role.name]):
            return False
        if hasattr(worker.model, "restore") and not self._try(None, worker, worker.model.restore):
            return False
        serving = self._serving[start.replica] = Serving(worker)
        if hasattr(worker.model, "checkpoint"):
            self._plan_save(role, serving)
        return True

    def _plan_save(self, role: RoleSpec, serving: Serving) -> None:
        load = role.workload

        def save() -> None:
            self._saves_planned -= 1
            if not serving.is_there or self.ctx.queue.planned == self._saves_planned:
                return  # when nothing else will ever happen, saving does not hide it
            self.catch_up_all()
            serving.saves += 1
            operations: list[Operation] = []
            for name in ("checkpoint", "publish"):
                operations += self._record(None, serving.worker, name, serving.saves)
            self._writer(serving.worker, operations, load.checkpoint_ns, lambda: None).go_on()
            plan(load.checkpoint_every_ns + load.checkpoint_ns)

        def plan(after_ns: int) -> None:
            self._saves_planned += 1
            self.ctx.queue.after(after_ns, save)

        plan(load.checkpoint_every_ns)

    def addresses(self, role: str, port: str) -> list[str]:
        replicas = [replica.id for replica in self.ctx.job.replicas_of(self.ctx.job.roles[role]) if replica.node]
        return [f"{replica}:{port}" for replica in sorted(replicas)]

    def call(self, address: str, method: str, args: tuple[Any, ...]) -> Any:
        """A method of a service's model, as over a wire."""
        name, _, index = address.partition(":")[0].partition("/")
        serving = self._serving.get(ReplicaId(name, int(index)))
        if serving is None or not serving.is_there:
            raise ConnectionError(f"{address} is not there")
        returned = attempt(getattr(serving.worker.model, method), *args)
        if isinstance(returned, Raised):
            self._fail(serving.worker, returned, self.ctx.queue.now)
            raise ConnectionError(f"{address} failed in {method}(): {returned.line}")
        return returned

    def close(self) -> Played:
        """The end of the simulation: what the services hold."""
        for replica, serving in self._serving.items():
            if hasattr(serving.worker.model, "state"):
                state = attempt(state_of, serving.worker.model)
                if isinstance(state, Raised):
                    self.played.clashes.append(f"state() of {replica} failed: {state.line}")
                else:
                    self.played.ended(str(replica), [state])
        return self.played

    # calls of user code

    def _ask(
        self, playing: Playing | None, worker: ModelWorker, function: Any, *args: Any, at: int | None = None
    ) -> Any:
        """What it returns; None when it fails, which is an exit of the worker at that time."""
        returned = attempt(function, *args)
        if not isinstance(returned, Raised):
            return returned
        if playing is not None:
            playing.has_failed = True
        self._fail(worker, returned, self.ctx.queue.now if at is None else at)
        return None

    def _try(self, playing: Playing | None, worker: ModelWorker, function: Any, *args: Any) -> bool:
        before = len(self.played.errors)
        self._ask(playing, worker, function, *args)
        return len(self.played.errors) == before

    def _fail(self, worker: ModelWorker, raised: Raised, at: int) -> None:
        error = ModelError(worker.replica, worker.attempt, at, *raised[1:])
        self.played.errors.append(error)
        node = self.nodes[worker.start.node]

        def end() -> None:
            node.exit_worker(worker.replica, worker.attempt, worker.local_rank, code=raised.code, detail=raised.line)

        self.ctx.queue.at(at, end)


def _by_rank(model: WorldModel) -> list[StartReplica]:
    return sorted(model.members.values(), key=lambda start: start.rank)
