"""The driver of virtual time: it waits, translates and carries out, as the real one does, and checks after each event.

Checked always: the invariants of the job, and that no two attempts of one replica ever run at the same time (R19).
Faults act on nodes and processes only; the controller is never told and has to notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from flowdist.control.connection.sessions import Sessions
from flowdist.control.controller import Controller
from flowdist.control.invariants.invariants import check_job
from flowdist.control.job.state import JobState
from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol.effects import Effect, FinishJob, StartReplica, is_order
from flowdist.control.protocol.events import DrainRequested, Event, NodeGone, ScaleRequested, TimePassed
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.protocol.messages import Heartbeat, Report, ToAgent, ToController
from flowdist.faults.grammar import NOTHING, Fault, Plan, added_node
from flowdist.graph import MS, Cluster, NodeSpec, RoleGraph
from flowdist.record.accounts import Accounts
from flowdist.record.journal import FaultLine, Header, Record, UnsavedLine, record
from flowdist.sim.checks.pacing import Pace
from flowdist.sim.checks.points import POINTS, Points
from flowdist.sim.checks.properties import Properties, Violation, Watching
from flowdist.sim.checks.watching import Watch
from flowdist.sim.engine.accounts import close
from flowdist.sim.engine.node import SimNode, is_put_off, unseen_hangs
from flowdist.sim.engine.queue import Action, Queue
from flowdist.sim.engine.result import SimResult
from flowdist.sim.engine.trace import Trace
from flowdist.sim.faults.injector import Faulting
from flowdist.sim.workers.fast_forward import make_known
from flowdist.sim.workers.work import Work

__all__ = ["Checks", "SimResult", "Simulation", "Violation", "with_nodes"]

Checks = Literal["all", "paced", "changed"]
PROOF_NS = 10 * MS  # from the death of an agent to the guardian's proof of it
GHOST_NS = 100 * MS  # how long what was replaced while its node was paused may go on: until it is killed
TELLS_EVERY = 128  # events
NOTHING_DEMANDED = Properties()
MOMENT_NS = 1_000  # what comes in so soon after one another is of one moment: a link keeps its messages 1 ns apart
TAKE_OVER_NS = 300 * MS  # from the death of the controller to the next one's first event


class Simulation:
    """One job in virtual time.

    Args:
        graph: With nodes; see `with_nodes`.
        plan: What is to befall the job.
        seed: 0 is nominal: everything takes exactly what the workload says. Any other seed spreads start-up times by
            up to a fifth, each attempt's drawn from a stream of its own.
        properties: What the user demands of it; see `properties`.
        play_heartbeats: Play each heartbeat, as production does, instead of taking quiet ones as played.
        play_steps: Play each step of user code by itself, instead of as many at once as nothing else comes in between.
        schedule: In which order things happen that happen at the same time: 0 is the one in which they were planned,
            any other number another one.
        checks: Which invariants of the job are checked: `all` after each event; `paced`: all after each event in a
            small job, in a larger one those of what the event speaks of, and all as often as costs linear time, see
            `control.pacing`; or after each moment those of what `changed`, and now and then all, see
            `control.watching`. All of them at the end.
        tell: Called now and then, with the time in it and the number of events so far, for whoever waits.
        fast_forward: Compute quiet stretches instead of playing them, see `stretch`: the same decisions at the same
            times, without the lines between them that say how far the workers are.
    """

    def __init__(
        self,
        graph: RoleGraph,
        plan: Plan = NOTHING,
        *,
        seed: int = 0,
        play_heartbeats: bool = False,
        play_steps: bool = False,
        schedule: int = 0,
        checks: Checks = "all",
        tell: Callable[[int, int], None] | None = None,
        fast_forward: bool = False,
        properties: Properties = NOTHING_DEMANDED,
    ) -> None:
        self.graph, self.plays_heartbeats, self.seed, self.schedule = graph, play_heartbeats, seed, schedule
        self.queue = Queue(schedule)
        names = tuple(node.name for node in graph.cluster.nodes)
        self.controller = Controller(graph, names)
        self.nodes: dict[NodeName, SimNode] = {}
        self.accounts = Accounts(self.job)
        self.fast_forward = fast_forward
        seen: dict[str, int] = {}
        self.points, self._watching = Points(self, seen), Watching(properties, seen)
        self._is_watched = not properties.is_empty
        self._watch = Watch() if checks == "changed" else None
        self._pace = Pace() if checks == "paced" else None
        self._tell = tell
        self._hits: Counter[tuple[str, str]] = Counter()
        self.work = Work(self, seed, play_steps=play_steps)
        self.sessions = Sessions(graph.options)
        self.is_down = False  # the controller
        self.until: int | None = None  # when the clock stops, if it does
        self._unheard: list[Event] = []
        self._past: tuple[Controller | None, int] = (None, 0)  # that died last, and how many lines it knew
        self._running: dict[ReplicaId, int] = {}  # attempts with a process alive
        self._planned: int | None = None
        options = {"rates": " ".join(rate.spec for rate in plan.rates)} if plan.rates else {}
        options |= {"schedule": str(schedule)} if schedule else {}
        self._lines = Trace(Header(graph, names, seed=seed, options=options))
        self._n = 0
        self._unwell: dict[NodeName, None] = {}  # nodes whose silence may become too long
        self._faulting = Faulting(self, plan, seed)
        for spec in graph.cluster.nodes:
            self.add_node(spec)
        for scale in plan.scales:
            self.queue.at(scale.at_ns, self.handle, ScaleRequested(scale.role, scale.replicas))
        for drain in plan.drains:
            self.queue.at(drain.at_ns, self.handle, DrainRequested(drain.node))
        for add in plan.adds:
            self.queue.at(add.at_ns, self.add_one, add.node)
        self._faulting.plan()
        self.plan()

    @property
    def job(self) -> JobState:
        return self.controller.state

    def run(self, until: int | None = None) -> SimResult:
        """To the end of the job, or to `until`. A job that neither ends nor can go on is a violation of liveness."""
        self.until = until
        try:
            self.queue.run(until)
            if self.job.outcome is None and (until is None or self.queue.now < until):
                waits = ", ".join(waiting_for(self.job)) or "nobody"
                hangs = unseen_hangs(self.nodes.values(), self.graph)
                raise Violation("liveness", f"nothing will ever happen again; waiting for {waits}{hangs}")
            self._check(check_job)
            self._watching.close(self.job, self.queue.now)
        except Violation as error:
            return self.result(error)
        return self.result(None)

    def result(self, violation: Violation | None, *, has_crashed: bool = False) -> SimResult:
        """How far it has come. Where it has crashed, in the middle of an event, the books need not add up."""
        if not has_crashed:
            close(self.accounts, self.job, self.work.models.values(), self.queue.now)
        return SimResult(
            spent=self.accounts.spent,
            hits=self._hits,
            job=self.job,
            lines=self._lines,
            now=self.queue.now,
            models=self.work.models,
            unfired=self._faulting.never_fired(),
            violation=violation,
            waiting=waiting_for(self.job),
            handled=self.queue.handled,
            seen=self.points.seen,
            points=(*POINTS, *(point.name for point in self._watching.properties.sometimes)),
            played=self.work.code.close(),
        )

    def take_apart(self) -> None:
        """Nobody asks it any more. Its parts, which refer to each other, go without a search for garbage."""
        self.queue.forget()
        vars(self).clear()

    def add_one(self, name: NodeName) -> None:
        """One more node, as large as the first."""
        self.add_node(added_node(name, self.graph))

    def add_node(self, spec: NodeSpec) -> None:
        """A node comes up, for the first time or again, with a fresh agent."""
        before = self.nodes.get(spec.name)
        node = SimNode(self, spec, before.starts + 1 if before is not None else 0)
        self.nodes[spec.name] = node
        if self.is_down or self.sessions.is_watched(spec.name):
            self.listen_for(node)  # of any other nothing is awaited before it has joined
        self.queue.after(0, node.connect)

    def bring_back(self, spec: NodeSpec) -> None:
        """A node that a fault took away is up again, unless another brought it back before."""
        if not self.nodes[spec.name].is_alive:
            self.add_node(spec)

    def kill_node(self, node: SimNode) -> None:
        """Power off; a guardian that lives proves it a moment later."""
        node.die()
        self.queue.after(PROOF_NS, self.handle, NodeGone(node.spec.name, "it was killed"))

    @property
    def is_quiet(self) -> bool:
        """Nobody waits for any news, and everybody who may be missed is well."""
        awaited = self._watching.is_awake or self._faulting.is_waiting or self.work.is_awaited
        calm = not self.is_down and not self.plays_heartbeats and self._silent_at() is None
        return calm and not awaited

    def is_no_matter(self, action: Action, args: tuple[Any, ...]) -> bool:
        """It is a checkpoint, or a deadline that has been moved to an earlier time: to wake then is nothing."""
        if action == self._wake:
            return bool(args[0] != self._planned)
        return action == self.work.checkpoint or is_put_off(action, args)

    def _silent_at(self) -> int | None:
        """When somebody will be overdue, or silent for too long; None while all are sure to be heard."""
        if self.plays_heartbeats:
            return self.sessions.deadline()
        return self.sessions.deadline_of(self._unwell) if self._unwell else None

    def listen_for(self, node: SimNode) -> None:
        """Something about the node or its link has changed: is its silence something to wait for?"""
        node.is_heard = self.sessions.is_heard(node.spec.name)
        if self.nodes.get(node.spec.name) is not node:
            return  # another took its place
        if node.is_well:
            self._unwell.pop(node.spec.name, None)
        else:
            self._unwell[node.spec.name] = None

    def hear(self, message: ToController) -> None:
        """A message of an agent arrives at the controller."""
        heard = self.sessions.hear(message, self.queue.now)
        if type(message) is not Report:  # which is heard of a node that is watched, and makes it no better heard
            self.listen_for(self.nodes[message.node])
        for answer in heard.answers:
            self._send(self.nodes[message.node], answer)
        for event in heard.events:
            self.handle(event)
        if type(message) is Heartbeat:
            self.plan()

    def heard(self, node: NodeName, at: int) -> None:
        """Heartbeats that were not played: the last of them arrived then."""
        self.sessions.heard(node, at)

    def _note_heard(self, node: NodeName) -> None:
        """Its heartbeats may have become news, or be none any more."""
        self.nodes[node].is_heard = self.sessions.is_heard(node)

    def handle(self, event: Event) -> None:
        """One event for the controller: record it, check, carry out what follows."""
        job = self.controller.state
        if job.outcome is not None:
            return
        if self.is_down:  # nobody listens: whoever has something to prove says it again
            self._unheard.append(event)
            return
        now = self.queue.now
        if self._watch is not None and now > job.now + MOMENT_NS:
            self._check(self._watch.check)  # the moment before is over
        self.sessions.note(event)
        if type(event) is NodeGone:
            self._note_heard(event.node)
        effects = self.controller.handle(event, now)
        self._n += 1
        line = record(self._n, now, event, effects)
        self._lines.append(line)
        self._check_after(line)
        if self._tell is not None and self._n % TELLS_EVERY == 0:
            self._tell(now, self._n)
        self.points.hear(job, line)
        if self._is_watched:
            self._watching.hear(job, now)
        if job.outcome is not None:
            self.queue.stop()
        for effect in effects:
            self._carry_out(effect)
        self.accounts.hear(job, line)
        if self._faulting.is_waiting:
            self._faulting.hear(line)
        self.work.notice_who_stays_away()
        self.plan()

    def _check_after(self, line: Record) -> None:
        if self._watch is not None:
            self._watch.note(line.event)
        elif self._pace is not None:
            self._check(self._pace.check, line)
        else:
            self._check(check_job)

    def _check(self, check: Callable[..., None], *args: Record) -> None:
        try:
            check(self.job, *args)
        except AssertionError as error:
            raise Violation("invariant", str(error)) from error

    def kill_controller(self) -> None:
        """The controller dies; the next one knows what is in the record, and takes over a moment later (R21)."""
        self.is_down = True
        for node in self.nodes.values():
            node.lose_link()
        self.queue.after(TAKE_OVER_NS, self._take_over)

    def _take_over(self) -> None:
        fresh = self._replayed()
        if fresh.state != self.job:
            raise Violation("replay", "a controller that replays the record is not where the last one was")
        self.controller, self.sessions, self.is_down = fresh, Sessions(self.graph.options), False
        self._pace = Pace() if self._pace is not None else None
        started = self.sessions.take_over(fresh.state, self.queue.now)
        for name in self.nodes:
            self._note_heard(name)
        self.handle(started)
        unheard, self._unheard = self._unheard, []
        for event in unheard:
            self.handle(event)
        for node in self.nodes.values():
            node.connect()

    def _replayed(self) -> Controller:
        """A controller that has heard what is in the record.

        Where not everything is checked all the time, one that is where an earlier controller was hears the rest alone.
        """
        fresh, heard = self._past
        if fresh is None or self._watch is None:
            known = tuple(node.name for node in self.graph.cluster.nodes)
            fresh, heard = Controller(self.graph, known), 0
        self._past = (self.controller, len(self._lines))
        for line in self._lines.since(heard):
            if isinstance(line, Record):
                fresh.handle(line.event, line.t_ns)
        return fresh

    def phase(self) -> str:
        """Where the job is, as far as faults are concerned."""
        if self.job.ending is not None:
            return "ending"
        if self.job.open or self.is_down:
            return "in recovery"
        now, models = self.queue.now, self.work.models.values()
        if any(model.is_restoring(now) for model in models):
            return "restoring"
        if self.is_saving:
            return "saving"
        is_steady = any(model.begun_ns is not None and not model.is_warming(now) for model in models)
        return "steady" if is_steady else "starting"

    @property
    def is_saving(self) -> bool:
        """Some world writes a checkpoint."""
        now = self.queue.now
        return self.work.code.is_saving or any(model.is_saving(now) for model in self.work.models.values())

    def note_fault(self, fault: Fault, target: str) -> None:
        make_known(self)
        self._hits[fault.kind, self.phase()] += 1
        self.points.hit(fault)
        self._lines.append(FaultLine(self.queue.now, fault.spec, target))

    def note_unsaved(self, world: str, step: int, role: str) -> None:
        """What its world was to save at that step is not on the disk of that role."""
        self._lines.append(UnsavedLine(self.queue.now, world, step, f"the disk of {role} is full"))

    def _carry_out(self, effect: Effect) -> None:
        if is_order(effect):
            if type(effect) is StartReplica:
                self.work.leave_behind(effect)
            self._send(self.nodes[effect.node], self.sessions.order(effect))
        elif type(effect) is FinishJob:
            for node in self.nodes.values():
                self._send(node, self.sessions.dismiss(node.spec.name))

    def _send(self, node: SimNode, message: ToAgent) -> None:
        if node.net.is_quiet:
            self.queue.at(node.net.arrival("down", self.queue.now), node.receive, message, node.link)
        elif not node.net.is_cut("down"):
            for at in node.net.arrivals("down", self.queue.now):
                self.queue.at(at, node.receive, message, node.link)

    def plan(self) -> None:
        """Wake the controller at its deadline, or when somebody's silence may have become too long."""
        if self.is_down:
            return
        due = self._due_at()
        if due is None or (self._planned is not None and self.queue.now < self._planned <= due):
            return
        self._planned = due
        self.queue.at(due, self._wake, due)

    def _due_at(self) -> int | None:
        due, silent = self.controller.deadline(), self._silent_at()
        return silent if due is None or (silent is not None and silent < due) else due

    def _wake(self, planned: int) -> None:
        if self._planned != planned or self.is_down:
            return
        self._planned = None
        due = self._due_at()
        if due is not None and due <= self.queue.now:  # else it was put off: whoever was missed has been heard
            self._pass_time()
        self.plan()

    def _pass_time(self) -> None:
        for node in self.nodes.values():
            node.renew()
        for silent in self.sessions.expire(self.queue.now):
            self._note_heard(silent.node)
            self.nodes[silent.node].replan()  # its heartbeats are news now
            self.handle(silent)
        deadline = self.controller.deadline()
        if deadline is not None and deadline <= self.queue.now:
            self.handle(TimePassed())

    def attempt_began(self, replica: ReplicaId, attempt: int) -> None:
        """Two attempts of one replica never run at the same time (R19)."""
        other = self._running.get(replica)
        if other is not None:
            raise Violation("split brain", f"{replica} runs as attempt {attempt} while attempt {other} does")
        self._running[replica] = attempt

    def attempt_paused(self, replica: ReplicaId, attempt: int) -> None:
        """It gets no CPU: another may run meanwhile, once the lease of its node is over."""
        if self._running.get(replica) == attempt:
            del self._running[replica]

    def check_ghosts(self, node: SimNode) -> None:
        """A node that was paused goes on: what was replaced meanwhile has to be gone in a moment (R19)."""
        ran = node.running()
        for replica, attempt in ran:
            self._running.setdefault(replica, attempt)

        def check() -> None:
            for replica, attempt in ran:
                other = self._running.get(replica, attempt)
                if node.is_alive and node.workers.get((replica, attempt)) and other != attempt:
                    raise Violation("split brain", f"{replica} goes on as attempt {attempt} beside attempt {other}")

        self.queue.after(GHOST_NS, check)

    def attempt_ended(self, replica: ReplicaId, attempt: int) -> None:
        if self._running.get(replica) == attempt:
            del self._running[replica]
        self.work.ended(replica, attempt)


def with_nodes(graph: RoleGraph) -> RoleGraph:
    """The graph with one node that is just large enough, if it has none."""
    if graph.cluster.given:
        return graph
    cpu = sum(role.resources.cpu * role.max_replicas for role in graph.roles)
    memory = sum(role.resources.memory * role.max_replicas for role in graph.roles)
    return msgspec.structs.replace(graph, cluster=Cluster((NodeSpec("node0", cpu=max(cpu, 1), memory=memory),)))
