"""The agent of one node, as a pure state machine: it starts and stops workers on order, and reports what they do.

`Agent.handle` takes an input (a message of the controller, or a fact about a process or the connection) with its time,
and returns the outputs for the driver: messages to send, processes to start, signal or ask. The agent reads no clock
and does no I/O, so that production, the simulator and the proofs run the same code. `fast_forward` has what only a
simulator asks.

The agent holds a lease. When the lease is about to run out it *fences*: it kills everything, before the controller may
replace it elsewhere (R19; see `lease`). Orders are idempotent: one that comes twice is carried out once, and one for an
attempt that is over changes nothing (R20).
"""

from __future__ import annotations

from typing import assert_never

from flowdist.control.agent import signs, suspended
from flowdist.control.agent.attempts import Attempt, exit_event, first_date, name_culprit
from flowdist.control.agent.lease import Lease
from flowdist.control.agent.vault import Vault
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import effects as fx
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import CloseStore, OpenStore
from flowdist.control.protocol.ids import ReplicaId, WorldName
from flowdist.graph import NodeSpec, RoleGraph


class Agent:
    """Agent of one node. Times are on its own clock, in ns; that of the controller may differ.

    `address` is where workers of other nodes reach this one. `incarnation` is the number of this agent among those of
    the node; it grows whenever the agent has lost its workers.
    """

    def __init__(self, spec: NodeSpec, graph: RoleGraph, address: str = "127.0.0.1", incarnation: int = 1) -> None:
        self.spec, self.graph, self.address, self.incarnation = spec, graph.on(spec), address, incarnation
        self.attempts: dict[ReplicaId, Attempt] = {}
        self.delayed: dict[ReplicaId, fx.StartReplica] = {}  # starts that wait until dismissed workers have ended
        self.stores: dict[tuple[WorldName, int], int | None] = {}  # open ones with their ports; None: not bound yet
        self.dead_stores: dict[tuple[WorldName, int], str] = {}  # not closed; each with the detail of its death
        self.vault = Vault(spec.name)
        self.bad_gpus: dict[int, str] = {}  # the reason, by number
        self.taken_at_ns = 0  # when the node will be taken away; 0: nothing is known
        self.stands_still = io.StoodStill()  # the processes on the node that are stopped
        self.epoch, self.is_connected = 0, False
        self.lease = Lease(graph.options)
        self.is_warming = False  # set before the join by a driver that passes WarmedUp later
        self.is_fencing = False
        self.is_leaving = False
        self.is_over = False
        self._now = 0
        self.due_at_ns: int | None = None  # the earliest deadline of an attempt; only `handle` changes them
        self._out: list[io.AgentOutput] = []

    def handle(self, event: io.AgentInput, now: int) -> list[io.AgentOutput]:
        """Handle an input at the time `now` (ns), and return the outputs that the driver has to carry out, in order.

        What is due by then comes first: the fence, a heartbeat, SIGKILL. An agent that has ended ignores every input.
        """
        if self.is_over:
            return []
        self._now, self._out = now, []
        self._keep_deadlines()
        self._record(event)
        if self.delayed or self.is_leaving or self.is_fencing:
            self._settle()
        self.due_at_ns = first_date(self.attempts.values())
        return self._out

    def deadline(self) -> int | None:
        """Return when (ns) handle(AgentTimePassed(), now) has to be called at the latest; None if nothing is due."""
        if self.is_over:
            return None
        first = self.due_at_ns
        for time in (self.lease.beat_at_ns, self.fence_at_ns()):
            if time is not None and (first is None or time < first):
                first = time
        return first

    def fence_at_ns(self) -> int | None:
        """Return when (ns) every worker has to be killed; None without a lease, and while they are being killed."""
        return None if self.is_fencing else self.lease.fence_at()

    def _keep_deadlines(self) -> None:
        """Do what is due by now: fence, send a heartbeat, and for each attempt kill, report and look for signs."""
        now, lease = self._now, self.lease
        if not self.is_fencing and (fence_at := lease.fence_at()) is not None and fence_at <= now:
            self._fence()
        if lease.beat_at_ns is not None and lease.beat_at_ns <= now:
            self._send(msg.Heartbeat(self.spec.name, self.incarnation, now, lease.answered_ns))
            lease.beat(now)
        if self.due_at_ns is None or self.due_at_ns > now:
            return
        for attempt in self.attempts.values():
            if attempt.kill_at_ns is not None and attempt.kill_at_ns <= self._now:
                self._kill(attempt)
            if attempt.unkillable_at_ns is not None and attempt.unkillable_at_ns <= self._now:
                attempt.unkillable_at_ns, attempt.is_unkillable = None, True
                self._report(ev.ReplicaUnkillable(attempt.order.replica, attempt.order.attempt))
            if attempt.report_at_ns is not None and attempt.report_at_ns <= self._now:
                signs.report_news(attempt, self._now, self._report)
            if attempt.versions_at_ns is not None and attempt.versions_at_ns <= self._now:
                signs.report_versions(attempt, self._now, self._report)
            if attempt.look_at_ns is not None and attempt.look_at_ns <= self._now:
                attempt.look_at_ns = None
                self._out.append(io.LookForSigns(attempt.order.replica, attempt.order.attempt))

    def _record(self, event: io.AgentInput) -> None:
        if msg.is_to_agent(event):
            self._hear(event)
            return
        if io.is_worker_input(event):
            self._record_worker(event)
            return
        match event:
            case io.AgentTimePassed():
                pass
            case io.Connected():
                self.is_connected = True
                self._join()
            case io.Disconnected():
                self.is_connected, self.lease.beat_at_ns = False, None
            case io.SpawnedCold():
                self._report(ev.ReplicaStartsCold(event.replica, event.attempt, event.detail))
            case io.WarmedUp():
                self.is_warming = False
                self._report(ev.NodeWarm(self.spec.name))
            case io.Refused():
                self.lease.refused(self._now, event.is_local)
            case io.GpuFaulted():
                signs.note_gpu(self.bad_gpus, event, self.spec.name, self._report)
            case io.StoodStill():
                if event != self.stands_still:
                    self.stands_still = event
                    self._report(ev.NodeStandsStill(self.spec.name, event.who, event.workers))
            case io.PreemptionNoticed():
                self.taken_at_ns = self._now + event.notice_ns
                self._tell_preempted()
            case io.StoreBound():
                self._note_bound(event)
            case io.StoreExited():
                self._note_store_exited(event)
            case io.VaultBound() | io.VaultExited() | io.CopyStored() | io.CopyDamaged():
                self.vault.note(event, self._report)
            case io.LeaveRequested():
                self.is_leaving = True
                self.delayed.clear()
                for attempt in self.attempts.values():
                    self._stop(attempt, attempt.role.grace_ns)
            case _:
                assert_never(event)

    def _settle(self) -> None:
        """Carry out what waits for workers to end: delayed starts, an agent's own end, a join after a fence."""
        if self.delayed and not any(attempt.holds_up for attempt in self.attempts.values()):
            delayed, self.delayed = self.delayed, {}
            for order in delayed.values():
                self._start(order)
        if not (self.is_leaving or self.is_fencing) or any(not each.is_over for each in self.attempts.values()):
            return
        if self.is_leaving:
            self._send(msg.Leave(self.spec.name, self.incarnation))
            self._end("it left")
        else:
            self.is_fencing = False
            self.lease.drop()
            self.incarnation += 1
            self.attempts.clear()
            self._join()

    def _join(self) -> None:
        """Send a Join with the inventory, and report what it does not hold; do nothing if unconnected or fencing."""
        if not self.is_connected or self.is_fencing:
            return
        items = tuple(attempt.item() for attempt in self.attempts.values())
        own = (self.spec.name, self.incarnation, self.spec, self.address)
        held = (self.vault.port, tuple(self.vault.copies.values()))
        self._send(msg.Join(*own, self._now, items, self.is_warming, tuple(self.bad_gpus.items()), *held))
        self.lease.beat(self._now)
        self._resend()

    def _resend(self) -> None:
        """Report again what may have been lost with the connection and is not in the inventory: a notice, dead stores.

        Of each attempt that is not over, that is its step, offers, stall and the like: see `signs.resend`.
        """
        if self.stands_still != io.StoodStill():
            self._report(ev.NodeStandsStill(self.spec.name, self.stands_still.who, self.stands_still.workers))
        self._tell_preempted()
        for (world, generation), detail in self.dead_stores.items():
            self._report(ev.StoreLost(world, generation, detail))
        for attempt in self.attempts.values():
            if not attempt.is_over:
                signs.resend(attempt, self._now, self._report)
                signs.resend_versions(attempt, self._now, self._report)

    def _tell_preempted(self) -> None:
        """Tell the controller in what time the node will be taken away, if that was noticed and is not over."""
        left_ns = self.taken_at_ns - self._now
        if left_ns > 0:
            self._send(msg.Preempted(self.spec.name, self.incarnation, left_ns))

    def _fence(self) -> None:
        """Kill every worker and store of the node, without grace: the controller may soon start them elsewhere (R19).

        Until all have ended, the agent sends no heartbeat and obeys no order. Delayed starts are dropped.
        """
        self.is_fencing, self.lease.beat_at_ns = True, None
        self.delayed.clear()
        for attempt in self.attempts.values():
            self._stop(attempt, 0)
        self._close_stores()

    def _end(self, reason: str) -> None:
        self._close_stores()
        self.is_over = True
        self._out.append(io.EndAgent(reason))

    def _hear(self, message: msg.ToAgent) -> None:
        """Handle a message of the controller; ignore one of an earlier epoch, or for another incarnation (R20)."""
        if message.epoch < self.epoch or message.incarnation != self.incarnation:
            return
        self.epoch = message.epoch
        match message:
            case msg.Ordered():
                if not self.is_fencing and not self.is_leaving:
                    self._obey(message.order)
            case msg.Acked():
                self.lease.acked(message.sent_ns, message.at_ns)
            case msg.Rejoin():
                if not self.is_fencing:
                    self._fence()
            case msg.Dismissed():
                for attempt in self.attempts.values():
                    self._stop(attempt, 0)
                self._end("the job is over")
            case _:
                assert_never(message)

    def _obey(self, order: fx.Order) -> None:
        match order:
            case fx.StartReplica():
                self._start(order)
            case fx.StopReplica():
                self._obey_stop(order)
            case fx.OpenStore():
                self._open_store(order)
            case fx.CloseStore():
                self._close_store(order)
            case fx.TellPeers() | fx.AskStep() | fx.StopAtStep():
                attempt = self._attempt(order.replica, order.attempt)
                if attempt is not None and not attempt.is_over:
                    self._out += signs.tell_workers(attempt, order, self._report)
            case fx.SetBuddies() | fx.ReleaseCopies():
                self._out.append(self.vault.obey(order))
            case fx.AnswerCheckpoint():
                attempt = self._attempt(order.replica, order.attempt)
                if attempt is not None:
                    attempt.offers.pop(order.path, None)
                self._out.append(
                    io.AnswerWorker(order.replica, order.attempt, order.path, order.step, order.accepted, order.reason)
                )
            case _:
                assert_never(order)

    def _obey_stop(self, order: fx.StopReplica) -> None:
        """Carry out an order to stop an attempt, and cancel a delayed start; report one that has stopped again."""
        self.delayed.pop(order.replica, None)
        attempt = self._attempt(order.replica, order.attempt)
        if attempt is None or attempt.phase == "stopped":
            self._report(ev.ReplicaStopped(order.replica, order.attempt))
        elif order.in_place and attempt.phase == "suspended" and attempt.exited is None:
            self._report(ev.ReplicaStopped(order.replica, order.attempt, suspended=True))
        elif not (order.in_place and attempt.phase == "suspended"):
            self._stop(attempt, order.grace_ns, dump=order.dump, in_place=order.in_place)

    def _start(self, order: fx.StartReplica) -> None:
        """Start an attempt with new workers, or with the suspended ones of the replica's last attempt.

        An order for an attempt that is not later than the last is ignored (R20). The start is delayed while dismissed
        workers end. It is refused, with a report of `start_failed`, if an attempt runs that has to end before.
        """
        before = self.attempts.get(order.replica)
        if before is not None and before.order.attempt >= order.attempt:
            return
        if any(attempt.holds_up for attempt in self.attempts.values()):
            self.delayed[order.replica] = order
            return
        if (other := suspended.find_obstacle(self.attempts, order)) is not None:
            detail = f"attempt {other.order.attempt} of {other.order.replica} still runs"
            self._report(ev.ReplicaExited(order.replica, order.attempt, "start_failed", detail=detail))
            return
        role = self.graph.role(order.replica.role)
        kept = tuple(before.alive) if before is not None else ()  # suspended: they continue
        self.attempts[order.replica] = Attempt(
            order, role, dict.fromkeys(range(role.procs)), dict.fromkeys(kept), started_ns=self._now
        )
        self._out.append(io.SpawnWorkers(order, kept))

    def _attempt(self, replica: ReplicaId, attempt: int) -> Attempt | None:
        found = self.attempts.get(replica)
        return found if found is not None and found.order.attempt == attempt else None

    def _stop(self, attempt: Attempt, grace_ns: int, *, dump: bool = False, in_place: bool = False) -> None:
        """Stop an attempt by a signal, or in place if all of its workers are elastic; set the time of SIGKILL."""
        if attempt.is_over:
            return
        in_place, was_leaving = in_place and attempt.may_leave, attempt.is_leaving
        first = attempt.note_stop(grace_ns, self._now, dump=dump, in_place=in_place)
        if attempt.phase == "starting":
            attempt.term_due = True  # no process is there to get a signal
            self._out.append(io.HurrySpawn(attempt.order.replica, attempt.order.attempt))
        elif grace_ns == 0:
            self._kill(attempt)
        elif in_place and not was_leaving:
            self._out.append(io.LeaveGeneration(attempt.order.replica, attempt.order.attempt))
        elif first and not in_place and (attempt.failure is None or was_leaving):
            self._signal(attempt, attempt.first_signal)

    def _kill(self, attempt: Attempt) -> None:
        """Send SIGKILL to the workers of an attempt, and set the time after which a survivor counts as unkillable."""
        if attempt.phase == "starting":
            return  # the workers are killed as soon as they run: see `_spawned`
        attempt.kill_at_ns, attempt.is_leaving = None, False
        if attempt.unkillable_at_ns is None:
            attempt.unkillable_at_ns = self._now + self.graph.options.unkillable_after_ns
        self._signal(attempt, "KILL")

    def _signal(self, attempt: Attempt, signal: str) -> None:
        self._out.append(io.SignalWorkers(attempt.order.replica, attempt.order.attempt, signal))

    def _spawned(self, attempt: Attempt, event: io.WorkersSpawned) -> None:
        if attempt.phase != "starting":
            return
        attempt.phase, attempt.ports = "running", event.ports
        self._report(ev.ReplicaStarted(event.replica, event.attempt, event.ports))
        if attempt.term_due:
            if attempt.kill_at_ns is not None and attempt.kill_at_ns <= self._now:
                self._kill(attempt)
            else:
                self._signal(attempt, attempt.first_signal)
        attempt.started_ns = self._now
        attempt.look_at_ns = attempt.next_look()
        signs.check_ready(attempt, self._report)
        suspended.check_elastic(attempt, self._report)

    def _worker_exited(self, attempt: Attempt, event: io.WorkerExited) -> None:
        """Record the end of a worker; if all other workers have ended or are suspended, report the end of the attempt.

        The first failure of a worker stops the others, which would wait for it for ever: in place, if they may leave.
        """
        attempt.alive.pop(event.local_rank, None)
        attempt.has_obeyed |= event.was_stopping
        failed = event.exit_code != 0 or event.signal is not None or event.kind is not None
        if attempt.phase == "suspended":
            if not attempt.alive:
                self._finish(attempt)
            return
        if failed and attempt.failure is None and attempt.stop_grace_ns is None:
            attempt.failure = event
            if attempt.alive:  # the other workers would wait for it for ever
                attempt.kill_at_ns = self._now + attempt.role.stop_grace_ns
                attempt.is_leaving = attempt.may_leave
                if attempt.is_leaving:
                    self._out.append(io.LeaveGeneration(event.replica, event.attempt))
                else:
                    self._signal(attempt, "TERM")
        elif failed:
            attempt.note_failure(event)
        if not attempt.alive or attempt.is_suspended:
            self._finish(attempt)
        elif attempt.is_noticed:
            signs.check_left(attempt, self._report)

    def _finish(self, attempt: Attempt) -> None:
        """Report the end of an attempt, all of whose workers have ended or are suspended.

        The report is ReplicaExited, with the failure if there is one. It is ReplicaStopped if the attempt had an order
        to stop before its first failure, ended because should_stop() had returned True, or was suspended already (R16).
        """
        order, is_suspended, was_suspended = attempt.order, bool(attempt.alive), attempt.phase == "suspended"
        attempt.kill_at_ns = attempt.unkillable_at_ns = attempt.look_at_ns = None
        if attempt.report_at_ns is not None:
            signs.report_news(attempt, self._now, self._report)
        if attempt.versions_at_ns is not None:
            signs.report_versions(attempt, self._now, self._report)
        attempt.phase = "suspended" if is_suspended else "stopped"
        has_obeyed = attempt.has_obeyed if attempt.failure is None else attempt.failure.was_stopping
        if was_suspended or has_obeyed or (attempt.stop_grace_ns is not None and attempt.failure is None):
            self._report(ev.ReplicaStopped(order.replica, order.attempt, is_suspended))
            return
        attempt.phase = "suspended" if is_suspended else "exited"
        attempt.exited = exit_event(order, name_culprit(attempt.failure, attempt.steps), is_suspended)
        self._report(attempt.exited)

    def _record_worker(self, event: io.WorkerInput) -> None:
        attempt = self._attempt(event.replica, event.attempt)
        if attempt is None or not attempt.concerns(event):
            return
        match event:
            case io.WorkerProgressed() | io.WorkerStepped() | io.WorkerSpent():
                signs.progressed(attempt, event, self._now, self.graph.options.heartbeat_ns, self._report)
            case io.WorkerPublished() | io.WorkerAcknowledged():
                signs.note_version(attempt, event, self._now, self.graph, self._report)
            case io.WorkerSampling():
                signs.note_sampling(attempt, event, self._report)
            case io.WorkersSpawned():
                self._spawned(attempt, event)
            case io.SpawnFailed():
                attempt.never_ran(event.detail)
                self._finish(attempt)
            case io.WorkerExited():
                self._worker_exited(attempt, event)
            case io.WorkerReady():
                attempt.ready_ranks[event.local_rank] = None
                signs.check_ready(attempt, self._report)
            case io.WorkerElastic():
                if suspended.note_elastic(attempt, event, self._report):
                    attempt.is_leaving = False
                    self._signal(attempt, "TERM")
            case io.WorkerSuspended():
                attempt.suspended_ranks[event.local_rank] = None
                if attempt.is_suspended:
                    self._finish(attempt)
            case io.ProbePassed():
                attempt.is_probed = True
                signs.check_ready(attempt, self._report)
            case io.WorkerOffered():
                offer = ev.CheckpointOffered(event.replica, event.attempt, event.generation, event.path, event.step)
                attempt.offers[offer.path] = offer
                self._report(offer)
            case io.SignsSeen():
                signs.note_signs(attempt, event, self._now, self._report)
            case io.WorkersAsked():
                self._report(ev.StepTold(event.replica, event.attempt, event.step))
            case io.WorkerLeftStep():
                attempt.left_ranks[event.local_rank] = None
                signs.check_left(attempt, self._report)
            case _:
                assert_never(event)

    def _report(self, event: msg.Reported) -> None:
        """Report an event to the controller, unless the agent fences or leaves: then the loss of the node is enough."""
        if not self.is_fencing and not self.is_leaving:
            self._send(msg.Report(self.spec.name, self.incarnation, event))

    def _send(self, message: msg.ToController) -> None:
        if self.is_connected:
            self._out.append(io.Send(message))

    # Rendezvous stores.

    def _open_store(self, order: OpenStore) -> None:
        """Open a store. One that is open reports its port again, or will when it is bound (R20)."""
        key = (order.world, order.generation)
        if key not in self.stores:
            self.stores[key] = None
            self._out.append(io.BindStore(order.world, order.generation, order.eager))
        elif (port := self.stores[key]) is not None:
            self._report(ev.StoreOpened(order.world, order.generation, port))

    def _close_store(self, order: CloseStore) -> None:
        """Kill a store, if it is open. Its death, if it was reported before, is not reported again after this."""
        key = (order.world, order.generation)
        self.dead_stores.pop(key, None)
        if self.stores.pop(key, -1) != -1:
            self._out.append(io.KillStore(*key))

    def _close_stores(self) -> None:
        """Forget and kill every open store."""
        self._out += [io.KillStore(*key) for key in self.stores]
        self.stores.clear()

    def _note_bound(self, event: io.StoreBound) -> None:
        """Record the port of a store that is bound, and report it; ignore a store that was closed meanwhile."""
        key = (event.world, event.generation)
        if key in self.stores:
            self.stores[key] = event.port
            self._report(ev.StoreOpened(*key, event.port))

    def _note_store_exited(self, event: io.StoreExited) -> None:
        """Record that a store has died, and report it; ignore a store that was closed before."""
        key = (event.world, event.generation)
        if key in self.stores:
            del self.stores[key]
            self.dead_stores[key] = event.detail
            self._report(ev.StoreLost(*key, event.detail))
