"""The workers of a simulation at work, in virtual time: they start up, get ready, step, save, hang, wait and end.

`Work` joins the parts of this folder and plans what happens next to each world of tasks. A service only starts up and
gets ready. What user code does is played by `user_code`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ProcessState, ReplicaId
from flowdist.record.accounts import Accounts
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.controller import is_put_off
from flowdist.sim.engine.node import SimNode
from flowdist.sim.user_code.checkpoints import Damage
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.user_code.workload import WorldModel, world_model
from flowdist.sim.workers.collectives import Collectives
from flowdist.sim.workers.drain import Disks, Drain
from flowdist.sim.workers.fast_forward import FastForward
from flowdist.sim.workers.services import Services
from flowdist.sim.workers.snapshots import Snapshots
from flowdist.sim.workers.start_ups import PeerMemory, StartUps
from flowdist.sim.workers.versions import Versions
from flowdist.sim.workers.worlds import Partitions, Worlds

JobPhase = Literal["ending", "in recovery", "restoring", "saving", "steady", "starting"]


class Work:
    """All workers of one simulation: the composition of the parts of this folder, and their timing.

    `is_quiet`: nothing outside the workers waits for an event, a controller runs, and no node can become suspected.
    """

    def __init__(
        self,
        ctx: Context,
        nodes: dict[NodeName, SimNode],
        code: UserCode,
        accounts: Accounts,
        is_quiet: Callable[[], bool],
    ) -> None:
        self._ctx, self._nodes, self._graph, self._queue = ctx, nodes, ctx.graph, ctx.queue
        self.code = code
        self.worlds = Worlds(ctx, code, accounts)
        self.models = self.worlds.models
        self.partitions = Partitions(ctx, self.worlds)
        self.services = Services(ctx, self.worlds, self.partitions, code, accounts)
        self.collectives = Collectives(ctx, nodes, self.worlds, self.partitions)
        self.versions = Versions(ctx, nodes, self.worlds, code)
        self.disks = Disks(ctx, code.disk)
        self.fast_forward = FastForward(
            ctx,
            nodes,
            self.worlds,
            is_quiet=lambda: not self.is_awaited and is_quiet(),
            is_nothing=lambda action, args: action == self.checkpoint or is_put_off(action, args),
        )
        self._drain = Drain(ctx, self.worlds, code, self.disks, self.fast_forward)
        self.snapshots = Snapshots(ctx, nodes, self.partitions)
        self._start_ups, self._peers = StartUps(ctx), PeerMemory(nodes)
        self.step_waits: list[
            tuple[str, int]
        ] = []  # steps of roles that a fault waits for, and that are reported at once
        self.worlds.on_resume = self._plan
        self.worlds.on_change = self.collectives.update

    def phase(self) -> JobPhase:
        """Return the phase of the job by which hits of faults are counted: the first of several that applies."""
        now, models = self._queue.now, self.models.values()
        if self._ctx.job.ending is not None:
            return "ending"
        if self._ctx.job.open or self._ctx.is_down:
            return "in recovery"
        if any(model.is_restoring(now) for model in models):
            return "restoring"
        if self.is_saving:
            return "saving"
        is_steady = any(model.begun_ns is not None and not model.is_warming(now) for model in models)
        return "steady" if is_steady else "starting"

    @property
    def is_saving(self) -> bool:
        """Return whether some world or service writes a checkpoint now."""
        now = self._queue.now
        return self.code.saves.is_busy or any(model.is_saving(now) for model in self.models.values())

    def workers_run(self, node: SimNode, start: StartReplica, kept: tuple[int, ...] = ()) -> None:
        """Begin the start-up of an attempt whose processes run; those of the local ranks in `kept` were suspended.

        Without any of these the restore of a checkpoint comes on top. A task becomes a member of its world.
        """
        role = self._graph.role(start.replica.role)
        load = role.workload
        delay = self._start_ups.takes_ns(node, start, len(kept))
        if role.kind == "task":
            model = self.models.get(start.world)
            if model is None:
                mates = [self._graph.role(name) for name in self._graph.mates_of(role.name)]
                model = self.models[start.world] = world_model(mates)
            if start.generation < model.generation:
                return  # its node was paused while it was forked, and the world is in a later generation
            if start.generation != model.generation:
                self._drain.forget(start.world)
            procs = node.procs_of(start.replica)
            model.start(start, kept=len(kept), procs=procs, own=self._start_ups.pace_of(start, procs))
            if (model.durable or start.snapshot is not None) and not kept:
                at, from_memory = self._queue.now + delay, self.snapshots.begin_read(node, start)
                takes = self._peers.restore_ns(start.world, load) if from_memory is None else from_memory
                model.reads[start.replica] = (at, at + takes)
                delay += takes
        self._queue.after(delay, self._started_up, node, start)

    def _started_up(self, node: SimNode, start: StartReplica) -> None:
        """End the start-up of an attempt: tell its agent, and begin its service, or with the last member its world."""
        key = (start.replica, start.attempt)
        if not node.is_alive or not node.workers.get(key):
            return
        if not self.snapshots.read(node, start, self._started_up):
            return
        role = self._graph.role(start.replica.role)
        if role.kind == "service" and (key in self.services.hung or not self.code.serve(start)):
            return
        if role.ready is not None and role.ready.how == "call":
            node.tell_of_workers(io.WorkerReady, *key)
        elif role.ready is not None:
            node.tell(io.ProbePassed(*key))
        if role.kind == "service":
            self.services.begin(start.replica, start.attempt)
        elif role.workload.rejoin_ns is not None:
            node.tell_of_workers(io.WorkerElastic, *key)
        if self.versions.is_used:
            self.versions.started_up(start)
        model = self.models.get(start.world)
        if model is not None and model.is_up(start.replica, self._queue.now):
            self._peers.begin(start.world, model)
            self.code.begin(start.world, model)
            if model.begun_ns is not None:
                self.worlds.begin_work(model)
                self.services.await_by(start.world)
                self.versions.saved(model, model.first_step)
            self.partitions.update(start.world)
            self._plan(start.world, model)
            for one in list(model.members.values()):
                if (one.replica, one.attempt) in self.services.hung:  # it began to hang during its start-up
                    self.hang(self._nodes[one.node], one.replica, one.attempt)

    def ended(self, replica: ReplicaId, attempt: int) -> None:
        """Halt the world of an attempt whose workers have all ended or are suspended; users of a service wait."""
        self.code.catch_up_all()
        self.code.ended(replica, attempt)
        self.versions.ended(replica, attempt)
        world = self._ctx.job.replicas[replica].world
        model = self.models.get(world)
        start = model.members.get(replica) if model is not None else None
        if model is not None and start is not None and start.attempt == attempt:
            self.worlds.halt(model)
        self.services.end(replica, attempt)

    def worker_lost(self, replica: ReplicaId, attempt: int) -> None:
        """Let the peers of an attempt react to the end of its workers, which is near: see `Collectives.lose`."""
        self.collectives.lose(replica, attempt)

    def is_deaf(self, replica: ReplicaId, attempt: int) -> bool:
        """Return whether only SIGKILL ends the workers, because they are inside a collective that never ends."""
        return self.collectives.is_deaf(replica, attempt)

    def leave_behind(self, start: StartReplica) -> None:
        """Halt the generation before that of `start`, which is ordered now, if it still works, on a paused node."""
        model = self.models.get(start.world)
        if model is not None and model.begun_ns is not None and model.generation != start.generation:
            self.worlds.halt(model)

    def worker_failed(self, replica: ReplicaId, attempt: int) -> None:
        """Halt the world of an attempt, of which a worker has exited with an error or by a signal."""
        self.code.catch_up_all()
        self.code.ended(replica, attempt)
        model = self.worlds.model_of(replica, attempt)
        if model is not None:
            self.worlds.halt(model)

    def slow_down(self, replica: ReplicaId, attempt: int, factor: Fraction) -> None:
        """Let an attempt, and with it its world, take `factor` times as long for a step; 1 ends that."""
        model = self.worlds.model_of(replica, attempt)
        if model is not None:
            model.slow_down(replica, factor, self._queue.now)
            if model.begun_ns is not None:
                self._plan(self._ctx.job.replicas[replica].world, model)

    def step_of(self, replica: ReplicaId, attempt: int) -> int | None:
        """Return the step that the workers of an attempt are at; None if they do not step, or not yet."""
        model = self.worlds.model_of(replica, attempt)
        return model.step_at(self._queue.now) if model is not None and model.begun_ns is not None else None

    def show_signs(self, node: SimNode, replica: ReplicaId, attempt: int) -> None:
        """Tell the agent, which has asked for signs of life, the present step, and when the workers wrote output last.

        A task that starts up prints all the while, unless it hangs; output of a task at work is not simulated.
        """
        model = self.worlds.model_of(replica, attempt)
        key = (replica, attempt)
        now = self._queue.now
        if model is not None and model.begun_ns is not None and not model.is_warming(now) and key not in node.hung:
            node.tell_of_workers(io.WorkerProgressed, *key, model.step_at(now))
        output_ns = self.services.output_ns(*key)
        if self._graph.role(replica.role).kind == "task" and key not in node.hung:
            output_ns = now if model is None or model.begun_ns is None or model.is_warming(now) else None
        state: ProcessState = "stopped" if key in node.hung else ""  # as the fault does it to a real process
        node.tell(io.SignsSeen(*key, output_ns, state))

    def freeze(self, replica: ReplicaId, attempt: int) -> None:
        """Let an attempt stop to write, and those that call its service wait; its own world is the caller's matter."""
        self.code.saves.freeze(replica, attempt)
        self.services.freeze(replica, attempt)

    def thaw(self, replica: ReplicaId, attempt: int) -> None:
        """End `freeze`: the user code of an attempt writes on, and worlds that wait for its service resume."""
        self.code.saves.thaw(replica, attempt)
        self.services.thaw(replica, attempt)

    def hang(self, node: SimNode, replica: ReplicaId, attempt: int) -> None:
        """Let an attempt hang for ever: its own world halts, or the worlds that depend on its service wait.

        Agents of other members are told one step more, since those workers do one more before they wait for it.
        """
        node.hung[replica, attempt] = self.services.hung[replica, attempt] = None
        self.freeze(replica, attempt)
        model = self.worlds.model_of(replica, attempt)
        if model is None or model.begun_ns is None:
            return
        step = model.step_at(self._queue.now)
        for start in list(model.members.values()):
            self.fast_forward.report_step(start, step + (start.replica != replica))
        self.collectives.hang(replica, attempt)
        self.worlds.halt(model)

    def stop_at(self, node: SimNode, replica: ReplicaId, attempt: int, step: int | None) -> None:
        """Order workers to save at a step and leave it, as by should_stop(); None: no step is agreed, they go on."""
        model = self.worlds.model_of(replica, attempt)
        if step is not None and model is not None:
            self._drain.stop_at(node, replica, attempt, step, model)

    def was_stopping(self, replica: ReplicaId, attempt: int) -> bool:
        """Return whether the workers of an attempt have reached the agreed step, where `should_stop()` returns True."""
        model = self.worlds.model_of(replica, attempt)
        return model is not None and self._drain.has_stopped(self._ctx.job.replicas[replica].world, model)

    def _plan(self, world: str, model: WorldModel) -> None:
        """Plan what happens next to a world, again whenever its timing has changed.

        An earlier `model.version` does nothing. The beginning of a checkpoint is planned only for user code and on a
        slow disk, where it matters.
        """
        self._drain.plan(world, model)
        self._plan_first_step(world, model)
        self.snapshots.plan(world, model)
        if not model.has_begun and (begins := model.time_of_step(model.first_step)) is not None:
            self._queue.at(begins, self._warmed_up, model, model.version)
        at, is_checkpoint = model.next_moment()
        if at is None:
            return
        do = self.checkpoint if is_checkpoint else self._work_done
        self._queue.at(at, do, world, model, model.version)
        matters = self.code.plays(world) or self.disks.slowness(world) != 1
        begins = model.next_save() if matters else None
        if begins is not None:
            self._queue.at(begins, self._save, world, model, model.version)
        self.code.plan(world, model)
        for role, step in self.step_waits:
            if role in (start.replica.role for start in model.members.values()):
                step_at = model.time_of_step(step) if model.step_at(self._queue.now) < step else None
                if step_at is not None and step_at < at:
                    self._queue.at(step_at, self._step_done, model, model.version)

    def _plan_first_step(self, world: str, model: WorldModel) -> None:
        """Plan the end of the first step of a generation after an incident: flowdist counts that step at once."""
        first = model.first_step + 1
        if model.generation > 1 and model.step_at(self._queue.now) < first <= model.pace.workload.steps:
            at = model.time_of_step(first)
            if at is not None:
                self._queue.at(at, self._first_step_done, world, model, model.version)

    def _first_step_done(self, world: str, model: WorldModel, version: int) -> None:
        """Tell agents that their workers have taken one step: one for all, unless the role detects hangs."""
        if model.version == version and model.begun_ns is not None and self.code.catch_up(world):
            for start in self.fast_forward.members_that_count(model):
                self._nodes[start.node].tell_of_workers(io.WorkerStepped, start.replica, start.attempt, 1)

    def _warmed_up(self, model: WorldModel, version: int) -> None:
        if model.version == version and model.begun_ns is not None:
            model.warmed_up(self._queue.now)

    def _step_done(self, model: WorldModel, version: int) -> None:
        if model.version == version and model.begun_ns is not None:
            self.fast_forward.report(model)

    def _save(self, world: str, model: WorldModel, version: int) -> None:
        """Begin a checkpoint of user code, or on a slow disk."""
        if model.version != version or model.begun_ns is None:
            return
        slow = self.disks.slowness(world)
        model.begin_save(slow)
        self.code.save(world, model.save_takes(slow))
        if slow != 1 and model.begun_ns is not None:
            self._plan(world, model)

    @property
    def is_awaited(self) -> bool:
        """Return whether something in the workers keeps fast-forward from skipping checkpoints."""
        is_used = self.versions.is_used or self.snapshots.is_used
        return bool(self.step_waits) or self.disks.has_fault or self.code.plays_any or is_used

    def checkpoint(self, world: str, model: WorldModel, version: int) -> None:
        """Complete the checkpoint of a world that is due: report the step, and offer it; or skip it and more.

        Fast-forward skips. On a full disk nothing is offered, and the trace gets a line. User code makes its offers
        itself.
        """
        if model.version != version or model.begun_ns is None:
            return
        if self.fast_forward.skip(model):
            self._plan(world, model)
            return
        self.code.catch_up(world)
        model.end_save()
        self.fast_forward.report(model)
        first = min(model.members)
        start = model.members[first]
        step = model.steps.of_checkpoint(model.offered)
        self.versions.saved(model, step)
        full = self.disks.full_role(world)
        if full is not None and not self.code.plays(world):
            self._ctx.note_unsaved(world, step, full)
        elif not self.code.plays(world):
            offer = io.WorkerOffered(first, start.attempt, start.generation, f"{world}/step-{step}", step)
            self._nodes[start.node].tell(offer)
        if model.begun_ns is not None:
            self._plan(world, model)

    def slow_disk(self, role: str, factor: Fraction) -> None:
        """Let the checkpoints of a role take `factor` times as long, from the next one on; 1 ends the fault."""
        self.disks.slow_down(role, factor)
        for world in self._ctx.job.roles[role].worlds:
            model = self.models.get(world)
            if model is not None and model.begun_ns is not None:
                model.note_save(self._queue.now)
                model.version += 1
                self._plan(world, model)

    def damage(self, role: str, replica: ReplicaId | None, how: Damage, spec: str) -> None:
        """Damage the newest checkpoint of each world of a role, or with `replica` of its world alone.

        Without user code it is dropped, else one file (with `replica`, its own) is damaged, as `spec`, the text of the
        fault, decides.
        """
        self.code.damage(role, replica, how, spec)
        for model in self.models_of(role, replica) if not self.code.has_model(role) else ():
            model.tear()

    def models_of(self, role: str, replica: ReplicaId | None = None) -> list[WorldModel]:
        """Return the models of those worlds of a role that have started; with a replica of it, of its world alone."""
        worlds = self._ctx.job.roles[role].worlds
        names = worlds if replica is None else (self._ctx.job.replicas[replica].world,)
        return [self.models[name] for name in names if name in self.models]

    def checkpoint_answered(self, answer: io.AnswerWorker) -> None:
        """Handle the controller's answer to an offered checkpoint; the next generation resumes from an accepted one."""
        model = self.models.get(self._ctx.job.replicas[answer.replica].world)
        if answer.accepted and model is not None and model.save(answer.step):
            self.worlds.book_saved(model)
        self.code.saves.answered(answer)

    def _work_done(self, world: str, model: WorldModel, version: int) -> None:
        """Report and save the last step of a world that has done all its steps, and end its workers with code 0."""
        if model.version != version or model.begun_ns is None or not self.code.finish(world):
            return
        self.fast_forward.report(model)
        model.save(model.pace.workload.steps)
        for start in list(model.members.values()):
            node = self._nodes[start.node]
            for local_rank in range(node.procs_of(start.replica)):
                node.exit_worker(start.replica, start.attempt, local_rank)
