"""A simulated node: the agent of production over processes that are only numbers.

The link to the controller can be cut, and the node can be paused or die. While node and link are well, heartbeats are
not played one by one. They are taken as sent and answered just before anything could depend on them: on the agent's
side before each input (its lease), on the controller's side when a node is no longer well (its failure detector). A
node that is suspected or lost plays each heartbeat, since the next one is an event. `workers.fast_forward` tells the
whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.protocol.messages import Acked, Heartbeat, ToAgent, ToController
from flowdist.graph import MS, NodeSpec
from flowdist.sim.engine.attempts import RunningAttempts
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.network import LATENCY_NS, Direction, Disturbance, Link

SPAWN_NS = 5 * MS
TERM_NS = 100 * MS  # from SIGTERM to the end of a worker that obeys
KILL_NS = 1 * MS
LEAVE_NS = 10 * MS  # from the order to leave a generation to the suspension
RESUME_NS = 1 * MS  # from the order to start to the return of a suspended worker
BIND_NS = 200_000
ROUND_TRIP_NS = 2 * LATENCY_NS
FIRST_PORT = 20_000


class ControllerSide(Protocol):
    """The controller, as far as a node concerns it."""

    def hear(self, message: ToController) -> None:
        """Receive a message of the agent."""

    def note_heard(self, node: NodeName, at: int) -> None:
        """Note heartbeats of the node that were not played; the last of them arrived at `at`."""

    def watch(self, node: SimNode) -> None:
        """Update whether the silence of the node may become too long."""


class WorkerSide(Protocol):
    """The workers on all nodes, as far as a node concerns them. An attempt is given by its replica and its number."""

    def workers_run(self, node: SimNode, start: StartReplica, kept: tuple[int, ...]) -> None:
        """Begin the work of an attempt whose processes run; those of the local ranks in `kept` were suspended."""

    def worker_lost(self, replica: ReplicaId, attempt: int) -> None:
        """Note that workers of an attempt are about to end, while they are still members of their process groups."""

    def worker_failed(self, replica: ReplicaId, attempt: int) -> None:
        """Stop the world of an attempt, one of whose workers has failed."""

    def ended(self, replica: ReplicaId, attempt: int) -> None:
        """Stop the world of an attempt of which no worker runs any more."""

    def is_deaf(self, replica: ReplicaId, attempt: int) -> bool:
        """Return whether the workers run no signal handler, because they are inside a collective that never ends."""

    def step_of(self, replica: ReplicaId, attempt: int) -> int | None:
        """Return the step that the workers are at; None if they do not step, or not yet."""

    def stop_at(self, node: SimNode, replica: ReplicaId, attempt: int, step: int | None) -> None:
        """Have the workers stop at a step, as `should_stop()` does."""

    def show_signs(self, node: SimNode, replica: ReplicaId, attempt: int) -> None:
        """Show the agent the progress and the output of the workers."""

    def checkpoint_answered(self, answer: io.AnswerWorker) -> None:
        """Receive the answer to a commit."""


class SimNode:
    """A node with its agent and its link.

    Args:
        ctx: The simulation.
        spec: The node.
        controller: The other end of the link.
        workers: What the workers on the node do.
        running: The check that no replica runs twice.
        starts: The number of earlier agents on this node. Incarnations count them in thousands, as in production.
    """

    def __init__(
        self,
        ctx: Context,
        spec: NodeSpec,
        controller: ControllerSide,
        workers: WorkerSide,
        running: RunningAttempts,
        starts: int = 0,
    ) -> None:
        self._ctx, self.spec, self.starts = ctx, spec, starts
        self._queue, self._controller, self._workers, self._running = ctx.queue, controller, workers, running
        self.agent = Agent(spec, ctx.graph, incarnation=1000 * starts + 1)
        self.is_alive = True
        self.net = Link(spec.name, ctx.seed, apart_ns=1 if ctx.schedule else 0)
        self.is_heard = False  # the next heartbeat is no event: a copy of what the controller's sessions say
        self.is_paused = False
        self.comes_at_ns = 0  # when the agent starts
        self._is_coming = False
        self._delayed: list[Callable[[], None]] = []  # what happens as soon as the node resumes
        self.link = 0  # the number of the connection to the controller: messages of an earlier one do not arrive
        self.hung: dict[tuple[ReplicaId, int], None] = {}  # attempts that do nothing any more
        self.workers: dict[tuple[ReplicaId, int], dict[int, None]] = {}  # alive local ranks by attempt
        self.suspended: dict[tuple[ReplicaId, int], None] = {}  # attempts whose workers have left their generation
        self._procs: dict[str, int] = {}  # workers of a replica, by role
        self._ports: dict[tuple[ReplicaId, str], int] = {}
        self._stores = 0
        self._planned: int | None = None
        self._beat_ns: int | None = None  # when the last heartbeat was sent that was not played
        self._beats_wait = False  # the controller does not know of that heartbeat yet

    @property
    def is_well(self) -> bool:
        """The node lives, is heard, and its link has no fault, so no deadline depends on a single heartbeat."""
        return self.is_alive and self.net.is_quiet and self.is_heard

    @property
    def _plays_heartbeats(self) -> bool:
        return not (self.is_heard and self.net.is_quiet) or self._ctx.plays_heartbeats

    def connect(self) -> None:
        """Connect to the controller as soon as the agent runs, unless there is no controller or the link is cut."""
        if self._queue.now < self.comes_at_ns:
            if not self._is_coming:
                self._queue.at(self.comes_at_ns, self.connect)
            self._is_coming = True
        elif not self._ctx.is_down and not self.net.is_cut("up") and not self.net.is_cut("down"):
            self.link += 1
            self.tell(io.Connected())

    def lose_link(self) -> None:
        """Lose the connection because the controller died. Messages on their way are lost, and new ones are refused."""
        self.renew()
        self.link += 1
        if self.net.is_quiet:
            self.tell(io.Disconnected())
            self.tell(io.Refused(is_local=True))

    def tell(self, event: io.AgentInput) -> None:
        """Pass an input to the agent, now or when the node resumes."""
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
        """Pass an input about each worker of an attempt: made from replica, attempt, local rank and `more`."""
        for local_rank in range(self.procs_of(replica)):
            self.tell(event(replica, attempt, local_rank, *more))

    def _renew_lease(self, now: int) -> None:
        """Take the heartbeats as played that could have been sent and answered before now."""
        if self._plays_heartbeats:
            return
        sent = self.agent.lease.renew(now - 1, ROUND_TRIP_NS)
        if sent is not None:
            self._beat_ns, self._beats_wait = sent, True
        beat = self.agent.take_heartbeat(now)
        if beat is not None:
            self._send_late(beat)

    def _send_late(self, beat: Heartbeat) -> None:
        """Put a heartbeat on its way that was sent some moments ago; it, or its answer, may still be lost.

        Sent now it would arrive later than it does where every heartbeat is played, and so would all that follow.
        """
        now, sent = self._queue.now, beat.sent_ns
        if sent + LATENCY_NS >= now:
            self._queue.at(sent + LATENCY_NS, self._arrive, beat, self.link)
        else:
            self._beat_ns, self._beats_wait = sent, True
            answer = Acked(self.agent.epoch, beat.incarnation, sent)
            self._queue.at(sent + ROUND_TRIP_NS, self.receive, answer, self.link)

    def renew(self) -> None:
        """Take the heartbeats as played that could have been, on both sides of the link."""
        if self.is_alive and not self.is_paused:
            self._renew_lease(self._queue.now)
        if self._beats_wait and self._beat_ns is not None:
            self._beats_wait = False
            self._controller.note_heard(self.spec.name, self._beat_ns + LATENCY_NS)

    def receive(self, message: ToAgent, link: int) -> None:
        """Receive a message of the controller, unless the link is cut or the connection is another one by now."""
        if link == self.link and (self.net.is_quiet or not self.net.is_cut("down")):
            self.tell(message)

    def cut(self, why: str, *directions: Direction) -> None:
        """Cut the link. The lease stands as far as it was acknowledged."""
        self.renew()
        self.net.cut(why, *directions)
        self._controller.watch(self)
        self._plan()

    def disturb(self, why: str, kind: Disturbance, by: float) -> None:
        """Add a fault of the cause `why` to the link, unless it changes nothing: see `Link.disturb`."""
        self.renew()
        if by:
            self.net.disturb(why, kind, by)
        self._controller.watch(self)
        self._plan()

    def heal(self, why: str) -> None:
        """End a fault of the link. A connection that was cut is made anew."""
        was_cut = self.net.is_cut("up") or self.net.is_cut("down")
        self._mend_link(why)
        if was_cut and not self.net.is_cut("up") and not self.net.is_cut("down"):
            self.tell(io.Disconnected())
            self.connect()

    def _mend_link(self, why: str) -> None:
        """End a fault of the link.

        The link is not quiet until late messages are there, since a heartbeat waits behind them.
        """
        self.net.heal(why)
        late_ns = self.net.late_ns(self._queue.now)
        if self.net.is_quiet and late_ns > 0:
            self.net.disturb("late", "delay", 0)
            self._queue.after(late_ns, self._mend_link, "late")
        self._controller.watch(self)

    def pause(self) -> None:
        """Give the agent and the workers no CPU. Messages wait."""
        self.renew()
        self.is_paused = True
        self.net.cut("paused")  # cuts no direction, but ends the quiet of the link: heartbeats are played
        self._controller.watch(self)
        for key in self.running():
            self._running.ended(*key)

    def running(self) -> list[tuple[ReplicaId, int]]:
        """Return the attempts whose workers run and are not suspended."""
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
        """End the agent and all workers at once."""
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
    ) -> None:
        """End a worker: see `io.WorkerExited` for what the arguments mean."""
        alive = self.workers.get((replica, attempt), {})
        if not self.is_alive or local_rank not in alive:
            return
        if self.is_paused:
            self._delayed.append(
                lambda: self.exit_worker(
                    replica, attempt, local_rank, code=code, signal=signal, kind=kind, detail=detail
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
        self.tell(io.WorkerExited(replica, attempt, local_rank, code, signal, kind, detail))  # type: ignore[arg-type]

    def _end(self, replica: ReplicaId, attempt: int) -> None:
        self._running.ended(replica, attempt)
        self._workers.ended(replica, attempt)

    def replan(self) -> None:
        """Plan the next wake-up again, since heartbeats are played now or not any more."""
        if self.is_alive and not self.is_paused:
            self._plan()

    def _plan(self) -> None:
        """Plan a wake-up at the deadline of the agent. While it is heard, heartbeats and lease are no deadline."""
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
            case io.KillStore() | io.WritePeers() | io.HurrySpawn():
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
        """Suspend the workers of an attempt that are to leave their generation. A worker that hangs does not leave."""
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
        """Start the workers of an attempt. Suspended ones belong to the new attempt at once; others take a moment."""
        start = output.start
        for key in [key for key in self.suspended if key[0] == start.replica and output.kept]:
            del self.suspended[key]
            self.workers[start.replica, start.attempt] = self.workers.pop(key)
        is_fresh = len(output.kept) < self.procs_of(start.replica)
        self._queue.after(SPAWN_NS if is_fresh else RESUME_NS, self._spawned, start, output.kept)

    def _spawned(self, start: StartReplica, kept: tuple[int, ...], was_paused: bool = False) -> None:
        if not self.is_alive:
            return
        if self.is_paused:  # the fork gets no CPU either; when it does it may be a ghost: see check_ghosts
            self._delayed.append(lambda: self._spawned(start, kept, was_paused=True))
            return
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
        """Return a port of a replica: chosen once and kept for later attempts on the node, as in production."""
        return self._ports.setdefault((replica, name), FIRST_PORT + len(self._ports))

    def _signal(self, output: io.SignalWorkers) -> None:
        key = (output.replica, output.attempt)
        if output.signal != "KILL" and (key in self.hung or self._workers.is_deaf(*key)):
            return  # no handler of the worker runs
        delay = KILL_NS if output.signal == "KILL" else TERM_NS
        for local_rank in self.workers.get((output.replica, output.attempt), {}):
            self._queue.after(delay, self._end_by_signal, output, local_rank)

    def _end_by_signal(self, output: io.SignalWorkers, local_rank: int) -> None:
        self.exit_worker(output.replica, output.attempt, local_rank, signal=output.signal)
