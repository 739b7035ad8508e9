"""The workers of a simulation at work: they start up, get ready, step, save, hang, wait and end, in virtual time."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleSpec
from flowdist.sim.engine.accounts import begins, halts
from flowdist.sim.engine.streams import draw, spread
from flowdist.sim.user_code.checkpoints import Damage
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.workers.collectives import Collectives
from flowdist.sim.workers.drain import Leaving
from flowdist.sim.workers.fast_forward import skip_quiet, who_tells
from flowdist.sim.workers.partitions import Partitions
from flowdist.sim.workers.stalled_services import Standstill
from flowdist.sim.workers.workload import EVEN, WorldModel, world_model

if TYPE_CHECKING:
    from flowdist.sim.engine.node import SimNode
    from flowdist.sim.engine.simulation import Simulation

PACES = 1_000_000  # parts of the spread of steps that a draw tells apart


class Work:
    """`models` are the worlds of tasks, by name. A service only starts up and gets ready. `code` is the user's."""

    def __init__(self, sim: Simulation, seed: int, *, play_steps: bool = False) -> None:
        self.code = UserCode(sim, seed, play_steps)
        self._sim, self._seed, self._graph, self._queue = sim, seed, sim.graph, sim.queue
        self.models: dict[str, WorldModel] = {}
        self.collectives = Collectives(sim, seed, self.models)
        self.leaving = Leaving(sim)
        self._serving: dict[str, dict[ReplicaId, int]] = {}  # attempts of services that have started up, by role
        self._away: dict[ReplicaId, None] = {}  # served, and do not for now
        self.standstill = Standstill(sim)
        self._slow_disk: dict[str, Fraction] = {}  # how many times longer roles take to save
        self.partitions = Partitions(sim, self.models)
        self._step_waits: list[tuple[str, int]] = []  # steps of roles that a fault waits for

    def wait_for_step(self, role: str, step: int) -> None:
        """Have the role report that step when it gets there: something waits for it."""
        self._step_waits.append((role, step))

    def workers_run(self, node: SimNode, start: StartReplica, kept: tuple[int, ...] = ()) -> None:
        """The processes of an attempt are there: they start up, get ready, and work. Those of `kept` ranks go on."""
        role = self._graph.role(start.replica.role)
        load = role.workload
        delay = load.rejoin_ns or 0
        if len(kept) < node.procs_of(start.replica):
            delay = round(load.startup_ns * spread(self._seed, f"{start.replica}#{start.attempt}", "startup"))
        if role.kind == "task":
            model = self.models.get(start.world)
            if model is None:
                model = self.models[start.world] = world_model(self._mates_of(role))
            if start.generation < model.generation:
                return  # its node stood still while they were forked: the world has gone on without them
            if start.generation != model.generation:
                self.leaving.forget(start.world)
            procs = node.procs_of(start.replica)
            model.start(start, kept=len(kept), procs=procs, own=self._pace_drawn(start, procs))
            if model.durable and not kept:
                at = self._queue.now + delay
                model.reads[start.replica] = (at, at + load.restore_ns)
                delay += load.restore_ns
        self._queue.after(delay, self._started_up, node, start)

    def _pace_drawn(self, start: StartReplica, procs: int) -> Fraction:
        """How many times longer than the fastest worker could the slowest of this attempt takes for a step."""
        most = self._graph.role(start.replica.role).workload.step_spread
        if not most or not self._seed:
            return EVEN
        name = f"{start.replica}#{start.attempt}"
        slowest = max(draw(self._seed, name, "step", rank) for rank in range(procs))
        return 1 + Fraction(round(most * slowest * PACES), PACES)

    def _mates_of(self, role: RoleSpec) -> list[RoleSpec]:
        """The roles of its world."""
        joint = self._graph.world_of(role.name)
        return [self._graph.role(name) for name in joint.roles] if joint is not None else [role]

    def _started_up(self, node: SimNode, start: StartReplica) -> None:
        key = (start.replica, start.attempt)
        if not node.is_alive or not node.workers.get(key):
            return
        role = self._graph.role(start.replica.role)
        if role.kind == "service" and (key in self.standstill.hung or not self.code.serve(start)):
            return
        if role.ready is not None and role.ready.how == "call":
            for local_rank in range(node.procs_of(start.replica)):
                node.tell(io.WorkerReady(*key, local_rank))
        elif role.ready is not None:
            node.tell(io.ProbePassed(*key))
        if role.kind == "service":
            self._serves(start.replica, start.attempt)
        elif role.workload.rejoin_ns is not None:
            for local_rank in range(node.procs_of(start.replica)):
                node.tell(io.WorkerElastic(*key, local_rank))
        model = self.models.get(start.world)
        if model is not None and model.is_up(start.replica, self._queue.now):
            self.code.begin(start.world, model)
            if model.begun_ns is not None:
                begins(self._sim.accounts, model, self._queue.now)
            self.partitions.look(start.world)
            self._plan(start.world, model)
            for member in [one for one in model.members.values() if (one.replica, one.attempt) in self.standstill.hung]:
                self.hang(self._sim.nodes[member.node], member.replica, member.attempt)  # it hung as it started up

    def _serves(self, replica: ReplicaId, attempt: int) -> None:
        """A service is there (again): whoever waited for it goes on."""
        self.standstill.ends(replica)
        self._serving.setdefault(replica.role, {})[replica] = attempt
        self._away.pop(replica, None)
        self._sim.accounts.serves(replica, self._queue.now)
        for world in self._worlds_that_need(replica.role):
            self.go_on(world, str(replica))
        self.partitions.look_at_users(replica.role)

    def serving(self, service: str) -> list[ReplicaId]:
        """Its replicas that have started up, and are not gone."""
        return list(self._serving.get(service, ()))

    def ended(self, replica: ReplicaId, attempt: int) -> None:
        """All workers of an attempt are gone: its world stands still, and whoever needs the service waits for it."""
        self.code.catch_up_all()
        self.code.ended(replica, attempt)
        world = self._sim.job.replicas[replica].world
        model = self.models.get(world)
        start = model.members.get(replica) if model is not None else None
        if model is not None and start is not None and start.attempt == attempt:
            self.halt(model)
        if self.standstill.has_begun(replica, attempt):
            self.standstill.ends(replica)
        serving = self._serving.get(replica.role, {})
        if serving.get(replica) == attempt:  # not one whose node was paused, and that was replaced meanwhile
            del serving[replica]
            self._away[replica] = None
            self._sim.accounts.stopped_working(replica, self._queue.now)
            for name in self._worlds_that_need(replica.role):
                self.stall(name, str(replica))
            self.partitions.look_at_users(replica.role)

    def notice_who_stays_away(self) -> None:
        """A server that has no seat any more is in nobody's list of addresses: they go on without it."""
        if not self._away:
            return
        for replica in [replica for replica in self._away if self._sim.job.replicas[replica].node is None]:
            del self._away[replica]
            for name in self._worlds_that_need(replica.role):
                self.go_on(name, str(replica))

    def halt(self, model: WorldModel) -> None:
        """What it did in this generation is over."""
        self.code.halt(model)
        if model.begun_ns is not None:
            halts(self._sim.accounts, self._sim.job, model, self._queue.now)
        model.halt(self._queue.now)

    def leave_behind(self, start: StartReplica) -> None:
        """A world starts anew whose last generation stands still, on a node that is paused: that one works no more."""
        model = self.models.get(start.world)
        if model is not None and model.begun_ns is not None and model.generation != start.generation:
            self.halt(model)

    def worker_failed(self, replica: ReplicaId, attempt: int) -> None:
        """The others of its world wait for it in vain."""
        self.code.catch_up_all()
        self.code.ended(replica, attempt)
        model = self.model_of(replica, attempt)
        if model is not None:
            self.halt(model)

    def _worlds_that_need(self, service: str) -> list[str]:
        """Those that go on running while it is away, and can do nothing; user code that calls it is among them."""
        return self.users(service, None if self.code.has_model(service) else "reconnect")

    def users(self, service: str, on_restart: str | None = None) -> list[str]:
        """The worlds that depend on it; of edges of that kind, if one is given."""
        edges = self._graph.dependents(service)
        roles = [spec.name for spec, gate in edges if on_restart in (None, gate.on_restart)]
        return list(dict.fromkeys(world for role in roles for world in self._sim.job.roles[role].worlds))

    def stall(self, world: str, why: str) -> None:
        """A world waits for something, in the middle of its work."""
        model = self.models.get(world)
        if model is not None:
            model.stall(why, self._queue.now)
            self.collectives.look(world)

    def hold(self, world: str, why: str) -> None:
        """A member of its present generation does not get on."""
        model = self.models.get(world)
        if model is not None:
            model.hold(why, self._queue.now)
            self.collectives.look(world)

    def go_on(self, world: str, why: str) -> None:
        model = self.models.get(world)
        if model is not None and model.go_on(why, self._queue.now) and model.begun_ns is not None:
            self._plan(world, model)
        self.collectives.look(world)

    def waits_for_service(self, model: WorldModel) -> bool:
        return any(not self.partitions.is_of_members(why) for why in model.stalls)

    def slow_down(self, replica: ReplicaId, attempt: int, factor: Fraction) -> None:
        """All of a world are as slow as the slowest."""
        model = self.model_of(replica, attempt)
        if model is not None:
            model.slow_down(replica, factor, self._queue.now)
            if model.begun_ns is not None:
                self._plan(self._sim.job.replicas[replica].world, model)

    def step_of(self, replica: ReplicaId, attempt: int) -> int | None:
        """The step that the workers of an attempt are at; None for those that do not step, or not yet."""
        model = self.model_of(replica, attempt)
        return model.step_at(self._queue.now) if model is not None and model.begun_ns is not None else None

    def model_of(self, replica: ReplicaId, attempt: int) -> WorldModel | None:
        """The world of that very attempt."""
        model = self.models.get(self._sim.job.replicas[replica].world)
        start = model.members.get(replica) if model is not None else None
        return model if start is not None and start.attempt == attempt else None

    def show_signs(self, node: SimNode, replica: ReplicaId, attempt: int) -> None:
        """Progress that was not played one by one: a worker that steps has just told where it is."""
        model = self.model_of(replica, attempt)
        key = (replica, attempt)
        now = self._queue.now
        if model is not None and model.begun_ns is not None and not model.is_warming(now) and key not in node.hung:
            for local_rank in range(node.procs_of(replica)):
                node.tell(io.WorkerProgressed(*key, local_rank, model.step_at(self._queue.now)))
        node.tell(io.SignsSeen(*key, self.standstill.output_ns(*key)))

    def hang(self, node: SimNode, replica: ReplicaId, attempt: int) -> None:
        """The replica does nothing any more; the others of its world wait for it in vain, a step further."""
        node.hung[replica, attempt] = self.standstill.hung[replica, attempt] = None
        self.code.freeze(replica, attempt)
        self.standstill.begins(replica, attempt)
        model = self.model_of(replica, attempt)
        if model is None or model.begun_ns is None:
            return
        step = model.step_at(self._queue.now)
        for start in list(model.members.values()):
            self._tell_step(start, step + (start.replica != replica))
        self.collectives.hangs(replica, attempt)
        self.halt(model)

    def stop_at(self, node: SimNode, replica: ReplicaId, attempt: int, step: int | None) -> None:
        """The workers are told the step at which should_stop() turns true."""
        model = self.model_of(replica, attempt)
        if step is not None and model is not None:
            self.leaving.at(node, replica, attempt, step, model)

    def _plan(self, world: str, model: WorldModel) -> None:
        """The next moment of a world that steps: a checkpoint, or its end; and the steps that somebody waits for.

        That a checkpoint begins matters to user code, and where it will take longer than usual.
        """
        self.leaving.plan(world, model)
        if not model.has_begun and (begins := model.time_of_step(model.first_step)) is not None:
            self._queue.at(begins, self._warmed_up, model, model.version)
        at, is_checkpoint = model.next_moment()
        if at is None:
            return
        do = self.checkpoint if is_checkpoint else self._work_done
        self._queue.at(at, do, world, model, model.version)
        matters = self.code.plays(world) or (self._slow_disk and self.slowness(world) != 1)
        begins = model.next_save() if matters else None
        if begins is not None:
            self._queue.at(begins, self._save, world, model, model.version)
        self.code.plan(world, model)
        for role, step in self._step_waits:
            if role in (start.replica.role for start in model.members.values()):
                step_at = model.time_of_step(step) if model.step_at(self._queue.now) < step else None
                if step_at is not None and step_at < at:
                    self._queue.at(step_at, self._step_done, model, model.version)

    def _warmed_up(self, model: WorldModel, version: int) -> None:
        if model.version == version and model.begun_ns is not None:
            model.warmed_up(self._queue.now)

    def _step_done(self, model: WorldModel, version: int) -> None:
        if model.version == version and model.begun_ns is not None:
            self.report_steps(model)

    def report_steps(self, model: WorldModel) -> None:
        """The workers of the world tell how far they are."""
        step, tellers = model.step_at(self._queue.now), who_tells(self._sim, model)
        for start in tellers:
            self._tell_step(start, step)
        model.untold = step if len(tellers) < len(model.members) else -1

    def _tell_step(self, start: StartReplica, step: int) -> None:
        node = self._sim.nodes[start.node]
        for local_rank in range(node.procs_of(start.replica)):
            node.tell(io.WorkerProgressed(start.replica, start.attempt, local_rank, step))

    def _save(self, world: str, model: WorldModel, version: int) -> None:
        """A checkpoint begins."""
        if model.version != version or model.begun_ns is None:
            return
        slow = self.slowness(world)
        model.begin_save(slow)
        self.code.save(world, model.save_takes(slow))
        if slow != 1 and model.begun_ns is not None:
            self._plan(world, model)

    @property
    def is_awaited(self) -> bool:
        """Somebody waits for a step, a role cannot save or takes long to, or user code does: each moment matters."""
        return bool(self._step_waits or self.code.disk.full or self._slow_disk or self.code.plays_any)

    def checkpoint(self, world: str, model: WorldModel, version: int) -> None:
        """One is complete."""
        if model.version != version or model.begun_ns is None:
            return
        if self._sim.fast_forward and not model.late_ns and skip_quiet(self._sim, model):
            self._plan(world, model)
            return
        self.code.catch_up(world)
        model.end_save()
        self.report_steps(model)
        first = min(model.members)
        start = model.members[first]
        step = model.step_of_checkpoint(model.offered)
        full = self.full_disk(world)
        if full is not None and not self.code.plays(world):
            self._sim.note_unsaved(world, step, full)
        elif not self.code.plays(world):
            offer = io.WorkerOffered(first, start.attempt, start.generation, f"{world}/step-{step}", step)
            self._sim.nodes[start.node].tell(offer)
        if model.begun_ns is not None:
            self._plan(world, model)

    def fill_disk(self, role: str) -> None:
        """From now on it cannot save."""
        self.code.disk.full[role] = None

    def free_disk(self, role: str) -> None:
        self.code.disk.full.pop(role, None)

    def full_disk(self, world: str) -> str | None:
        """The role of it, if any, that cannot save: a checkpoint without its part is none."""
        full = self.code.disk.full
        return next((role for role in self._sim.job.worlds[world].roles if role in full), None) if full else None

    def slow_disk(self, role: str, factor: Fraction) -> None:
        """From its next checkpoint on it takes so many times as long to save; 1 is its own speed again."""
        self._slow_disk.pop(role, None)
        if factor != 1:
            self._slow_disk[role] = factor
        for world in self._sim.job.roles[role].worlds:
            model = self.models.get(world)
            if model is not None and model.begun_ns is not None:
                model.note_save(self._queue.now)
                model.version += 1
                self._plan(world, model)

    def slowness(self, world: str) -> Fraction:
        """How many times longer than usual it takes to save: a checkpoint is whole with its last part."""
        if not self._slow_disk:
            return EVEN
        return max(self._slow_disk.get(role, EVEN) for role in self._sim.job.worlds[world].roles)

    def damage(self, role: str, replica: ReplicaId | None, how: Damage, spec: str) -> None:
        """The newest checkpoint, of all worlds of a role or of one replica, is no longer what was written."""
        self.code.damage(role, replica, how, spec)
        for world in self._sim.job.roles[role].worlds if not self.code.has_model(role) else ():
            if world in self.models and (replica is None or world in (str(replica), role)):
                self.models[world].tear()

    def checkpoint_answered(self, answer: io.AnswerWorker) -> None:
        """What was accepted is what a restart resumes from."""
        model = self.models.get(self._sim.job.replicas[answer.replica].world)
        if answer.accepted and model is not None:
            model.save(answer.step)
        self.code.answered(answer)

    def _work_done(self, world: str, model: WorldModel, version: int) -> None:
        if model.version != version or model.begun_ns is None or not self.code.finish(world):
            return
        self.report_steps(model)
        model.save(model.pace.workload.steps)
        for start in list(model.members.values()):
            node = self._sim.nodes[start.node]
            for local_rank in range(node.procs_of(start.replica)):
                node.exit_worker(start.replica, start.attempt, local_rank)
