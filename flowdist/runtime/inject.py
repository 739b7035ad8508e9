"""The fault plan against real processes. Control is never told: it has to notice.

A replica or worker is killed by its process id, a node by its guardian. `exit=3` is a SIGKILL that the spawner is told
to report as exit code 3, because nobody can make a foreign process exit by itself. A hang is a SIGSTOP.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from flowdist.control.events import DrainRequested, NodePreempted, ScaleRequested
from flowdist.control.history import Record
from flowdist.control.milestones import has_come
from flowdist.control.state import JobState, Replica
from flowdist.fault_rates import Arrivals, check_rates
from flowdist.faults import ORDERS, Fault, Plan, check_plan, check_targets, refuse_misplaced, refuse_unsupported
from flowdist.graph import RoleGraph, parse_duration
from flowdist.runtime.frames import Operation
from flowdist.runtime.spawning import INJECTED_EXIT

KINDS = {
    "node": ("kill", "preempt", "drain"),
    "replica": ("kill", "exit", "hang", "scale"),
    "controller": ("kill",),
}


def check_faults(plan: Plan, graph: RoleGraph) -> None:
    """FaultError for a fault that `run` cannot carry out, or whose target is not there."""
    nodes = [node.name for node in graph.cluster.nodes]

    def check(faults: Sequence[Fault]) -> None:
        refuse_unsupported(faults, KINDS, "flowdist run")
        check_targets(faults, graph, nodes)
        refuse_misplaced(faults, KINDS, nodes)

    check(plan.faults)
    check_plan(plan, graph)
    check_rates(plan.rates, graph, nodes, check)


class Hands(Protocol):
    """What the injector needs of the supervisor, who owns the processes."""

    def kill_node(self, name: str, back_after_ns: int | None) -> None: ...
    def kill_controller(self) -> None: ...
    def operate(self, event: Operation) -> None: ...
    def note_fault(self, spec: str, target: str) -> None: ...


class Injector:
    """Decides from the records when a fault, or an order of the operator, is due. Rates have the draws of seed 0."""

    def __init__(self, plan: Plan, graph: RoleGraph, run_dir: Path, hands: Hands) -> None:
        self._run_dir, self._hands = run_dir, hands
        self._arrivals = Arrivals(plan.rates, graph, [node.name for node in graph.cluster.nodes], 0)
        self._waiting: list[Fault] = []  # for their event
        self._due: list[tuple[int, Fault]] = []
        self._orders: list[tuple[int, Operation]] = [
            *((scale.at_ns, ScaleRequested(scale.role, scale.replicas)) for scale in plan.scales),
            *((drain.at_ns, DrainRequested(drain.node)) for drain in plan.drains),
        ]
        self._deaths: list[tuple[int, Fault, str]] = []  # of nodes that were preempted
        self.fired: dict[str, None] = {}
        self._faults = list(plan.faults)
        for fault in plan.faults:
            if fault.when.at_ns is not None:
                self._due.append((fault.when.at_ns + fault.offset_ns, fault))
            elif fault.when.every_ns is not None:
                self._due.append((fault.when.every_ns + fault.offset_ns, fault))
            else:
                self._waiting.append(fault)

    def next_ns(self) -> int | None:
        """When the next fault is due, in time of the job."""
        drawn = self._arrivals.next_ns()
        times = [at for at, _ in self._due] + [at for at, _ in self._orders] + [at for at, _, _ in self._deaths]
        return min(times if drawn is None else [*times, drawn], default=None)

    def hear(self, job: JobState, record: Record) -> None:
        """A record was written: a fault may wait for what it says."""
        for fault in list(self._waiting):
            when = fault.when
            if when.event is not None and has_come(job, record.event, when.event, when.role, when.number):
                self._waiting.remove(fault)
                self._due.append((record.t_ns + fault.offset_ns, fault))

    def fire(self, job: JobState, now: int) -> None:
        """Carry out what is due."""
        for at, order in list(self._orders):
            if at <= now:
                self._orders.remove((at, order))
                self._hands.operate(order)
        for fault in list(self._arrivals.until(now)):
            self._carry_out(job, fault, now)
        for at, fault, name in list(self._deaths):
            if at <= now:
                self._deaths.remove((at, fault, name))
                self._hands.kill_node(name, fault.duration_ns)
        for at, fault in sorted(self._due, key=lambda due: due[0]):
            if at <= now:
                self._due.remove((at, fault))
                if fault.when.every_ns is not None:
                    self._due.append((at + fault.when.every_ns, fault))
                self._carry_out(job, fault, now)

    def never_fired(self) -> list[Fault]:
        return [fault for fault in self._faults if fault.spec not in self.fired]

    def _carry_out(self, job: JobState, fault: Fault, now: int) -> None:
        if fault.target == "controller":
            self._tell(fault, "controller")
            self._hands.kill_controller()
            return
        if fault.kind in ORDERS:
            self._tell(fault, fault.target)
            if fault.kind == "scale":
                self._hands.operate(ScaleRequested(fault.target, int(fault.arg)))
            for name in _nodes(job, fault) if fault.kind == "drain" else ():
                self._hands.operate(DrainRequested(name))
            return
        nodes = _nodes(job, fault)
        for name in nodes:
            if job.nodes[name].usable:
                self._hit_node(fault, name, now)
        if nodes:
            return
        for replica in _targets(job, fault):
            for folder in self._worker_folders(replica, fault.local_rank):
                self._hit_worker(fault, folder)

    def _hit_node(self, fault: Fault, name: str, now: int) -> None:
        self._tell(fault, name)
        if fault.kind == "preempt":
            notice_ns = parse_duration(fault.arg)
            self._hands.operate(NodePreempted(name, notice_ns))
            self._deaths.append((now + notice_ns, fault, name))
        else:
            self._hands.kill_node(name, fault.duration_ns)

    def _worker_folders(self, replica: Replica, local_rank: int | None) -> list[Path]:
        base = self._run_dir / replica.id.role / str(replica.id.index) / f"attempt_{replica.attempt}"
        ranks = "*" if local_rank is None else str(local_rank)
        return sorted(file.parent for file in base.glob(f"{ranks}/pid"))

    def _hit_worker(self, fault: Fault, folder: Path) -> None:
        if fault.kind == "exit":
            (folder / INJECTED_EXIT).write_text(fault.arg)
        self._tell(fault, str(folder.relative_to(self._run_dir)))
        number = signal.SIGSTOP if fault.kind == "hang" else signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((folder / "pid").read_text()), number)

    def _tell(self, fault: Fault, target: str) -> None:
        self.fired[fault.spec] = None
        self._hands.note_fault(fault.spec, target)


def _nodes(job: JobState, fault: Fault) -> list[str]:
    """Those that it names, or that have its label."""
    if fault.label is not None:
        return [name for name, node in job.nodes.items() if fault.label in node.spec.labels]
    return [fault.target] if fault.target in job.nodes else []


def _targets(job: JobState, fault: Fault) -> list[Replica]:
    """The replicas that run and are meant."""
    running = [replica for replica in job.replicas.values() if replica.phase in ("running", "ready")]
    if fault.target == "all":
        return running
    if fault.replica is not None:
        return [replica for replica in running if tuple(replica.id) == fault.replica]
    return [replica for replica in running if replica.id.role == fault.target]
