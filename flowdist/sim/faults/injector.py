"""The fault plan in virtual time: on nodes and processes, never on the controller's knowledge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.events import DrainRequested, ScaleRequested
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.xid import xid_text
from flowdist.faults.grammar import (
    ORDERS,
    Fault,
    Plan,
    check_plan,
    check_targets,
    refuse_fault,
    refuse_misplaced,
    refuse_unsupported,
)
from flowdist.faults.milestones import has_come
from flowdist.faults.rates import Arrivals, check_rates
from flowdist.graph import MS, SECOND, RoleGraph, parse_duration
from flowdist.record.journal import Record
from flowdist.sim.engine.network import Direction

if TYPE_CHECKING:
    from flowdist.sim.engine.node import SimNode
    from flowdist.sim.engine.simulation import Simulation

# Until the death of a node is known for sure, a little more than simulation.PROOF_NS: an agent of it that joined sooner
# would be taken for the dead one.
PROVEN_NS = 11 * MS
LEAVES_NS, LEAVES_MAX = SECOND, 120  # how often it is looked whether a node that leaves is gone, and for how long
OF_LINKS = ("flap", "delay", "drop", "duplicate", "reorder")
DAMAGES = ("torn-checkpoint", "lost-checkpoint", "corrupt-checkpoint")
CHECKPOINTS = (*DAMAGES, "slow-checkpoint")
SLOW = ("slow", "slow-checkpoint")
KINDS = {
    "node": ("kill", "lost", "leave", "preempt", "pause", "partition", "cut-to", *OF_LINKS, "xid", "add", "drain"),
    "replica": ("kill", "exit", "oom", "hang", "pause", "slow", "disk-full", "scale", *CHECKPOINTS),
    "controller": ("kill", "partition", "cut-to"),
}


def check_faults(plan: Plan, graph: RoleGraph) -> None:
    """FaultError for a fault that the simulator cannot carry out, or whose target is not there."""
    nodes = [node.name for node in graph.cluster.nodes] + plan.new_nodes

    def check(faults: Sequence[Fault]) -> None:
        refuse_unsupported(faults, KINDS, "flowdist simulate")
        check_targets(faults, graph, nodes)
        refuse_misplaced(faults, KINDS, nodes)
        for fault in faults:
            if fault.kind in SLOW and Fraction(fault.arg.rstrip("x")) < 1:
                refuse_fault(fault, f"{fault.target} would be no slower", f"write {fault.kind}=2x")

    check(plan.faults)
    check_plan(plan, graph)
    check_rates(plan.rates, graph, nodes, check)


class Faulting:
    """`plan` with its times, events and rates; the draws of these are those of `seed`."""

    def __init__(self, sim: Simulation, plan: Plan, seed: int) -> None:
        self._sim, self._faults = sim, list(plan.faults)
        nodes = [node.name for node in sim.graph.cluster.nodes] + plan.new_nodes
        self._arrivals = Arrivals(plan.rates, sim.graph, nodes, seed)
        self._waiting: list[Fault] = []
        self._fired: dict[str, None] = {}
        self._parted = 0

    def plan(self) -> None:
        """Those with a time go into the queue, the others wait for their event."""
        for fault in self._faults:
            when = fault.when
            if when.at_ns is not None:
                self._sim.queue.at_apart(when.at_ns + fault.offset_ns, self._firing(fault))
            elif when.every_ns is not None:
                self._sim.queue.at_apart(when.every_ns + fault.offset_ns, self._firing(fault))
            else:
                self._waiting.append(fault)
                if when.event == "step":
                    self._sim.work.wait_for_step(when.role, when.number)
        self._plan_arrival()

    def _plan_arrival(self) -> None:
        """The next one that a rate brings; the one after it is drawn when it is there."""
        at = self._arrivals.next_ns()
        if at is not None:
            self._sim.queue.at(at, self._arrive)

    def _arrive(self) -> None:
        self._fire(self._arrivals.pop())
        self._plan_arrival()

    @property
    def is_waiting(self) -> bool:
        """A fault waits for an event, whichever comes."""
        return bool(self._waiting)

    def hear(self, line: Record) -> None:
        """A record was written: a fault may have waited for it."""
        for fault in list(self._waiting):
            when = fault.when
            assert when.event is not None
            if has_come(self._sim.job, line.event, when.event, when.role, when.number):
                self._waiting.remove(fault)
                self._sim.queue.after(fault.offset_ns, self._firing(fault))

    def never_fired(self) -> list[Fault]:
        return [fault for fault in self._faults if fault.spec not in self._fired]

    def _firing(self, fault: Fault) -> Callable[[], None]:
        return lambda: self._fire(fault)

    def _fire(self, fault: Fault) -> None:
        if fault.when.every_ns is not None:
            self._sim.queue.after(fault.when.every_ns, self._firing(fault))
        if fault.target == "controller":
            self._hit_controller(fault)
        elif fault.kind in ORDERS:
            self._order(fault)
        elif fault.label is not None:
            for node in list(self._sim.nodes.values()):
                if fault.label in node.spec.labels:
                    self._hit_node(fault, node)
        elif fault.target in self._sim.nodes:
            self._hit_node(fault, self._sim.nodes[fault.target])
        elif fault.kind in ("disk-full", *CHECKPOINTS):
            self._hit_checkpoints(fault)
        else:
            for replica in self._targets(fault):
                self._hit_replica(fault, replica)

    def _order(self, fault: Fault) -> None:
        """What the operator does, or the cluster: control is told, as it would be."""
        if fault.kind == "scale":
            self._tell(fault, fault.target)
            self._sim.handle(ScaleRequested(fault.target, int(fault.arg)))
            return
        names = [fault.target]
        if fault.label is not None:
            names = [name for name, node in self._sim.nodes.items() if fault.label in node.spec.labels]
        for name in names:
            self._tell(fault, name)
            if fault.kind == "drain":
                self._sim.handle(DrainRequested(name))
            else:
                self._sim.add_one(name)

    def _hit_controller(self, fault: Fault) -> None:
        if fault.kind == "kill":
            if not self._sim.is_down:
                self._tell(fault, "controller")
                self._sim.kill_controller()
            return
        self._tell(fault, "controller")
        directions: tuple[Direction, ...] = ("down",) if fault.kind == "cut-to" else ("up", "down")
        for name in fault.others:
            self._cut(fault, self._sim.nodes[name], directions)

    def _cut(self, fault: Fault, node: SimNode, directions: tuple[Direction, ...]) -> None:
        node.cut(fault.spec, *directions)
        self._sim.plan()  # its silence is something to wait for now
        self._later(fault, lambda: node.heal(fault.spec))

    def _later(self, fault: Fault, undo: Callable[[], None]) -> None:
        if fault.duration_ns is not None:
            self._sim.queue.after(fault.duration_ns, undo)

    def _hit_checkpoints(self, fault: Fault) -> None:
        """Of all worlds of a role, or of one replica."""
        name = fault.target.partition("/")[0]
        roles = list(self._sim.job.roles) if name == "all" else [name]
        if fault.kind in DAMAGES:
            roles = [role for role in roles if self._has_saved(fault, role)]
        roles = [role for role in roles if self._saves(role)]
        if roles:
            self._tell(fault, fault.target)
        for role in roles:
            self._spoil(fault, role)

    def _saves(self, role: str) -> bool:
        """It writes checkpoints in simulation: a service does by a model of its worker alone."""
        return self._sim.graph.role(role).kind == "task" or self._sim.work.code.has_model(role)

    def _has_saved(self, fault: Fault, role: str) -> bool:
        """There is a checkpoint to be damaged."""
        work, replica = self._sim.work, ReplicaId(*fault.replica) if fault.replica is not None else None
        if work.code.has_model(role):
            return bool(work.code.disk.newest(role, replica, None))
        worlds = [
            world for world in self._sim.job.roles[role].worlds if replica is None or world in (str(replica), role)
        ]
        return any(world in work.models and work.models[world].saved for world in worlds)

    def _spoil(self, fault: Fault, role: str) -> None:
        if fault.kind == "disk-full":
            self._sim.work.fill_disk(role)
            self._later(fault, lambda: self._sim.work.free_disk(role))
            return
        if fault.kind == "slow-checkpoint":
            self._sim.work.slow_disk(role, Fraction(fault.arg.rstrip("x")))
            self._later(fault, lambda: self._sim.work.slow_disk(role, Fraction(1)))
            return
        replica = ReplicaId(*fault.replica) if fault.replica is not None else None
        self._sim.work.damage(role, replica, fault.kind, fault.spec)  # type: ignore[arg-type]

    def _tell(self, fault: Fault, target: str) -> None:
        self._fired[fault.spec] = None
        self._sim.note_fault(fault, target)

    def _hit_node(self, fault: Fault, node: SimNode) -> None:
        has_no_such_gpu = fault.kind == "xid" and fault.xid[1] >= node.spec.gpu
        if not node.is_alive or node.net.is_dead or has_no_such_gpu:
            return
        self._tell(fault, node.spec.name)
        match fault.kind:
            case "kill":
                self._sim.kill_node(node)
                self._bring_back(fault, node, 0)
            case "lost":
                self._cut(fault, node, ("up", "down"))
            case "leave":
                node.tell(io.LeaveRequested())
                self._bring_back(fault, node, 0)
            case "preempt":
                self._preempt(fault, node)
            case "pause":
                self._pause(fault, node)
            case "partition" | "cut-to":
                self._part(fault, node)
            case "delay":
                node.disturb(fault.spec, delay_ns=parse_duration(fault.arg))
                self._later(fault, lambda: node.heal(fault.spec))
            case "drop":
                node.disturb(fault.spec, loss=float(fault.arg))
                self._later(fault, lambda: node.heal(fault.spec))
            case "duplicate":
                node.disturb(fault.spec, copies=float(fault.arg))
                self._later(fault, lambda: node.heal(fault.spec))
            case "reorder":
                node.disturb(fault.spec, overtakes=float(fault.arg))
                self._later(fault, lambda: node.heal(fault.spec))
            case "flap":
                self._flap(fault, node)
            case "xid":
                number, gpu = fault.xid
                node.tell(io.GpuFaulted(gpu, xid_text(number), number))
        self._sim.plan()

    def _bring_back(self, fault: Fault, node: SimNode, after_ns: int) -> None:
        """It is up again so long after its end, but not before that is proven; and not before it has left."""

        def back(patience: int) -> None:
            if node.is_alive and patience:
                self._sim.queue.after(LEAVES_NS, back, patience - 1)
            else:
                self._sim.bring_back(node.spec)

        if fault.duration_ns is not None:
            self._sim.queue.after(after_ns + max(fault.duration_ns, PROVEN_NS), back, LEAVES_MAX)

    def _flap(self, fault: Fault, node: SimNode) -> None:
        """Cut off from the controller and back again, a period each, until the duration is over."""
        period_ns, queue = parse_duration(fault.arg), self._sim.queue
        end = queue.now + fault.duration_ns if fault.duration_ns is not None else None

        def cut() -> None:
            if node.is_alive and (end is None or queue.now < end):
                node.cut(fault.spec, "up", "down")
                self._sim.plan()  # its silence is something to wait for now
                queue.after(period_ns if end is None else min(period_ns, end - queue.now), heal)

        def heal() -> None:
            node.heal(fault.spec)
            queue.after(period_ns, cut)

        cut()

    def _pause(self, fault: Fault, node: SimNode) -> None:
        """All of it stands still, and with it the worlds of which it has a member."""
        name = f"{fault.spec} of {node.spec.name}"
        ran = node.running()  # what has ended there may run elsewhere by now
        worlds = {self._sim.job.replicas[replica].world for replica, _ in ran}
        node.pause()
        for world in sorted(worlds):
            self._sim.work.hold(world, name)
        for replica, attempt in ran:
            self._sim.work.code.freeze(replica, attempt)
            self._sim.work.standstill.begins(replica, attempt)

        def resume() -> None:
            for world in sorted(worlds):
                self._sim.work.go_on(world, name)
            for replica, attempt in ran if node.is_alive else ():
                self._sim.work.code.thaw(replica, attempt)
                self._sim.work.standstill.ends(replica)
            node.go_on()

        self._later(fault, resume)

    def _part(self, fault: Fault, node: SimNode) -> None:
        """Cut off from the controller, or from other nodes: worlds on both sides of it cannot go on."""
        if "controller" in fault.others:
            self._cut(fault, node, ("up",) if fault.kind == "cut-to" else ("up", "down"))
        others = [name for name in fault.others if name != "controller"]
        if others:
            self._parted += 1  # of a label each node is parted by itself, and `every=` may part it twice
            why = f"{fault.spec} ({self._parted})"
            self._sim.work.partitions.part(why, node.spec.name, others)
            self._later(fault, lambda: self._sim.work.partitions.join(why))

    def _preempt(self, fault: Fault, node: SimNode) -> None:
        """A notice, and when it has run out the end, come what may."""
        notice_ns = parse_duration(fault.arg)
        node.tell(io.PreemptionNoticed(notice_ns))

        def take() -> None:
            if node.is_alive:
                self._sim.kill_node(node)
                self._sim.plan()

        self._sim.queue.after(notice_ns, take)
        self._bring_back(fault, node, notice_ns)

    def _targets(self, fault: Fault) -> list[ReplicaId]:
        running = [replica.id for replica in self._sim.job.replicas.values() if replica.phase in ("running", "ready")]
        if fault.target == "all":
            return running
        if fault.replica is not None:
            return [replica for replica in running if tuple(replica) == fault.replica]
        return [replica for replica in running if replica.role == fault.target]

    def _hit_replica(self, fault: Fault, replica: ReplicaId) -> None:
        state = self._sim.job.replicas[replica]
        if state.node is None:
            return
        node = self._sim.nodes[state.node]
        alive = list(node.workers.get((replica, state.attempt), {}))
        ranks = [rank for rank in alive if fault.local_rank in (None, rank)]
        if fault.kind == "slow" and self._sim.graph.role(replica.role).kind == "service":
            return  # what a slow one costs those who call it is not simulated: it has not fired
        if ranks:
            self._tell(fault, str(replica))
        if ranks and fault.kind in ("hang", "pause", "slow"):
            self._hold_up(fault, node, replica, state.attempt)
            return
        for rank in ranks:
            match fault.kind:
                case "kill":
                    node.exit_worker(replica, state.attempt, rank, signal="KILL")
                case "exit":
                    node.exit_worker(replica, state.attempt, rank, code=int(fault.arg))
                case "oom":
                    node.exit_worker(replica, state.attempt, rank, signal="KILL", kind="oom")

    def _hold_up(self, fault: Fault, node: SimNode, replica: ReplicaId, attempt: int) -> None:
        """It does nothing any more, or nothing for a while, or all of it slowly."""
        work, world = self._sim.work, self._sim.job.replicas[replica].world
        if fault.kind == "slow":
            work.slow_down(replica, attempt, Fraction(fault.arg.rstrip("x")))
            self._later(fault, lambda: work.slow_down(replica, attempt, Fraction(1)))
        elif fault.kind == "hang" or fault.duration_ns is None:
            work.hang(node, replica, attempt)
        else:
            why = f"{fault.spec} of {replica}#{attempt}"
            node.hung[replica, attempt] = None
            work.hold(world, why)
            work.code.freeze(replica, attempt)
            work.standstill.begins(replica, attempt)

            def resume() -> None:
                work.code.thaw(replica, attempt)
                work.standstill.ends(replica)
                node.hung.pop((replica, attempt), None)
                work.go_on(world, why)

            self._later(fault, resume)
