"""A simulated node: the agent of production, with workers that are only entries in a table.

The link can be cut, and the node paused or dead. While both are well heartbeats are not played
(`workers.fast_forward`), but taken as sent and answered just before anything could depend on them: on the agent's side
each input (its lease), on the controller's a node that is no longer well (its failure detector). A node that is
suspected or lost plays each heartbeat, since the next one is an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flowdist.control.agent.agent import Agent
from flowdist.control.agent.fast_forward import take_heartbeat
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import Event, NodeGone
from flowdist.control.protocol.ids import ExitCause, NodeName, ReplicaId
from flowdist.control.protocol.messages import Acked, ToAgent, ToController
from flowdist.graph import MS, NodeSpec
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.network import LATENCY_NS, Direction, Disturbance, Link
from flowdist.sim.engine.queue import Queue, Violation
from flowdist.sim.engine.vault import SimVault

SPAWN_NS = 5 * MS  # from the order to fork a worker until it runs
KILL_NS = 1 * MS
NOTICES_NS = 5 * MS  # nominal, from the death of a worker to the exit of a peer whose collective fails
PROOF_NS = 10 * MS  # from the death of an agent to the arrival of its guardian's proof at the controller
LEAVE_NS = 10 * MS  # from the order to leave a generation to the suspension
RESUME_NS = 1 * MS  # from the order to start to the return of a suspended worker
BIND_NS = 200_000
GHOST_NS = 100 * MS  # from the resumption of a node to the end of attempts that were replaced meanwhile, by SIGKILL
FIRST_PORT, VAULT_PORT = 20_000, 30_000
Attempt = tuple[ReplicaId, int]


class RunningAttempts:
    """The attempt of each replica that runs anywhere in the cluster: one at most (R19).

    Attempts whose workers are suspended, and attempts on a paused node, do not count as running.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._running: dict[ReplicaId, int] = {}

    def began(self, replica: ReplicaId, attempt: int) -> None:
        """Record that an attempt runs; Violation if another one of the replica does."""
        other = self._running.get(replica)
        if other is not None:
            raise Violation("split brain", f"{replica} runs as attempt {attempt} while attempt {other} does")
        self._running[replica] = attempt

    def ended(self, replica: ReplicaId, attempt: int) -> None:
        """Remove an attempt, if it is the one that runs: it has ended, is suspended, or its node is paused now."""
        if self._running.get(replica) == attempt:
            del self._running[replica]

    def check_ghosts(self, ran: list[tuple[ReplicaId, int]], still_runs: Callable[[ReplicaId, int], bool]) -> None:
        """Record the attempts that run again on a node that has just resumed.

        Violation if, in 100 ms, one of them still runs there (`still_runs`) although another attempt of its replica
        runs too (R19).
        """
        for replica, attempt in ran:
            self._running.setdefault(replica, attempt)

        def check() -> None:
            for replica, attempt in ran:
                other = self._running.get(replica, attempt)
                if other != attempt and still_runs(replica, attempt):
                    raise Violation("split brain", f"{replica} still runs as attempt {attempt} beside attempt {other}")

        self._queue.after(GHOST_NS, check)


class ControllerSide(Protocol):
    """The controller at the other end of the link of a node: see `controller.SimController`."""

    def hear(self, message: ToController) -> None: ...
    def handle(self, event: Event) -> None: ...
    def note_heard(self, node: NodeName, at: int) -> None: ...
    def watch(self, node: SimNode) -> None: ...


class WorkerSide(Protocol):
    """The behaviour of the workers on all nodes: see `workers.work.Work`."""

    def workers_run(self, node: SimNode, start: StartReplica, kept: tuple[int, ...]) -> None: ...
    def worker_lost(self, replica: ReplicaId, attempt: int) -> None: ...
    def worker_failed(self, replica: ReplicaId, attempt: int) -> None: ...
    def ended(self, replica: ReplicaId, attempt: int) -> None: ...
    def is_deaf(self, replica: ReplicaId, attempt: int) -> bool: ...
    def step_of(self, replica: ReplicaId, attempt: int) -> int | None: ...
    def stop_at(self, node: SimNode, replica: ReplicaId, attempt: int, step: int | None) -> None: ...
    def was_stopping(self, replica: ReplicaId, attempt: int) -> bool: ...
    def show_signs(self, node: SimNode, replica: ReplicaId, attempt: int) -> None: ...
    def checkpoint_answered(self, answer: io.AnswerWorker) -> None: ...


class SimNode:
    """A node with its agent, its link and its workers.

    `starts` is the number of earlier agents of this name. Incarnations count them in thousands, as in production.
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
        self.is_heard = False  # the controller has this node as joined and not suspected: see `FailureDetector`
        self.is_paused = False
        self.comes_at_ns = 0  # when the agent connects first, at the earliest
        self._is_coming = False
        self.imported_ns: int | None = None  # when the modules of its workers are imported; None: that has not begun
        self._waiting: dict[Attempt, io.SpawnWorkers] = {}  # starts that wait for the imports
        self._delayed: list[Callable[[], None]] = []  # what happens as soon as the node resumes
        self.link = 0  # the number of the connection to the controller: messages of an earlier one do not arrive
        self.hung: dict[Attempt, None] = {}  # attempts that do nothing: they hang, or are paused
        self.workers: dict[Attempt, dict[int, None]] = {}  # alive local ranks by attempt
        self.suspended: dict[Attempt, None] = {}  # attempts whose workers have left their generation
        self._procs: dict[str, int] = {}  # workers of a replica, by role
        self._ports: dict[tuple[ReplicaId, str], int] = {}
        self._stores = 0
        self.vault = SimVault()
        self._planned: int | None = None  # when the next wake-up of the agent is planned
        self._untold_ns: int | None = None  # when the last heartbeat was sent that the controller does not know of yet

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
        """Open a connection at `comes_at_ns` or later, and join, unless no controller runs or the link is cut."""
        if self._queue.now < self.comes_at_ns:
            if not self._is_coming:
                self._queue.at(self.comes_at_ns, self.connect)
            self._is_coming = True
        elif not self._ctx.is_down and not self.net.is_cut("up") and not self.net.is_cut("down"):
            self.link += 1
            self._begin_imports()
            if not self.agent.vault.port and any(role.snapshots is not None for role in self._ctx.graph.roles):
                self.tell(io.VaultBound(VAULT_PORT))
            self.tell(io.Connected())

    def _begin_imports(self) -> None:
        """Begin to import the modules of the workers, unless the node has begun before, or no role has `import_ns`."""
        takes = max(role.workload.import_ns for role in self._ctx.graph.roles)
        if takes and self.imported_ns is None:
            self.imported_ns = self._queue.now + takes
            self.agent.is_warming = True  # its join says so
            self._queue.after(takes, self.tell, io.WarmedUp())

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
        """Pass an input to the agent, and carry out its outputs; on a paused node when it resumes."""
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
        """Renew the lease as if each heartbeat that could be sent and answered by now had been.

        One that was due, but cannot have been answered yet, is put on its way: it, or its answer, may still be lost.
        """
        if self._plays_heartbeats:
            return
        sent_ns = self.agent.lease.renew(now - 1, 2 * LATENCY_NS)
        if sent_ns is not None:
            self._untold_ns = sent_ns
        beat = take_heartbeat(self.agent, now)
        if beat is None:
            return
        heard_ns = beat.sent_ns + LATENCY_NS
        if heard_ns >= now:  # sent now, it and all messages after it would be later than where each one is played
            self._queue.at(heard_ns, self._arrive, beat, self.link)
        else:
            self._untold_ns = beat.sent_ns
            answer = Acked(self.agent.epoch, beat.incarnation, beat.sent_ns, heard_ns)
            self._queue.at(heard_ns + LATENCY_NS, self.receive, answer, self.link)

    def renew(self) -> None:
        """Renew the lease, and update the failure detector, before anything that could depend on a heartbeat."""
        if self.is_alive and not self.is_paused:
            self._renew_lease(self._queue.now)
        sent_ns, self._untold_ns = self._untold_ns, None
        if sent_ns is not None:
            self._controller.note_heard(self.spec.name, sent_ns + LATENCY_NS)

    def receive(self, message: ToAgent, link: int) -> None:
        """Pass a message of the controller to the agent, unless the link is cut, or its connection (`link`) is old."""
        if link == self.link and (self.net.is_quiet or not self.net.is_cut("down")):
            self.tell(message)

    def cut(self, why: str, *directions: Direction) -> None:
        """Cut the link in these directions until `heal(why)`. The agent keeps its lease until it runs out."""
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
        """End the faults of a cause on the link, which becomes quiet once late messages have arrived."""
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

    def running(self) -> list[Attempt]:
        """Return the attempts of which at least one worker is alive and not suspended."""
        return [key for key, alive in self.workers.items() if alive and key not in self.suspended]

    def waits(self, action: Callable[[], None]) -> bool:
        """Return whether the node is paused, and call `action` when it resumes if it is."""
        if self.is_paused:
            self._delayed.append(action)
        return self.is_paused

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
        """End a worker, if it runs, and tell the agent by a `WorkerExited` with these arguments.

        A paused worker ends when it resumes. A code other than 0, or a signal, halts the world of the worker.
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
        stops = self._workers.was_stopping(replica, attempt)
        self._workers.worker_lost(replica, attempt)
        del alive[local_rank]
        if not alive:
            self.suspended.pop((replica, attempt), None)
            self._end(replica, attempt)
        if code or signal:
            self._workers.worker_failed(replica, attempt)
        ends = io.WorkerExited(replica, attempt, local_rank, code, signal, kind, detail, None, cause, stops)  # type: ignore[arg-type]
        self.tell(ends)

    def _end(self, replica: ReplicaId, attempt: int) -> None:
        self._running.ended(replica, attempt)
        self._workers.ended(replica, attempt)

    def replan(self) -> None:
        """Plan the agent's next wake-up anew, after `is_heard` has changed: heartbeats may be deadlines now."""
        if self.is_alive and not self.is_paused:
            self._plan()

    def _plan(self) -> None:
        """Plan a wake-up at the deadline of the agent, of its lease only while heartbeats are played."""
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
            case io.VaultOrder():
                self.vault.obey(output.order)
            case io.KillStore() | io.WritePeers():
                pass
            case io.EndAgent():
                self.is_alive = False
                self._controller.watch(self)
                self._queue.after(PROOF_NS, self._prove_end)

    def _prove_end(self) -> None:
        """Let the controller know that the agent has ended, unless it knows, or cannot be reached."""
        known = self._ctx.job.nodes.get(self.spec.name)
        if known is not None and known.usable and not self.net.is_cut("up"):
            self._controller.handle(NodeGone(self.spec.name, "its agent has ended"))

    def _send(self, message: ToController) -> None:
        self.net.send("up", self._queue, self._arrive, message, self.link)

    def _arrive(self, message: ToController, link: int) -> None:
        if link == self.link and not self._ctx.is_down:
            self._controller.hear(message)

    def _leave(self, order: io.LeaveGeneration) -> None:
        """Suspend the workers of an attempt, unless it hangs, and tell the agent; on a paused node, when it resumes."""
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
        """Start the workers of an attempt: suspended ones rejoin at once, the others are new processes.

        With `import_ns` these are forked from the process that imports, so they wait for it.
        """
        start = output.start
        for key in [key for key in self.suspended if key[0] == start.replica and output.kept]:
            del self.suspended[key]
            self.workers[start.replica, start.attempt] = self.workers.pop(key)
        is_fresh = len(output.kept) < self.procs_of(start.replica)
        rest_ns = (self.imported_ns or 0) - self._queue.now
        if is_fresh and rest_ns > 0 and self._ctx.graph.role(start.replica.role).workload.import_ns:
            self._waiting[start.replica, start.attempt] = output
            self._queue.after(rest_ns + SPAWN_NS, self._imported, (start.replica, start.attempt))
        else:
            self._queue.after(SPAWN_NS if is_fresh else RESUME_NS, self._spawned, output)

    def _imported(self, key: Attempt) -> None:
        order = self._waiting.pop(key, None)
        if order is not None:
            self._spawned(order)

    def _give_up_waiting(self, replica: ReplicaId, attempt: int) -> None:
        """End the new workers of an attempt that still wait for the imports, as if SIGTERM had ended them."""
        order = self._waiting.pop((replica, attempt), None)
        if order is not None:
            self._spawned(order)
            for local_rank in [rank for rank in range(self.procs_of(replica)) if rank not in order.kept]:
                self.exit_worker(replica, attempt, local_rank, signal="TERM")

    def _spawned(self, order: io.SpawnWorkers, was_paused: bool = False) -> None:
        """Let the workers of an attempt run, and tell the agent; on a paused node when it resumes (`was_paused`)."""
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
        for name in role.ports:  # chosen once, and kept for later attempts on this node
            self._ports.setdefault((start.replica, name), FIRST_PORT + len(self._ports))
        ports = tuple((name, self._ports[start.replica, name]) for name in role.ports)
        self.tell(io.WorkersSpawned(*key, ports))
        self._workers.workers_run(self, start, kept)

    def procs_of(self, replica: ReplicaId) -> int:
        """Return the number of workers of a replica on this node."""
        procs = self._procs.get(replica.role)
        if procs is None:
            procs = self._procs[replica.role] = self._ctx.graph.role(replica.role).procs_on(self.spec)
        return procs

    def _signal(self, output: io.SignalWorkers) -> None:
        key = (output.replica, output.attempt)
        if output.signal != "KILL" and (key in self.hung or self._workers.is_deaf(*key)):
            return  # no handler of the worker runs
        delay = KILL_NS if output.signal == "KILL" else self._ctx.graph.role(output.replica.role).workload.stop_ns
        for local_rank in self.workers.get((output.replica, output.attempt), {}):
            self._queue.after(delay, self._end_by_signal, output, local_rank)

    def _end_by_signal(self, output: io.SignalWorkers, local_rank: int) -> None:
        self.exit_worker(output.replica, output.attempt, local_rank, signal=output.signal)
