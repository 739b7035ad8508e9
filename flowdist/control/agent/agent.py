"""The agent of one node, as a pure machine: it starts and stops what it is told, and says what became of it.

It holds a lease, which it renews by heartbeats and counts from the sending of the last one that was acknowledged. When
the lease is about to run out it fences: everything is killed, before the controller may replace it elsewhere (R19).
What it is told twice it does once; an order for an attempt that is over changes nothing (R20).
"""

from __future__ import annotations

from typing import assert_never

from flowdist.control.agent import signs, suspended
from flowdist.control.agent.attempts import Attempt, exit_event, first_date
from flowdist.control.agent.lease import Lease
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import (
    AnswerCheckpoint,
    AskStep,
    CloseStore,
    OpenStore,
    Order,
    StartReplica,
    StopAtStep,
    StopReplica,
    TellPeers,
)
from flowdist.control.protocol.ids import ReplicaId, WorldName
from flowdist.graph import NodeSpec, RoleGraph


class Agent:
    """Times are the agent's own clock, in integer nanoseconds; it need not agree with the controller's."""

    def __init__(self, spec: NodeSpec, graph: RoleGraph, address: str = "127.0.0.1", incarnation: int = 1) -> None:
        self.spec, self.graph, self.address, self.incarnation = spec, graph.on(spec), address, incarnation
        self.attempts: dict[ReplicaId, Attempt] = {}
        self.held: dict[ReplicaId, StartReplica] = {}  # until those who were suspended here are gone
        self.stores: dict[tuple[WorldName, int], int | None] = {}  # port, once bound
        self.dead_stores: dict[tuple[WorldName, int], str] = {}  # that nobody has closed, with what is known of it
        self.bad_gpus: dict[int, str] = {}  # and why
        self.epoch, self.is_connected = 0, False
        self.lease = Lease(graph.options)
        self.is_warming = False  # to be set before it joins, by a driver that tells WarmedUp later
        self.is_fencing = False
        self.is_leaving = False
        self.is_over = False
        self._now = 0
        self._due_at_ns: int | None = None  # the first date of an attempt: `handle` alone changes them
        self._out: list[io.AgentOutput] = []

    def handle(self, event: io.AgentInput, now: int) -> list[io.AgentOutput]:
        """What follows. Nothing does once the agent has ended."""
        if self.is_over:
            return []
        self._now, self._out = now, []
        self._keep_deadlines()
        self._record(event)
        if self.held or self.is_leaving or self.is_fencing:
            self._settle()
        self._due_at_ns = first_date(self.attempts.values())
        return self._out

    def deadline(self) -> int | None:
        """When to call handle(AgentTimePassed(), now) at the latest."""
        if self.is_over:
            return None
        first = self.duty()
        for time in (self.lease.beat_at_ns, self._fence_at_ns()):
            if time is not None and (first is None or time < first):
                first = time
        return first

    def duty(self) -> int | None:
        """When something of a replica is due: the deadline without heartbeats and lease.

        A simulator that knows that the node is heard need not play each heartbeat: see `renew`.
        """
        return self._due_at_ns

    def renew(self, now: int, round_trip_ns: int) -> int | None:
        """As if every heartbeat that could be sent and answered by now had been. Returns when the last was sent."""
        return self.lease.renew(now, round_trip_ns)

    def take_heartbeat(self, now: int) -> msg.Heartbeat | None:
        """Return the heartbeat that was due before `now`, as sent when it was due; None if none was.

        For a simulator, which puts it on its way: see `renew`.
        """
        due = self.lease.beat_at_ns
        if due is None or due >= now:
            return None
        self.lease.beat(due)
        return msg.Heartbeat(self.spec.name, self.incarnation, due)

    def catch_up(self, replica: ReplicaId, number: int, step: int, now: int) -> None:
        """Note that every worker of an attempt is at `step`, without a report: see `reports_at_once`."""
        attempt = self._attempt(replica, number)
        if attempt is not None:
            for local_rank in range(attempt.role.procs):
                attempt.note_step(local_rank, step, now)

    def reports_at_once(self, replica: ReplicaId, until: int, gap_ns: int | None = None) -> bool:
        """Return whether the agent would report each step of a replica at once, and change nothing else.

        Then a simulator may leave out all reports of a quiet stretch but the last.

        Args:
            replica: The replica; its latest attempt is meant.
            until: The end of the stretch.
            gap_ns: The time between two reports; None: the time since the last one.
        """
        attempt = self.attempts.get(replica)
        if attempt is None or not self.is_connected or not attempt.is_undisturbed:
            return False
        gap_ns = until - (attempt.told_ns or 0) if gap_ns is None else gap_ns
        return signs.told_after_ns(attempt, until, self.graph.options.heartbeat_ns) <= gap_ns

    def _fence_at_ns(self) -> int | None:
        return None if self.is_fencing else self.lease.fence_at()

    def _keep_deadlines(self) -> None:
        now, lease = self._now, self.lease
        fence_at = None if self.is_fencing else lease.fence_at()
        if fence_at is not None and fence_at <= now:
            self._fence()
        if lease.beat_at_ns is not None and lease.beat_at_ns <= now:
            self._send(msg.Heartbeat(self.spec.name, self.incarnation, now))
            lease.beat(now)
        if self._due_at_ns is None or self._due_at_ns > now:
            return
        for attempt in self.attempts.values():
            if attempt.kill_at_ns is not None and attempt.kill_at_ns <= self._now:
                self._kill(attempt)
            if attempt.unkillable_at_ns is not None and attempt.unkillable_at_ns <= self._now:
                attempt.unkillable_at_ns, attempt.is_unkillable = None, True
                self._report(ev.ReplicaUnkillable(attempt.order.replica, attempt.order.attempt))
            if attempt.tell_at_ns is not None and attempt.tell_at_ns <= self._now:
                signs.tell_step(attempt, self._now, self._report)
            if attempt.look_at_ns is not None and attempt.look_at_ns <= self._now:
                attempt.look_at_ns = None
                self._out.append(io.LookForSigns(attempt.order.replica, attempt.order.attempt))

    def _record(self, event: io.AgentInput) -> None:
        if msg.is_to_agent(event):
            self._hear(event)
            return
        if io.is_worker_news(event):
            self._record_news(event)
            return
        match event:
            case io.AgentTimePassed():
                pass
            case io.WorkersSpawned() | io.SpawnFailed() | io.WorkerExited():
                self._record_process(event)
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
            case io.PreemptionNoticed():
                self._send(msg.Preempted(self.spec.name, self.incarnation, event.notice_ns))
            case io.StoreBound():
                if (event.world, event.generation) in self.stores:
                    self.stores[event.world, event.generation] = event.port
                    self._report(ev.StoreOpened(event.world, event.generation, event.port))
            case io.StoreExited():
                if (event.world, event.generation) in self.stores:
                    del self.stores[event.world, event.generation]
                    self.dead_stores[event.world, event.generation] = event.detail
                    self._report(ev.StoreLost(event.world, event.generation, event.detail))
            case io.LeaveRequested():
                self.is_leaving = True
                for attempt in self.attempts.values():
                    self._stop(attempt, attempt.role.grace_ns)
            case _:
                assert_never(event)

    def _settle(self) -> None:
        """What waited for an end begins. When everything is gone: join anew after a fence, say goodbye when leaving."""
        if self.held and not any(attempt.holds_up for attempt in self.attempts.values()):
            held, self.held = self.held, {}
            for order in held.values():
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
        if not self.is_connected or self.is_fencing:
            return
        items = tuple(attempt.item() for attempt in self.attempts.values())
        own = (self.spec.name, self.incarnation, self.spec, self.address)
        self._send(msg.Join(*own, self._now, items, self.is_warming, tuple(self.bad_gpus.items())))
        self.lease.beat(self._now)
        self._say_again()

    def _say_again(self) -> None:
        """What the inventory does not hold, and may have been lost with the connection."""
        for (world, generation), detail in self.dead_stores.items():
            self._report(ev.StoreLost(world, generation, detail))
        for attempt in self.attempts.values():
            if not attempt.is_over:
                signs.say_again(attempt, self._now, self._report)

    def _fence(self) -> None:
        """Stop everything now, without grace: somebody else may soon run it."""
        self.is_fencing, self.lease.beat_at_ns = True, None
        self.held.clear()
        for attempt in self.attempts.values():
            self._stop(attempt, 0)
        self._close_stores()

    def _close_stores(self) -> None:
        for world, generation in list(self.stores):
            del self.stores[world, generation]
            self._out.append(io.KillStore(world, generation))

    def _end(self, reason: str) -> None:
        self._close_stores()
        self.is_over = True
        self._out.append(io.EndAgent(reason))

    def _hear(self, message: msg.ToAgent) -> None:
        if message.epoch < self.epoch or message.incarnation != self.incarnation:
            return
        self.epoch = message.epoch
        match message:
            case msg.Ordered():
                if not self.is_fencing and not self.is_leaving:
                    self._obey(message.order)
            case msg.Acked():
                self.lease.acked(message.sent_ns)
            case msg.Rejoin():
                if not self.is_fencing:
                    self._fence()
            case msg.Dismissed():
                for attempt in self.attempts.values():
                    self._stop(attempt, 0)
                self._end("the job is over")
            case _:
                assert_never(message)

    def _obey(self, order: Order) -> None:
        match order:
            case StartReplica():
                self._start(order)
            case StopReplica():
                self._stop_as_told(order)
            case TellPeers():
                attempt = self._attempt(order.replica, order.attempt)
                if attempt is not None and not attempt.is_over:
                    self._out.append(io.WritePeers(order.replica, order.attempt, order.addresses))
            case OpenStore():
                self._open_store(order)
            case CloseStore():
                self.dead_stores.pop((order.world, order.generation), None)
                if self.stores.pop((order.world, order.generation), -1) != -1:
                    self._out.append(io.KillStore(order.world, order.generation))
            case AskStep() | StopAtStep():
                self._give_notice(order)
            case AnswerCheckpoint():
                attempt = self._attempt(order.replica, order.attempt)
                if attempt is not None:
                    attempt.offers.pop(order.path, None)
                self._out.append(
                    io.AnswerWorker(order.replica, order.attempt, order.path, order.step, order.accepted, order.reason)
                )
            case _:
                assert_never(order)

    def _stop_as_told(self, order: StopReplica) -> None:
        self.held.pop(order.replica, None)
        attempt = self._attempt(order.replica, order.attempt)
        if attempt is None or attempt.phase == "stopped":
            self._report(ev.ReplicaStopped(order.replica, order.attempt))
        elif order.in_place and attempt.phase == "suspended" and attempt.exited is None:
            self._report(ev.ReplicaStopped(order.replica, order.attempt, suspended=True))
        elif not (order.in_place and attempt.phase == "suspended"):
            self._stop(attempt, order.grace_ns, dump=order.dump, in_place=order.in_place)

    def _give_notice(self, order: AskStep | StopAtStep) -> None:
        attempt = self._attempt(order.replica, order.attempt)
        if attempt is not None and not attempt.is_over:
            self._out += signs.give_notice(attempt, order, self._report)

    def _open_store(self, order: OpenStore) -> None:
        key = (order.world, order.generation)
        if key not in self.stores:
            self.stores[key] = None
            self._out.append(io.BindStore(order.world, order.generation, order.eager))
        elif (port := self.stores[key]) is not None:
            self._report(ev.StoreOpened(order.world, order.generation, port))

    def _start(self, order: StartReplica) -> None:
        before = self.attempts.get(order.replica)
        if before is not None and before.order.attempt >= order.attempt:
            return
        if any(attempt.holds_up for attempt in self.attempts.values()):
            self.held[order.replica] = order
            return
        if (other := suspended.in_the_way(self.attempts, order)) is not None:
            detail = f"attempt {other.order.attempt} of {other.order.replica} still runs"
            self._report(ev.ReplicaExited(order.replica, order.attempt, "start_failed", detail=detail))
            return
        role = self.graph.role(order.replica.role)
        kept = tuple(before.alive) if before is not None else ()  # suspended: they go on
        self.attempts[order.replica] = Attempt(
            order, role, dict.fromkeys(range(role.procs)), dict.fromkeys(kept), started_ns=self._now
        )
        self._out.append(io.SpawnWorkers(order, kept))

    def _attempt(self, replica: ReplicaId, attempt: int) -> Attempt | None:
        """That attempt, if it is the latest of the replica here."""
        found = self.attempts.get(replica)
        return found if found is not None and found.order.attempt == attempt else None

    def _stop(self, attempt: Attempt, grace_ns: int, *, dump: bool = False, in_place: bool = False) -> None:
        """A first signal and a date for SIGKILL; with `in_place`, for those who can, leaving instead of a signal."""
        if attempt.is_over:
            return
        stays, was_leaving = in_place and attempt.may_leave, attempt.is_leaving
        first = attempt.told_to_stop(grace_ns, self._now, dump=dump, stays=stays)
        if attempt.phase == "starting":
            attempt.term_due = True  # nobody is there to hear it
            self._out.append(io.HurrySpawn(attempt.order.replica, attempt.order.attempt))
        elif grace_ns == 0:
            self._kill(attempt)
        elif stays and not was_leaving:
            self._out.append(io.LeaveGeneration(attempt.order.replica, attempt.order.attempt))
        elif first and not stays and (attempt.failure is None or was_leaving):
            self._signal(attempt, attempt.first_signal)

    def _kill(self, attempt: Attempt) -> None:
        if attempt.phase == "starting":
            return  # killed as soon as its workers run: see WorkersSpawned
        attempt.kill_at_ns, attempt.is_leaving = None, False
        if attempt.unkillable_at_ns is None:
            attempt.unkillable_at_ns = self._now + self.graph.options.unkillable_after_ns
        self._signal(attempt, "KILL")

    def _signal(self, attempt: Attempt, signal: str) -> None:
        self._out.append(io.SignalWorkers(attempt.order.replica, attempt.order.attempt, signal))

    def _record_process(self, event: io.WorkersSpawned | io.SpawnFailed | io.WorkerExited) -> None:
        attempt = self._attempt(event.replica, event.attempt)
        if attempt is None or attempt.is_over:
            return
        match event:
            case io.WorkersSpawned():
                self._spawned(attempt, event)
            case io.SpawnFailed():
                attempt.never_ran(event.detail)
                self._finish(attempt)
            case io.WorkerExited():
                self._worker_exited(attempt, event)
            case _:
                assert_never(event)

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
        attempt.alive.pop(event.local_rank, None)
        failed = event.exit_code != 0 or event.signal is not None or event.kind is not None
        if attempt.phase == "suspended":
            if not attempt.alive:
                self._finish(attempt)
            return
        if failed and attempt.failure is None and attempt.stop_grace_ns is None:
            attempt.failure = event
            if attempt.alive:  # its peers wait for it in vain
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
        """All workers are gone, or wait in place. What failed before anybody asked has failed (R16)."""
        order, is_suspended, was_suspended = attempt.order, bool(attempt.alive), attempt.phase == "suspended"
        attempt.kill_at_ns = attempt.unkillable_at_ns = attempt.look_at_ns = None
        if attempt.tell_at_ns is not None:
            signs.tell_step(attempt, self._now, self._report)
        attempt.phase = "suspended" if is_suspended else "stopped"
        if was_suspended or attempt.is_noticed or (attempt.stop_grace_ns is not None and attempt.failure is None):
            self._report(ev.ReplicaStopped(order.replica, order.attempt, is_suspended))
            return
        attempt.phase = "suspended" if is_suspended else "exited"
        attempt.exited = exit_event(order, attempt.failure, is_suspended)
        self._report(attempt.exited)

    def _record_news(self, event: io.WorkerNews) -> None:
        attempt = self._attempt(event.replica, event.attempt)
        if attempt is None or attempt.is_over or attempt.phase == "suspended":
            return
        match event:
            case io.WorkerProgressed():
                signs.progressed(attempt, event, self._now, self.graph.options.heartbeat_ns, self._report)
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
                signs.judge(attempt, event.output_ns, self._now, self._report)
            case io.WorkersAsked():
                self._report(ev.StepTold(event.replica, event.attempt, event.step))
            case io.WorkerLeftStep():
                attempt.left_ranks[event.local_rank] = None
                signs.check_left(attempt, self._report)
            case _:
                assert_never(event)

    def _report(self, event: msg.Reported) -> None:
        """Nothing is reported while fencing or leaving: the loss of the node says it all."""
        if not self.is_fencing and not self.is_leaving:
            self._send(msg.Report(self.spec.name, self.incarnation, event))

    def _send(self, message: msg.ToController) -> None:
        if self.is_connected:
            self._out.append(io.Send(message))
