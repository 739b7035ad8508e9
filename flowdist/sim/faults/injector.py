"""The fault injector of a simulation: it carries out a plan in virtual time.

Faults act on nodes, links, processes and disks, or kill the controller. They never change the state of the controller.
Only orders of the operator (scale, add, drain) are passed to it, as in production.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.events import DrainRequested, ScaleRequested
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.protocol.xid import xid_text
from flowdist.faults.grammar import Fault, Plan
from flowdist.faults.kinds import KINDS, carried_out, having
from flowdist.faults.milestones import has_come
from flowdist.faults.rates import Arrivals, check_rates
from flowdist.faults.targets import check_plan, check_targets, refuse_fault, refuse_misplaced, refuse_unsupported
from flowdist.graph import MS, SECOND, RoleGraph, parse_duration
from flowdist.record.journal import Record
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.controller import SimController
from flowdist.sim.engine.network import DISTURBANCES, Direction
from flowdist.sim.engine.node import SimNode
from flowdist.sim.workers.work import Work

# The shortest time from a node's death to its return: a little more than `node.PROOF_NS`. If a node came back
# sooner, the proof of the old death would be taken for its own, and the node would be lost.
PROVEN_NS = 11 * MS
LEAVES_NS, LEAVES_MAX = SECOND, 120  # how long to wait, and how many times, for a node that leaves to be gone
CAN = carried_out("simulated")
OF_LINKS = ("lost", "flap", *DISTURBANCES)
OF_DISKS = (*having("damages"), "slow-checkpoint", "disk-full")


def check_faults(plan: Plan, graph: RoleGraph) -> None:
    """Check the faults and rates of a plan; FaultError for what the job, the target or the simulator does not have."""
    nodes = [node.name for node in graph.cluster.nodes] + plan.new_nodes

    def check(faults: Sequence[Fault]) -> None:
        refuse_unsupported(faults, CAN, "flowdist simulate")
        check_targets(faults, graph, nodes)
        refuse_misplaced(faults, CAN, nodes)
        for fault in faults:
            if KINDS[fault.kind].argument == "factor" and Fraction(fault.arg.rstrip("x")) < 1:
                refuse_fault(fault, f"{fault.target} would be no slower", f"write {fault.kind}=2x")

    check(plan.faults)
    check_plan(plan, graph)
    check_rates(plan.rates, graph, nodes, check)


class FaultInjector:
    """Injector of the faults of one simulation: those with a time, an event or a period, and those of rates.

    `plan` has been accepted by `check_faults`. Its other orders (`scales`, `adds`, `drains`) are left to `Simulation`.
    `on_hit` is called with a fault and the name of its target just before it takes effect. `waiting` holds the faults
    whose event has not come yet.
    """

    def __init__(
        self,
        ctx: Context,
        nodes: dict[NodeName, SimNode],
        controller: SimController,
        work: Work,
        plan: Plan,
        on_hit: Callable[[Fault, str], None],
    ) -> None:
        self._ctx, self._queue, self._nodes = ctx, ctx.queue, nodes
        self._controller, self._work, self._on_hit = controller, work, on_hit
        self._faults = list(plan.faults)
        names = [node.name for node in ctx.graph.cluster.nodes] + plan.new_nodes
        self._arrivals = Arrivals(plan.rates, ctx.graph, names, ctx.seed, plan.starts)
        self.waiting: list[Fault] = []
        self._fired: dict[str, None] = {}  # texts of the faults that have hit something
        self._parted = 0  # partitions between nodes so far

    def plan(self) -> None:
        """Schedule the faults with a time or a period and the first fault of the rates; put the others in `waiting`."""
        for fault in self._faults:
            when = fault.when
            first_ns = when.every_ns if when.at_ns is None else when.at_ns
            if first_ns is not None:
                self._queue.at_apart(first_ns + fault.offset_ns, self._fire, fault)
                continue
            self.waiting.append(fault)
            if when.event == "step":
                self._work.step_waits.append((when.role, when.number))
        self._plan_arrival()

    def _plan_arrival(self) -> None:
        """Schedule the next fault of the rates, if there are rates. The one after it is drawn when this one fires."""
        at = self._arrivals.next_ns()
        if at is not None:
            self._queue.at(at, self._arrive)

    def _arrive(self) -> None:
        self._fire(self._arrivals.pop())
        self._plan_arrival()

    def hear(self, line: Record) -> None:
        """Schedule the faults in `waiting` whose event this record reports, each after its offset."""
        for fault in list(self.waiting):
            when = fault.when
            assert when.event is not None
            if has_come(self._ctx.job, line.event, when.event, when.role, when.number):
                self.waiting.remove(fault)
                self._queue.after(fault.offset_ns, self._fire, fault)

    def never_fired(self) -> list[Fault]:
        """Return the faults of the plan that have hit nothing so far. Faults of rates are not among them."""
        return [fault for fault in self._faults if fault.spec not in self._fired]

    def _fire(self, fault: Fault) -> None:
        """Apply a fault, whose time has come, to all of its targets; schedule the next time of a periodic fault."""
        if fault.when.every_ns is not None:
            self._queue.after(fault.when.every_ns, self._fire, fault)
        if fault.target == "controller":
            self._hit_controller(fault)
        elif fault.kind in having("order"):
            self._order(fault)
        elif fault.label is not None or fault.target in self._nodes:
            for node in self._named(fault):
                self._hit_node(fault, node)
        elif fault.kind in OF_DISKS:
            self._hit_checkpoints(fault)
        else:
            for replica in self._targets(fault):
                self._hit_replica(fault, replica)

    def _named(self, fault: Fault) -> list[SimNode]:
        nodes = self._nodes.values()
        return [node for node in nodes if node.spec.name == fault.target or fault.label in node.spec.labels]

    def _order(self, fault: Fault) -> None:
        """Carry out an order: pass `scale` or `drain` to the controller, or bring a new node up for `add`."""
        if fault.kind == "scale":
            self._note_hit(fault, fault.target)
            self._controller.handle(ScaleRequested(fault.target, int(fault.arg)))
            return
        for name in [fault.target] if fault.label is None else [node.spec.name for node in self._named(fault)]:
            self._note_hit(fault, name)
            if fault.kind == "drain":
                self._controller.handle(DrainRequested(name))
            else:
                self._controller.add_like_first(name)

    def _hit_controller(self, fault: Fault) -> None:
        if fault.kind == "kill":
            if not self._ctx.is_down:
                self._note_hit(fault, "controller")
                self._controller.kill()
            return
        self._note_hit(fault, "controller")
        directions: tuple[Direction, ...] = ("down",) if fault.kind == "cut-to" else ("up", "down")
        for name in fault.others:
            self._cut(fault, self._nodes[name], directions)

    def _cut(self, fault: Fault, node: SimNode, directions: tuple[Direction, ...]) -> None:
        node.cut(fault.spec, *directions)
        self._controller.plan()  # no heartbeat comes any more, so the end of the node's lease is a deadline
        self._undo_later(fault, node.heal, fault.spec)

    def _undo_later(self, fault: Fault, undo: Callable[..., None], *args: Any) -> None:
        if fault.duration_ns is not None:
            self._queue.after(fault.duration_ns, undo, *args)

    def _hit_checkpoints(self, fault: Fault) -> None:
        """Apply a fault of disks or checkpoints to its roles, if they save, or have something to damage."""
        name = fault.target.partition("/")[0]
        roles = list(self._ctx.job.roles) if name == "all" else [name]
        if fault.kind in having("damages"):
            roles = [role for role in roles if self._has_saved(fault, role)]
        roles = [role for role in roles if self._saves(role)]
        if roles:
            self._note_hit(fault, fault.target)
        for role in roles:
            self._hit_role_checkpoints(fault, role)

    def _saves(self, role: str) -> bool:
        """Return whether the role writes checkpoints in the simulation: a task does, a service only with a model."""
        return self._ctx.graph.role(role).kind == "task" or self._work.code.has_model(role)

    def _has_saved(self, fault: Fault, role: str) -> bool:
        """Return whether the role, or the one replica that the fault names, has a checkpoint that can be damaged."""
        work, replica = self._work, ReplicaId(*fault.replica) if fault.replica is not None else None
        if work.code.has_model(role):
            return bool(work.code.disk.newest(role, replica, None))
        return any(model.saved for model in work.models_of(role, replica))

    def _hit_role_checkpoints(self, fault: Fault, role: str) -> None:
        """Fill or slow down the disk of a role until the fault's duration is over, or damage its newest checkpoint."""
        if fault.kind == "disk-full":
            self._work.code.disk.full[role] = None
            self._undo_later(fault, self._work.code.disk.full.pop, role, None)
            return
        if fault.kind == "slow-checkpoint":
            self._work.slow_disk(role, Fraction(fault.arg.rstrip("x")))
            self._undo_later(fault, self._work.slow_disk, role, Fraction(1))
            return
        replica = ReplicaId(*fault.replica) if fault.replica is not None else None
        self._work.damage(role, replica, fault.kind, fault.spec)  # type: ignore[arg-type]

    def _note_hit(self, fault: Fault, target: str) -> None:
        """Record that a fault hits a target, before it takes effect, and call `on_hit`."""
        self._fired[fault.spec] = None
        self._on_hit(fault, target)

    def _hit_node(self, fault: Fault, node: SimNode) -> None:
        """Apply a fault to a node.

        Nothing is hit if the node is dead, has no GPU of the number that `xid` names, or no copy to break; or if the
        fault is one of the link, and the node is cut off. What hits the node itself hits one that is cut off, too.
        """
        has_no_such_gpu = fault.kind == "xid" and fault.xid[1] >= node.spec.gpu
        is_of_link = fault.kind in OF_LINKS or set(fault.others) == {"controller"}
        has_no_copy = fault.kind == "broken-copy" and not node.vault.held
        if not node.is_alive or has_no_such_gpu or has_no_copy or (is_of_link and node.net.is_dead):
            return
        self._note_hit(fault, node.spec.name)
        match fault.kind:
            case "kill":
                self._controller.kill_node(node)
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
            case "delay" | "drop" | "duplicate" | "reorder":
                by = parse_duration(fault.arg) if fault.kind == "delay" else float(fault.arg)
                node.disturb(fault.spec, fault.kind, by)
                self._undo_later(fault, node.heal, fault.spec)
            case "flap":
                self._flap(fault, node)
            case "broken-copy":
                node.vault.break_copies()
            case "xid":
                number, gpu = fault.xid
                node.tell(io.GpuFaulted(gpu, xid_text(number), number))
        self._controller.plan()

    def _bring_back(self, fault: Fault, node: SimNode, after_ns: int) -> None:
        """Schedule the return of a node, with a fresh agent, `after_ns` and the fault's duration from now.

        It returns no sooner than its death is proven, and is put off while the node, which leaves, is still alive.
        """

        def back(patience: int) -> None:
            if node.is_alive and patience:
                self._queue.after(LEAVES_NS, back, patience - 1)
            elif not self._nodes[node.spec.name].is_alive:  # else another fault has brought it back already
                self._controller.add_node(node.spec)

        if fault.duration_ns is not None:
            self._queue.after(after_ns + max(fault.duration_ns, PROVEN_NS), back, LEAVES_MAX)

    def _flap(self, fault: Fault, node: SimNode) -> None:
        """Cut a node's link and mend it, for a period each, until the fault's duration is over or the node dies."""
        period_ns, queue = parse_duration(fault.arg), self._queue
        end = queue.now + fault.duration_ns if fault.duration_ns is not None else None

        def cut() -> None:
            if node.is_alive and (end is None or queue.now < end):
                node.cut(fault.spec, "up", "down")
                self._controller.plan()  # as in `_cut`
                queue.after(period_ns if end is None else min(period_ns, end - queue.now), heal)

        def heal() -> None:
            node.heal(fault.spec)
            queue.after(period_ns, cut)

        cut()

    def _pause(self, fault: Fault, node: SimNode) -> None:
        """Pause a node, its agent and its workers, for the fault's duration. Worlds with a member there wait for it."""
        name = f"{fault.spec} of {node.spec.name}"
        ran = node.running()  # kept for `resume`: by then these replicas may run elsewhere
        worlds = {self._ctx.job.replicas[replica].world for replica, _ in ran}
        node.pause()
        for world in sorted(worlds):
            self._work.worlds.stall(world, name, for_member=True)
        for key in ran:
            self._work.freeze(*key)

        def resume() -> None:
            for world in sorted(worlds):
                self._work.worlds.resume(world, name)
            for key in ran if node.is_alive else ():
                self._work.thaw(*key)
            node.resume()

        self._undo_later(fault, resume)

    def _part(self, fault: Fault, node: SimNode) -> None:
        """Cut a node off from the controller, from other nodes, or both. Worlds with members on both sides wait."""
        if "controller" in fault.others:
            self._cut(fault, node, ("up",) if fault.kind == "cut-to" else ("up", "down"))
        others = [name for name in fault.others if name != "controller"]
        if others:
            # The number tells partitions of one fault apart: a label cuts off several nodes, `every=` a node again.
            self._parted += 1
            why = f"{fault.spec} ({self._parted})"
            self._work.partitions.part(why, node.spec.name, others)
            self._undo_later(fault, self._work.partitions.join, why)

    def _preempt(self, fault: Fault, node: SimNode) -> None:
        """Give the agent notice, and kill the node after that. It comes back after the fault's duration."""
        notice_ns = parse_duration(fault.arg)
        node.tell(io.PreemptionNoticed(notice_ns))

        def take() -> None:
            if node.is_alive:
                self._controller.kill_node(node)
                self._controller.plan()

        self._queue.after(notice_ns, take)
        self._bring_back(fault, node, notice_ns)

    def _targets(self, fault: Fault) -> list[ReplicaId]:
        running = [replica.id for replica in self._ctx.job.replicas.values() if replica.phase in ("running", "ready")]
        if fault.target == "all":
            return running
        if fault.replica is not None:
            return [replica for replica in running if tuple(replica) == fault.replica]
        return [replica for replica in running if replica.role == fault.target]

    def _hit_replica(self, fault: Fault, replica: ReplicaId) -> None:
        """Apply a fault to the workers of a replica, or to the one that the fault names, if they run."""
        state = self._ctx.job.replicas[replica]
        if state.node is None:
            return
        node = self._nodes[state.node]
        alive = list(node.workers.get((replica, state.attempt), {}))
        ranks = [rank for rank in alive if fault.local_rank in (None, rank)]
        if fault.kind == "slow" and self._ctx.graph.role(replica.role).kind == "service":
            return  # the cost of a slow service is not simulated, so the fault has not fired
        if ranks:
            self._note_hit(fault, str(replica))
        if ranks and fault.kind in ("hang", "pause", "slow"):
            self._hinder(fault, node, replica, state.attempt)
            return
        for rank in ranks:
            match fault.kind:
                case "kill":
                    node.exit_worker(replica, state.attempt, rank, signal="KILL")
                case "exit":
                    node.exit_worker(replica, state.attempt, rank, code=int(fault.arg))
                case "oom":
                    node.exit_worker(replica, state.attempt, rank, signal="KILL", kind="oom")

    def _hinder(self, fault: Fault, node: SimNode, replica: ReplicaId, attempt: int) -> None:
        """Slow a replica down, pause it for the fault's duration, or make it hang for good. Its world waits for it."""
        work, world = self._work, self._ctx.job.replicas[replica].world
        if fault.kind == "slow":
            work.slow_down(replica, attempt, Fraction(fault.arg.rstrip("x")))
            self._undo_later(fault, work.slow_down, replica, attempt, Fraction(1))
        elif fault.kind == "hang" or fault.duration_ns is None:
            work.hang(node, replica, attempt)
        else:
            why = f"{fault.spec} of {replica}#{attempt}"
            node.hung[replica, attempt] = None
            work.worlds.stall(world, why, for_member=True)
            work.freeze(replica, attempt)

            def resume() -> None:
                work.thaw(replica, attempt)
                node.hung.pop((replica, attempt), None)
                work.worlds.resume(world, why)

            self._undo_later(fault, resume)
