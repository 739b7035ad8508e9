"""The simulation of one job in virtual time: where its parts are made and joined.

The controller and the agents are those of production; only links, processes and user code are simulated. Of the layers
engine, user_code, workers, faults and checks each imports those before it alone. Three things are checked in every run:
the invariants of the job, that no two attempts of one replica run at the same time (R19), and that the job ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import msgspec

from flowdist.control.controller import Controller
from flowdist.control.invariants import Checks
from flowdist.control.job.state import JobState
from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import DrainRequested, ScaleRequested
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.faults.grammar import NOTHING, Fault, Plan
from flowdist.graph import Cluster, NodeSpec, RoleGraph
from flowdist.graph.capacity import node_for_all
from flowdist.record.accounts import Accounts
from flowdist.record.journal import AccountLine, FaultLine, Header, Record, UnkeptWork
from flowdist.sim.checks.points import POINTS, Points
from flowdist.sim.checks.properties import Properties, Watching
from flowdist.sim.engine.context import Context, Trace
from flowdist.sim.engine.controller import SimController
from flowdist.sim.engine.node import RunningAttempts, SimNode
from flowdist.sim.engine.queue import Queue, Violation
from flowdist.sim.faults.injector import FaultInjector
from flowdist.sim.result import SimResult
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.user_code.workload import WorldModel
from flowdist.sim.workers.work import Work

__all__ = ["Checks", "SimResult", "Simulation", "Violation", "with_nodes"]

NOTHING_DEMANDED = Properties()
TELLS_EVERY = 128  # events


class Simulation:
    """One job in virtual time.

    Its graph needs nodes: `with_nodes` adds one to a graph that declares none. Seed 0 is nominal. Any other seed draws
    how long start-ups take (up to a fifth more or less), how slow steps are (`step_spread`), and how soon peers notice
    a death; each attempt has streams of its own. Lost packets and the faults of rates are drawn with any seed, 0 too.
    `schedule` draws the order of events of one time (0: as planned). `play_heartbeats`: each is played, as in
    production, also those that cannot matter. `play_steps`: each step of user code is played by itself. `fast_forward`:
    see `workers.fast_forward`; only lines of the trace between decisions are missing. `checks` is the schedule of
    `control.invariants`; at the end all are checked. `tell` is called every 128 events with the virtual time in ns and
    the number of events. `arrival_ns` is the time from the start of a node until its agent connects.
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
        arrival_ns: int = 0,
    ) -> None:
        names = tuple(node.name for node in graph.cluster.nodes)
        options = plan.rate_options | ({"schedule": str(schedule)} if schedule else {})
        trace = Trace(Header(graph, names, seed=seed, options=options))
        self.queue = Queue(schedule)
        controller = Controller(graph, names)
        self.ctx = Context(
            graph, self.queue, trace, controller, seed, schedule, play_heartbeats, fast_forward, arrival_ns
        )
        self.nodes: dict[NodeName, SimNode] = {}
        self._tell = tell
        self._hits: Counter[tuple[str, str]] = Counter()
        self._by_rate: Counter[str] = Counter()
        seen: dict[str, int] = {}
        self._watching, self._is_watched = Watching(properties, seen), any(properties)
        self._accounts, self.running = Accounts(self.job), RunningAttempts(self.queue)
        self._controller = self._new_controller(checks)
        code = UserCode(self.ctx, self.nodes, self._note_offer, play_steps)
        self.work = Work(self.ctx, self.nodes, code, self._accounts, self._is_quiet)
        self.points = Points(self.ctx, self.work, seen)
        self._faults = FaultInjector(self.ctx, self.nodes, self._controller, self.work, plan, self._note_fault)
        self._plan_all(plan)

    def _new_controller(self, checks: Checks) -> SimController:
        """Make the simulated controller. Subclasses in proofs and tests override this to make one of their own."""
        return SimController(self.ctx, self.nodes, self, checks)

    def new_node(self, spec: NodeSpec, starts: int) -> SimNode:
        """Make a node. Subclasses in proofs override this, too."""
        return SimNode(self.ctx, spec, self._controller, self.work, self.running, starts)

    def _plan_all(self, plan: Plan) -> None:
        """Start nodes, then queue orders, faults and the first wake-up: of one time, the first queued runs first."""
        for spec in self.ctx.graph.cluster.nodes:
            self._controller.add_node(spec)
        for scale in plan.scales:
            self.queue.at(scale.at_ns, self._controller.handle, ScaleRequested(scale.role, scale.replicas))
        for drain in plan.drains:
            self.queue.at(drain.at_ns, self._controller.handle, DrainRequested(drain.node))
        for add in plan.adds:
            self.queue.at(add.at_ns, self._controller.add_like_first, add.node)
        self._faults.plan()
        self._controller.plan()

    @property
    def job(self) -> JobState:
        """The state of the job as its present controller sees it."""
        return self.ctx.job

    def run(self, until: int | None = None) -> SimResult:
        """Run to the end of the job, or to `until` (ns), and return the result, with the violation that ended it."""
        self.ctx.until_ns = until
        try:
            self.queue.run(until)
            if self.job.outcome is None and (until is None or self.queue.now < until):
                waits = ", ".join(waiting_for(self.job)) or "nothing"
                hangs = _unseen_hangs(self.nodes.values(), self.ctx.graph)
                text = "no event is left, and the job has not ended"
                raise Violation("liveness", text, f"waiting for {waits}{hangs}")
            self._controller.check_all()
            self._watching.close(self.job, self.queue.now)
        except Violation as error:
            return self.result(error)
        return self.result(None)

    def result(self, violation: Violation | None, *, has_crashed: bool = False) -> SimResult:
        """Close the accounts, and return the result; after a crash in an event they need not add up, and stay open."""
        if not has_crashed:
            self.work.worlds.close()
            self.ctx.trace.append(self._account())
        return SimResult(
            spent=self._accounts.spent,
            hits=self._hits,
            by_rate=self._by_rate,
            job=self.job,
            lines=self.ctx.trace,
            now=self.queue.now,
            models=self.work.models,
            unfired=self._faults.never_fired(),
            violation=violation,
            waiting=waiting_for(self.job),
            handled=self.queue.handled,
            seen=self.points.seen,
            points=(*POINTS, *(point.name for point in self._watching.properties.sometimes)),
            played=self.work.code.close(),
        )

    def _account(self) -> AccountLine:
        """Return the last line of the trace, from which its readers know where the time went."""
        booked = self._accounts.spent
        spent = {role: {str(bucket): ns for bucket, ns in of.items() if ns} for role, of in booked.items()}
        lost_ns = Counter[str]()
        for model in self.work.models.values():
            for role in model.roles:
                lost_ns[role] += model.lost_ns
        unkept = (each for world, model in self.work.models.items() for each in _unkept(world, model))
        return AccountLine(self.queue.now, spent, dict(lost_ns), tuple(unkept))

    def take_apart(self) -> None:
        """Cut the references between the parts, of no use any more, to free memory; results stay valid."""
        self.queue.forget()
        self.nodes.clear()
        for part in (self.work.worlds, self.work, self._controller, self._faults, self.points, self):
            vars(part).clear()

    # The simulation observes its controller: see `Observer`.

    def decided(self, job: JobState, line: Record) -> None:
        """Call `tell` if it is due, note the points that a decision reaches, and check the user's properties."""
        if self._tell is not None and line.n % TELLS_EVERY == 0:
            self._tell(line.t_ns, line.n)
        self.points.hear(job, line)
        if self._is_watched:
            self._watching.hear(job, line.t_ns)

    def before_start(self, start: StartReplica) -> None:
        """End the work that an older generation of the world still does on a paused node."""
        self.work.leave_behind(start)

    def carried_out(self, job: JobState, line: Record) -> None:
        """Book the time of the replicas, fire faults that waited for it, and give up services that are over."""
        self._accounts.hear(job, line)
        if self._faults.waiting:
            self._faults.hear(line)
        if self.work.services.away:
            self.work.services.forget_given_up()

    def _note_offer(self, replica: ReplicaId, attempt: int) -> None:
        self.points.offered(replica, attempt)  # a method, since `points` is made after the user code

    def _note_fault(self, fault: Fault, target: str) -> None:
        self.work.fast_forward.catch_up()
        self._hits[fault.kind, self.work.phase()] += 1
        if fault.rate:
            self._by_rate[fault.rate] += 1
        self.points.hit(fault)
        self.ctx.trace.append(FaultLine(self.queue.now, fault.spec, target))

    def _is_quiet(self) -> bool:
        """Return whether no property, fault, missing controller or suspicion keeps fast-forward from skipping."""
        return not (self._watching.is_awake or self._faults.waiting) and self._controller.awaits_no_silence


def _unkept(world: WorldName, model: WorldModel) -> Iterator[UnkeptWork]:
    """Yield the work of each generation of a world that was not kept."""
    for generation, losses in groupby(model.losses, key=lambda loss: loss.generation):
        first, *others = losses
        if ns := first.ns + sum(loss.ns for loss in others):
            yield UnkeptWork(world, generation, first.at_ns, ns)
    if model.unsaved_ns:
        yield UnkeptWork(world, model.ended, model.ended_ns, model.unsaved_ns, is_unsaved=True)


def with_nodes(graph: RoleGraph) -> RoleGraph:
    """Return the graph; if it declares no nodes, with a node that is large enough for all of it."""
    if graph.cluster.given:
        return graph
    return msgspec.structs.replace(graph, cluster=Cluster((node_for_all(graph.roles),)))


def _unseen_hangs(nodes: Iterable[SimNode], graph: RoleGraph) -> str:
    """Return the end of a liveness message: replicas that hang in roles without `hang_after`; empty if none does."""
    hung = [replica for node in nodes if node.is_alive for replica, _ in node.hung]
    unseen = [replica for replica in sorted(hung) if graph.role(replica.role).hang_after_ns is None]
    if not unseen:
        return ""
    roles = ", ".join(dict.fromkeys(replica.role for replica in unseen))
    hangs = f"{', '.join(map(str, unseen))} hang{'s' * (len(unseen) == 1)}"
    return f"; {hangs}, which only hang_after= of {roles} would detect"
