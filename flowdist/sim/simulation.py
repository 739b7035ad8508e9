"""The driver of virtual time: it waits, translates and carries out, as the real one does, and checks after each event.

Checked always: the invariants of the job, and that no two attempts of one replica ever run at the same time (R19).
Faults act on nodes and processes only; the controller is never told and has to notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from flowdist.control.controller import Controller
from flowdist.control.effects import Effect, FinishJob, Notify
from flowdist.control.events import DrainRequested, Event, NodeGone, ScaleRequested, TimePassed
from flowdist.control.history import FaultLine, Header, Line, Record, digest, encode_line, record
from flowdist.control.ids import NodeName, ReplicaId
from flowdist.control.links import Links
from flowdist.control.messages import Heartbeat, ToAgent, ToController
from flowdist.control.state import JobState
from flowdist.control.waiting import waiting_for
from flowdist.faults import NOTHING, Add, Drain, Fault, Plan, Scale, added_node
from flowdist.graph import MS, Cluster, NodeSpec, RoleGraph, format_duration
from flowdist.sim.accounts import Accounts, Bucket
from flowdist.sim.faulting import Faulting
from flowdist.sim.node import SimNode
from flowdist.sim.queue import Queue
from flowdist.sim.work import Work
from flowdist.sim.workload import WorldModel

PROOF_NS = 10 * MS  # from the death of an agent to the guardian's proof of it
GHOST_NS = 100 * MS  # how long what was replaced while its node was paused may go on: until it is killed
TAKE_OVER_NS = 300 * MS  # from the death of the controller to the next one's first event


class Violation(AssertionError):
    """Something that must always hold did not. `property` names it."""

    def __init__(self, property: str, text: str) -> None:
        super().__init__(f"{property}: {text}")
        self.property = property


@dataclass(slots=True)
class SimResult:
    """How a simulation ended. `lines` are the trace with its header; `violation` is what did not hold."""

    job: JobState
    lines: list[Line]
    digest: str
    now: int
    models: dict[str, WorldModel]
    unfired: list[Fault]
    spent: dict[str, dict[Bucket, int]]  # ns, by role and bucket: together wall time x replicas
    hits: Counter[tuple[str, str]]  # faults, by kind and by the phase of the job
    violation: Violation | None = None
    waiting: list[str] = field(default_factory=list)
    handled: int = 0


class Simulation:
    """One job in virtual time.

    Args:
        graph: With nodes; see `with_nodes`.
        plan: What is to befall the job.
        seed: 0 is nominal: everything takes exactly what the workload says. Any other seed spreads start-up times by
            up to a fifth, each attempt's drawn from a stream of its own.
        always: Called with the job after every event; False or an AssertionError is a violation.
        play_heartbeats: Play each heartbeat, as production does, instead of taking quiet ones as played.
    """

    def __init__(
        self,
        graph: RoleGraph,
        plan: Plan = NOTHING,
        *,
        seed: int = 0,
        play_heartbeats: bool = False,
        always: Sequence[Callable[[JobState], object]] = (),
    ) -> None:
        self.graph, self.plays_heartbeats, self.seed = graph, play_heartbeats, seed
        self.queue = Queue()
        names = tuple(node.name for node in graph.cluster.nodes)
        self.controller = Controller(graph, names)
        self.nodes: dict[NodeName, SimNode] = {}
        self.accounts = Accounts(self.job)
        self._always = always
        self._hits: Counter[tuple[str, str]] = Counter()
        self.work = Work(self, seed)
        self.links = Links(graph.options)
        self.is_down = False  # the controller
        self._unheard: list[Event] = []
        self._running: dict[ReplicaId, int] = {}  # attempts with a process alive
        self._planned: int | None = None
        options = {"rates": " ".join(rate.spec for rate in plan.rates)} if plan.rates else {}
        self._lines: list[Line] = [Header(graph, names, seed=seed, options=options)]
        self._n = 0
        self._faulting = Faulting(self, plan, seed)
        for spec in graph.cluster.nodes:
            self.add_node(spec)
        for scale in plan.scales:
            self.queue.at(scale.at_ns, self._scaler(scale))
        for drain in plan.drains:
            self.queue.at(drain.at_ns, self._drainer(drain))
        for add in plan.adds:
            self.queue.at(add.at_ns, self._adder(add))
        self._faulting.plan()
        self.plan()

    @property
    def job(self) -> JobState:
        return self.controller.state

    def run(self, until: int | None = None) -> SimResult:
        """To the end of the job, or to `until`. A job that neither ends nor can go on is a violation of liveness."""
        violation = None
        try:
            while self.job.outcome is None and self.queue.step(until):
                pass
            if self.job.outcome is None and (until is None or self.queue.now < until):
                raise Violation("liveness", f"nothing will ever happen again; waiting for {waiting_for(self.job)}")
        except Violation as error:
            violation = error
        lines = [encode_line(line) for line in self._lines]
        self.accounts.close(self.work.models.values(), self.queue.now)
        return SimResult(
            spent=self.accounts.spent,
            hits=self._hits,
            job=self.job,
            lines=self._lines,
            digest=digest(lines),
            now=self.queue.now,
            models=self.work.models,
            unfired=self._faulting.never_fired(),
            violation=violation,
            waiting=waiting_for(self.job),
            handled=self.queue.handled,
        )

    def _scaler(self, scale: Scale) -> Callable[[], None]:
        return lambda: self.handle(ScaleRequested(scale.role, scale.replicas))

    def _drainer(self, drain: Drain) -> Callable[[], None]:
        return lambda: self.handle(DrainRequested(drain.node))

    def _adder(self, add: Add) -> Callable[[], None]:
        return lambda: self.add_one(add.node)

    def add_one(self, name: NodeName) -> None:
        """One more node, as large as the first."""
        self.add_node(added_node(name, self.graph))

    def add_node(self, spec: NodeSpec) -> None:
        """A node comes up, for the first time or again, with a fresh agent."""
        before = self.nodes.get(spec.name)
        node = SimNode(self, spec, before.starts + 1 if before is not None else 0)
        self.nodes[spec.name] = node
        self.queue.after(0, node.connect)

    def bring_back(self, spec: NodeSpec) -> None:
        """A node that a fault took away is up again, unless another brought it back before."""
        if not self.nodes[spec.name].is_alive:
            self.add_node(spec)

    def kill_node(self, node: SimNode) -> None:
        """Power off; a guardian that lives proves it a moment later."""
        node.die()
        self.queue.after(PROOF_NS, lambda: self.handle(NodeGone(node.spec.name, "it was killed")))

    def hear(self, message: ToController) -> None:
        """A message of an agent arrives at the controller."""
        heard = self.links.hear(message, self.queue.now)
        for answer in heard.answers:
            self._send(self.nodes[message.node], answer)
        for event in heard.events:
            self.handle(event)
        if isinstance(message, Heartbeat):
            self.plan()

    def heard(self, node: NodeName, at: int) -> None:
        """Heartbeats that were not played: the last of them arrived then."""
        self.links.heard(node, at)

    def handle(self, event: Event) -> None:
        """One event for the controller: record it, check, carry out what follows."""
        if self.job.outcome is not None:
            return
        if self.is_down:  # nobody listens: whoever has something to prove says it again
            self._unheard.append(event)
            return
        self.links.note(event)
        effects = self.controller.handle(event, self.queue.now)
        self._n += 1
        line = record(self._n, self.queue.now, event, effects)
        self._lines.append(line)
        try:
            self.job.check()
        except AssertionError as error:
            raise Violation("invariant", str(error)) from error
        for check in self._always:
            self._hold(check)
        for effect in effects:
            self._carry_out(effect)
        self.accounts.hear(self.job, line)
        self._faulting.hear(line)
        self.work.notice_who_stays_away()
        self.plan()

    def _hold(self, check: Callable[[JobState], object]) -> None:
        """A property of the user's."""
        name = getattr(check, "__name__", repr(check))
        try:
            if check(self.job) is False:
                raise Violation("always", f"{name} does not hold at {format_duration(self.queue.now)}")
        except AssertionError as error:
            if isinstance(error, Violation):
                raise
            raise Violation("always", f"{name} at {format_duration(self.queue.now)}: {error}") from error

    def kill_controller(self) -> None:
        """The controller dies; the next one knows what is in the record, and takes over a moment later (R21)."""
        self.is_down = True
        for node in self.nodes.values():
            node.lose_link()
        self.queue.after(TAKE_OVER_NS, self._take_over)

    def _take_over(self) -> None:
        known = tuple(node.name for node in self.graph.cluster.nodes)
        fresh = Controller(self.graph, known)
        for line in self._lines:
            if isinstance(line, Record):
                fresh.handle(line.event, line.t_ns)
        if fresh.state != self.job:
            raise Violation("replay", "a controller that replays the record is not where the last one was")
        self.controller, self.links, self.is_down = fresh, Links(self.graph.options), False
        self.handle(self.links.take_over(fresh.state, self.queue.now))
        unheard, self._unheard = self._unheard, []
        for event in unheard:
            self.handle(event)
        for node in self.nodes.values():
            node.connect()

    def _phase(self) -> str:
        """Where the job is, as far as faults are concerned."""
        if self.job.ending is not None:
            return "ending"
        if self.job.open or self.is_down:
            return "in recovery"
        begun = any(model.begun_ns is not None for model in self.work.models.values())
        return "steady" if begun else "starting"

    def note_fault(self, fault: Fault, target: str) -> None:
        self._hits[fault.kind, self._phase()] += 1
        self._lines.append(FaultLine(self.queue.now, fault.spec, target))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Notify():
                pass
            case FinishJob():
                for node in self.nodes.values():
                    self._send(node, self.links.dismiss(node.spec.name))
            case _:
                self._send(self.nodes[effect.node], self.links.order(effect))

    def _send(self, node: SimNode, message: ToAgent) -> None:
        if not node.net.is_cut("down"):
            link = node.link
            for at in node.net.arrivals("down", self.queue.now):
                self.queue.at(at, lambda: node.receive(message, link))

    def plan(self) -> None:
        """Wake the controller at its deadline, or when somebody's silence may have become too long."""
        if self.is_down:
            return
        times = [self.controller.deadline()]
        if self.plays_heartbeats or any(not node.is_alive or not node.net.is_quiet for node in self.nodes.values()):
            for node in self.nodes.values():
                node.renew()
            times.append(self.links.deadline())
        due = min((time for time in times if time is not None), default=None)
        if due is None or (self._planned is not None and self.queue.now < self._planned <= due):
            return
        self._planned = due
        self.queue.at(due, lambda: self._wake(due))

    def _wake(self, due: int) -> None:
        if self._planned != due or self.is_down:
            return
        self._planned = None
        for node in self.nodes.values():
            node.renew()
        for silent in self.links.expire(self.queue.now):
            self.handle(silent)
        deadline = self.controller.deadline()
        if deadline is not None and deadline <= self.queue.now:
            self.handle(TimePassed())
        self.plan()

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
