"""A simulated node: the agent of production, with workers that are only entries in a table.

The link to the controller can be cut, and the node can be paused or die. While node and link are well, heartbeats are
not played one by one. They are taken as sent and answered just before anything could depend on them: on the agent's
side before each input (its lease), on the controller's side when a node is no longer well (its failure detector). A
node that is suspected or lost plays each heartbeat, since the next one is an event. `workers.fast_forward` explains
the whole mechanism.
"""

from __future__ import annotations

from collections.abc import Callable

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.ids import ExitCause, NodeName, ReplicaId
from flowdist.control.protocol.messages import ToAgent, ToController
from flowdist.graph import MS, NodeSpec
from flowdist.sim.engine.attempts import RunningAttempts
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.heartbeats import ROUND_TRIP_NS, ComputedHeartbeats
from flowdist.sim.engine.imports import SPAWN_NS, Imports
from flowdist.sim.engine.network import LATENCY_NS, Direction, Disturbance, Link
from flowdist.sim.engine.sides import ControllerSide, WorkerSide

KILL_NS = 1 * MS
NOTICES_NS = 5 * MS  # nominal, from the death of a worker to the exit of a peer whose collective fails
LEAVE_NS = 10 * MS  # from the order to leave a generation to the suspension
RESUME_NS = 1 * MS  # from the order to start to the return of a suspended worker
BIND_NS = 200_000
FIRST_PORT = 20_000


class SimNode:
    """A node with its agent, its link and its workers.

    Args:
        ctx: The simulation.
        spec: Name, labels and capacity of the node.
        controller: The other end of the link.
        workers: The behaviour of the workers on all nodes.
        running: The check that no replica runs twice.
        starts: The number of earlier agents of this name. Incarnations count them in thousands, as in production.
    """

    def __init__(
        self,
        ctx: Context,
        spec: NodeSpec,
        controller: ControllerSide[SimNode],
        workers: WorkerSide[SimNode],
        running: RunningAttempts,
        starts: int = 0,
    ) -> None:
        self._ctx, self.spec, self.starts = ctx, spec, starts
        self._queue, self._controller, self._workers, self._running = ctx.queue, controller, workers, running
        self.agent = Agent(spec, ctx.graph, incarnation=1000 * starts + 1)
        self.is_alive = True
        self.net = Link(spec.name, ctx.seed, apart_ns=1 if ctx.schedule else 0)
        self.is_heard = False  # the controller has this node as joined and not suspected: see `Sessions.is_heard`
        self.is_paused = False
        self.comes_at_ns = 0  # when the agent connects first, at the earliest
        self._is_coming = False
        self.imports = Imports(ctx)
        self._delayed: list[Callable[[], None]] = []  # what happens as soon as the node resumes
        self.link = 0  # the number of the connection to the controller: messages of an earlier one do not arrive
        self.hung: dict[tuple[ReplicaId, int], None] = {}  # attempts that do nothing: they hang, or are paused
        self.workers: dict[tuple[ReplicaId, int], dict[int, None]] = {}  # alive local ranks by attempt
        self.suspended: dict[tuple[ReplicaId, int], None] = {}  # attempts whose workers have left their generation
        self._procs: dict[str, int] = {}  # workers of a replica, by role
        self._ports: dict[tuple[ReplicaId, str], int] = {}
        self._stores = 0
        self._planned: int | None = None  # when the next wake-up of the agent is planned
        self._beats = ComputedHeartbeats(self.agent)

    @property
    def name(self) -> NodeName:
        """The name of the node."""
        return self.spec.name

    @property
    def is_well(self) -> bool:
        """Return whether the node lives, is heard, and its link has no fault: no deadline depends on one heartbeat."""
        return self.is_alive and self.net.is_quiet and self.is_heard

    @property
    def _plays_heartbeats(self) -> bool:
        return not (self.is_heard and self.net.is_quiet) or self._ctx.plays_heartbeats

    def connect(self) -> None:
        """Open a new connection to the controller: the agent gets `Connected`, and joins.

        Before `comes_at_ns` the node connects at that time. Nothing happens while no controller runs or the link is
        cut; the next controller, or `heal`, calls again.
        """
        if self._queue.now < self.comes_at_ns:
            if not self._is_coming:
                self._queue.at(self.comes_at_ns, self.connect)
            self._is_coming = True
        elif not self._ctx.is_down and not self.net.is_cut("up") and not self.net.is_cut("down"):
            self.link += 1
            if takes := self.imports.begin():
                self.agent.is_warming = True  # its join says so
                self._queue.after(takes, self.tell, io.WarmedUp())
            self.tell(io.Connected())

    def lose_link(self) -> None:
        """Lose the connection, because the controller has died: messages that are on their way are dropped.

        On a link without a fault the agent gets `Disconnected` and `Refused`, and so knows that no controller runs.
        """
        self.renew()
        self.link += 1
        if self.net.is_quiet:
            self.tell(io.Disconnected())
            self.tell(io.Refused(is_local=True))

    def tell(self, event: io.AgentInput) -> None:
        """Pass an input to the agent, and carry out its outputs.

        A paused node does so when it resumes, a dead one never. Heartbeats that were not played renew the lease first.
        """
        if not self.is_alive:
            return
        if self.is_paused:
            self._delayed.append(lambda: self.tell(event))
            return
        now, beat_at = self._queue.now, self.agent.lease.beat_at_ns
        if beat_at is not None and beat_at < now:
            self._renew_lease(now)
        for output in self.agent.handle(event, now):
            self._carry_out(output)
        self._plan()

    def tell_of_workers(
        self, event: Callable[..., io.AgentInput], replica: ReplicaId, attempt: int, *more: int
    ) -> None:
        """Pass one input for each worker of an attempt to the agent: `event(replica, attempt, local_rank, *more)`."""
        for local_rank in range(self.procs_of(replica)):
            self.tell(event(replica, attempt, local_rank, *more))

    def _renew_lease(self, now: int) -> None:
        """Renew the agent's lease as if each heartbeat that could be sent and answered before now had been.

        A heartbeat that was due, but cannot have been answered yet, is put on its way. It, or its answer, may still be
        lost. While heartbeats are played nothing is done.
        """
        if self._plays_heartbeats:
            return
        beat = self._beats.renew(now)
        if beat is not None and self._beats.is_on_its_way(beat, now):
            self._queue.at(beat.sent_ns + LATENCY_NS, self._arrive, beat, self.link)
        elif beat is not None:
            self._queue.at(beat.sent_ns + ROUND_TRIP_NS, self.receive, self._beats.answer_to(beat), self.link)

    def renew(self) -> None:
        """Renew the agent's lease, and update the failure detector, as if the heartbeats so far had been played.

        Called before anything that could depend on a heartbeat: a fault of node or link, a wake-up of the controller.
        """
        if self.is_alive and not self.is_paused:
            self._renew_lease(self._queue.now)
        heard_ns = self._beats.take_heard()
        if heard_ns is not None:
            self._controller.note_heard(self.spec.name, heard_ns)

    def receive(self, message: ToAgent, link: int) -> None:
        """Pass a message of the controller to the agent, unless the link is cut.

        A message that was sent over an earlier connection (`link` is its number) is dropped too.
        """
        if link == self.link and (self.net.is_quiet or not self.net.is_cut("down")):
            self.tell(message)

    def cut(self, why: str, *directions: Direction) -> None:
        """Cut the link in these directions until `heal(why)`.

        The agent keeps its lease until it runs out: heartbeats that were acknowledged before the cut count.
        """
        self.renew()
        self.net.cut(why, *directions)
        self._controller.watch(self)
        self._plan()

    def disturb(self, why: str, kind: Disturbance, by: float) -> None:
        """Add a fault to the link until `heal(why)`: see `Link.disturb`. With `by` 0 there is none."""
        self.renew()
        if by:
            self.net.disturb(why, kind, by)
        self._controller.watch(self)
        self._plan()

    def heal(self, why: str) -> None:
        """End the faults of the cause `why` on the link. If that ends the last cut the agent connects anew."""
        was_cut = self.net.is_cut("up") or self.net.is_cut("down")
        self._mend_link(why)
        if was_cut and not self.net.is_cut("up") and not self.net.is_cut("down"):
            self.tell(io.Disconnected())
            self.connect()

    def _mend_link(self, why: str) -> None:
        """End the faults of the cause `why` on the link.

        If late messages are still on their way the link becomes quiet only after their arrival, since a heartbeat waits
        behind them.
        """
        self.net.heal(why)
        late_ns = self.net.late_ns(self._queue.now)
        if self.net.is_quiet and late_ns > 0:
            self.net.disturb("late", "delay", 0)
            self._queue.after(late_ns, self._mend_link, "late")
        self._controller.watch(self)

    def pause(self) -> None:
        """Give the agent and the workers no CPU until `resume`. What happens to them meanwhile waits."""
        self.renew()
        self.is_paused = True
        self.net.cut("paused")  # a cut of no direction: heartbeats are played
        self._controller.watch(self)
        for key in self.running():
            self._running.ended(*key)

    def running(self) -> list[tuple[ReplicaId, int]]:
        """Return the attempts of which at least one worker is alive and not suspended."""
        return [key for key, alive in self.workers.items() if alive and key not in self.suspended]

    def resume(self) -> None:
        """Resume a paused node. The agent handles its overdue deadlines before any queued message (R19)."""
        self.is_paused = False
        self.tell(io.AgentTimePassed())
        self._mend_link("paused")  # only now: no heartbeat was sent during the pause
        delayed, self._delayed = self._delayed, []
        for happen in delayed:
            happen()
        self._running.check_ghosts(self.running(), self._still_runs)

    def _still_runs(self, replica: ReplicaId, attempt: int) -> bool:
        return self.is_alive and bool(self.workers.get((replica, attempt)))

    def die(self) -> None:
        """End the agent and all workers at once, without a message to the controller. The node stays dead."""
        self.renew()
        ran = [key for key, alive in self.workers.items() if alive]
        self.is_alive = False
        self._controller.watch(self)
        for key in ran:
            self._workers.worker_lost(*key)
        for key in ran:
            self._end(*key)
        self.workers.clear()

    def exit_worker(
        self,
        replica: ReplicaId,
        attempt: int,
        local_rank: int,
        *,
        code: int = 0,
        signal: str | None = None,
        kind: str | None = None,
        detail: str = "",
        cause: ExitCause = "",
    ) -> None:
        """End a worker, and tell the agent by a `WorkerExited` with these arguments.

        A code other than 0, or a signal, halts the world of the worker. On a paused node the worker ends when the node
        resumes. Nothing happens if the node is dead or the worker does not run.
        """
        alive = self.workers.get((replica, attempt), {})
        if not self.is_alive or local_rank not in alive:
            return
        if self.is_paused:
            self._delayed.append(
                lambda: self.exit_worker(
                    replica, attempt, local_rank, code=code, signal=signal, kind=kind, detail=detail, cause=cause
                )
            )
            return
        self._workers.worker_lost(replica, attempt)
        del alive[local_rank]
        if not alive:
            self.suspended.pop((replica, attempt), None)
            self._end(replica, attempt)
        if code or signal:
            self._workers.worker_failed(replica, attempt)
        ended = io.WorkerExited(replica, attempt, local_rank, code, signal, kind, detail, cause=cause)  # type: ignore[arg-type]
        self.tell(ended)

    def _end(self, replica: ReplicaId, attempt: int) -> None:
        self._running.ended(replica, attempt)
        self._workers.ended(replica, attempt)

    def replan(self) -> None:
        """Plan the agent's next wake-up again, after `is_heard` has changed: heartbeats may be deadlines now.

        Nothing is planned on a node that is dead or paused.
        """
        if self.is_alive and not self.is_paused:
            self._plan()

    def _plan(self) -> None:
        """Plan a wake-up at the deadline of the agent, unless an earlier one is planned.

        Heartbeats and the lease count as deadlines only while heartbeats are played.
        """
        due = self.agent.deadline() if self._plays_heartbeats else self.agent.due_at_ns
        if due is None or (self._planned is not None and self._queue.now < self._planned <= due):
            return
        self._planned = due
        self._queue.at(due, self._wake, due)

    def _wake(self, due: int) -> None:
        if self._planned != due:
            return
        self._planned = None
        if self.is_paused:
            return
        duty = self.agent.due_at_ns
        if self._plays_heartbeats or (duty is not None and duty <= self._queue.now):
            self.tell(io.AgentTimePassed())
        elif self.is_alive:
            self._plan()  # the wake-up was for a heartbeat that is taken as played by now

    def _carry_out(self, output: io.AgentOutput) -> None:
        match output:
            case io.Send():
                self._send(output.message)
            case io.SpawnWorkers():
                self._spawn(output)
            case io.LeaveGeneration():
                self._queue.after(LEAVE_NS, self._leave, output)
            case io.SignalWorkers():
                self._signal(output)
            case io.BindStore():
                self._stores += 1
                port = FIRST_PORT - self._stores
                bound = io.StoreBound(output.world, output.generation, port)
                self._queue.after(BIND_NS, self.tell, bound)
            case io.AnswerWorker():
                self._workers.checkpoint_answered(output)
            case io.LookForSigns():
                self._workers.show_signs(self, output.replica, output.attempt)
            case io.AskWorkers():
                step = self._workers.step_of(output.replica, output.attempt)
                answer = io.WorkersAsked(output.replica, output.attempt, step)
                self._queue.after(BIND_NS, self.tell, answer)
            case io.TellWorkers():
                self._workers.stop_at(self, output.replica, output.attempt, output.step)
            case io.HurrySpawn():
                self._queue.after(KILL_NS, self._give_up_waiting, output.replica, output.attempt)
            case io.KillStore() | io.WritePeers():
                pass
            case io.EndAgent():
                self.is_alive = False
                self._controller.watch(self)

    def _send(self, message: ToController) -> None:
        if self.net.is_quiet:
            self._queue.at(self.net.arrival("up", self._queue.now), self._arrive, message, self.link)
        elif not self.net.is_cut("up"):
            for at in self.net.arrivals("up", self._queue.now):
                self._queue.at(at, self._arrive, message, self.link)

    def _arrive(self, message: ToController, link: int) -> None:
        if link == self.link and not self._ctx.is_down:
            self._controller.hear(message)

    def _leave(self, order: io.LeaveGeneration) -> None:
        """Suspend the workers of an attempt, and tell the agent; on a paused node, when it resumes.

        An attempt that hangs, or has ended, is not suspended.
        """
        key = (order.replica, order.attempt)
        if not self.workers.get(key) or key in self.hung:
            return
        if self.is_paused:
            self._delayed.append(lambda: self._leave(order))
            return
        self.suspended[key] = None
        self._end(*key)
        for local_rank in list(self.workers[key]):
            self.tell(io.WorkerSuspended(*key, local_rank))

    def _spawn(self, output: io.SpawnWorkers) -> None:
        """Start the workers of an attempt: suspended ones rejoin, and the others are new processes.

        Suspended workers belong to the new attempt at once. All run 5 ms later, or 1 ms later if none is new. New
        processes of a role with `import_ns` are forked from the process that imports, so they wait for its imports.
        """
        start = output.start
        for key in [key for key in self.suspended if key[0] == start.replica and output.kept]:
            del self.suspended[key]
            self.workers[start.replica, start.attempt] = self.workers.pop(key)
        is_fresh = len(output.kept) < self.procs_of(start.replica)
        if not (is_fresh and self.imports.wait(output, self._spawned)):
            self._queue.after(SPAWN_NS if is_fresh else RESUME_NS, self._spawned, output)

    def _give_up_waiting(self, replica: ReplicaId, attempt: int) -> None:
        """End the new workers of an attempt that still wait for the imports, as if SIGTERM had ended them."""
        order = self.imports.give_up(replica, attempt)
        if order is not None:
            self._spawned(order)
            for local_rank in [rank for rank in range(self.procs_of(replica)) if rank not in order.kept]:
                self.exit_worker(replica, attempt, local_rank, signal="TERM")

    def _spawned(self, order: io.SpawnWorkers, was_paused: bool = False) -> None:
        """Let the workers of an attempt run, new and suspended ones, and tell the agent (`WorkersSpawned`).

        On a paused node they run when it resumes (`was_paused`), on a dead node never.
        """
        if not self.is_alive:
            return
        if self.is_paused:  # the attempt may be replaced by the time it gets CPU: see check_ghosts
            self._delayed.append(lambda: self._spawned(order, was_paused=True))
            return
        start, kept = order.start, order.kept
        role = self._ctx.graph.role(start.replica.role)
        key = (start.replica, start.attempt)
        alive = self.workers.setdefault(key, {})
        alive.update(dict.fromkeys(rank for rank in range(self.procs_of(start.replica)) if rank not in kept))
        if not alive:
            return
        if not was_paused:
            self._running.began(*key)
        ports = tuple((name, self._port(start.replica, name)) for name in role.ports)
        self.tell(io.WorkersSpawned(*key, ports))
        self._workers.workers_run(self, start, kept)

    def procs_of(self, replica: ReplicaId) -> int:
        """Return the number of workers of a replica on this node."""
        procs = self._procs.get(replica.role)
        if procs is None:
            procs = self._procs[replica.role] = self._ctx.graph.role(replica.role).procs_on(self.spec)
        return procs

    def _port(self, replica: ReplicaId, name: str) -> int:
        """Return the number of a named port of a replica: chosen once, and kept for later attempts on this node."""
        return self._ports.setdefault((replica, name), FIRST_PORT + len(self._ports))

    def _signal(self, output: io.SignalWorkers) -> None:
        key = (output.replica, output.attempt)
        if output.signal != "KILL" and (key in self.hung or self._workers.is_deaf(*key)):
            return  # no handler of the worker runs
        delay = KILL_NS if output.signal == "KILL" else self._ctx.graph.role(output.replica.role).workload.stop_ns
        for local_rank in self.workers.get((output.replica, output.attempt), {}):
            self._queue.after(delay, self._end_by_signal, output, local_rank)

    def _end_by_signal(self, output: io.SignalWorkers, local_rank: int) -> None:
        self.exit_worker(output.replica, output.attempt, local_rank, signal=output.signal)
