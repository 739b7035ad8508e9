"""The fault plan in virtual time: on nodes and processes, never on the controller's knowledge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flowdist.control import agent_io as io
from flowdist.control.history import Record
from flowdist.control.ids import ReplicaId
from flowdist.control.milestones import has_come
from flowdist.faults import Fault, Plan, check_plan, refuse_misplaced, refuse_unsupported
from flowdist.graph import RoleGraph, parse_duration

if TYPE_CHECKING:
    from flowdist.sim.node import SimNode
    from flowdist.sim.simulation import Simulation

KINDS = {
    "node": ("kill", "lost", "leave", "preempt"),
    "replica": ("kill", "exit", "oom", "hang"),
    "controller": ("kill",),
}


def check_faults(plan: Plan, graph: RoleGraph) -> None:
    """FaultError for a fault that the simulator cannot carry out, or whose target is not there."""
    refuse_unsupported(plan.faults, KINDS, "flowdist simulate")
    check_plan(plan, graph)
    nodes = [node.name for node in graph.cluster.nodes] + [add.node for add in plan.adds]
    refuse_misplaced(plan.faults, KINDS, nodes)


class Faulting:
    def __init__(self, sim: Simulation, faults: Sequence[Fault]) -> None:
        self._sim, self._faults = sim, list(faults)
        self._waiting: list[Fault] = []
        self._fired: dict[str, None] = {}

    def plan(self) -> None:
        """Those with a time go into the queue, the others wait for their event."""
        for fault in self._faults:
            when = fault.when
            if when.at_ns is not None:
                self._sim.queue.at(when.at_ns + fault.offset_ns, self._firing(fault))
            elif when.every_ns is not None:
                self._sim.queue.at(when.every_ns + fault.offset_ns, self._firing(fault))
            else:
                self._waiting.append(fault)
                if when.event == "step":
                    self._sim.work.wait_for_step(when.role, when.number)

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
            if not self._sim.is_down:
                self._tell(fault, "controller")
                self._sim.kill_controller()
        elif fault.target in self._sim.nodes:
            self._hit_node(fault)
        else:
            for replica in self._targets(fault):
                self._hit_replica(fault, replica)

    def _tell(self, fault: Fault, target: str) -> None:
        self._fired[fault.spec] = None
        self._sim.note_fault(fault, target)

    def _hit_node(self, fault: Fault) -> None:
        node = self._sim.nodes[fault.target]
        if not node.is_alive or node.is_cut:
            return
        self._tell(fault, fault.target)
        match fault.kind:
            case "kill":
                self._sim.kill_node(node)
            case "lost":
                node.cut()
            case "leave":
                node.tell(io.LeaveRequested())
            case "preempt":
                self._preempt(fault, node)
                return
        self._sim.plan()  # its silence is something to wait for now
        if fault.duration_ns is not None:
            back = node.heal if fault.kind == "lost" else lambda: self._sim.add_node(node.spec)
            self._sim.queue.after(fault.duration_ns, back)

    def _preempt(self, fault: Fault, node: SimNode) -> None:
        """A notice, and when it has run out the end, come what may."""
        notice_ns = parse_duration(fault.arg)
        node.tell(io.PreemptionNoticed(notice_ns))

        def take() -> None:
            if node.is_alive:
                self._sim.kill_node(node)
                self._sim.plan()

        self._sim.queue.after(notice_ns, take)
        if fault.duration_ns is not None:
            self._sim.queue.after(notice_ns + fault.duration_ns, lambda: self._sim.add_node(node.spec))

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
        if ranks:
            self._tell(fault, str(replica))
        if ranks and fault.kind == "hang":
            self._sim.work.hang(node, replica, state.attempt)
            return
        for rank in ranks:
            match fault.kind:
                case "kill":
                    node.exit_worker(replica, state.attempt, rank, signal="KILL")
                case "exit":
                    node.exit_worker(replica, state.attempt, rank, code=int(fault.arg))
                case "oom":
                    node.exit_worker(replica, state.attempt, rank, signal="KILL", kind="oom")
