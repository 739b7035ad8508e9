"""The fault plan against real processes. Control is never told: it has to notice.

A replica or worker is killed by its process id, a node by its guardian. `exit=3` is a SIGKILL that the spawner is told
to report as exit code 3, because nobody can make a foreign process exit by itself. A hang is a SIGSTOP.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Protocol

from flowdist.control.events import DrainRequested, NodePreempted, ScaleRequested
from flowdist.control.history import Record
from flowdist.control.milestones import has_come
from flowdist.control.state import JobState, Replica
from flowdist.faults import Fault, Plan, check_plan, refuse_misplaced, refuse_unsupported
from flowdist.graph import RoleGraph, parse_duration
from flowdist.runtime.frames import Operation
from flowdist.runtime.spawning import INJECTED_EXIT

KINDS = {
    "node": ("kill", "preempt"),
    "replica": ("kill", "exit", "hang"),
    "controller": ("kill",),
}


def check_faults(plan: Plan, graph: RoleGraph) -> None:
    """FaultError for a fault that `run` cannot carry out, or whose target is not there."""
    refuse_unsupported(plan.faults, KINDS, "flowdist run")
    check_plan(plan, graph)
    refuse_misplaced(plan.faults, KINDS, [node.name for node in graph.cluster.nodes])


class Hands(Protocol):
    """What the injector needs of the supervisor, who owns the processes."""

    def kill_node(self, name: str, back_after_ns: int | None) -> None: ...
    def kill_controller(self) -> None: ...
    def operate(self, event: Operation) -> None: ...
    def note_fault(self, spec: str, target: str) -> None: ...


class Injector:
    """Decides from the records when a fault, or an order of the operator, is due."""

    def __init__(self, plan: Plan, run_dir: Path, hands: Hands) -> None:
        self._run_dir, self._hands = run_dir, hands
        self._waiting: list[Fault] = []  # for their event
        self._due: list[tuple[int, Fault]] = []
        self._orders: list[tuple[int, Operation]] = [
            *((scale.at_ns, ScaleRequested(scale.role, scale.replicas)) for scale in plan.scales),
            *((drain.at_ns, DrainRequested(drain.node)) for drain in plan.drains),
        ]
        self._deaths: list[tuple[int, Fault]] = []  # of nodes that were preempted
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
        return min((at for at, _ in [*self._due, *self._orders, *self._deaths]), default=None)

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
        for at, fault in list(self._deaths):
            if at <= now:
                self._deaths.remove((at, fault))
                self._hands.kill_node(fault.target, fault.duration_ns)
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
        if fault.target in job.nodes:
            if job.nodes[fault.target].usable:
                self._hit_node(fault, now)
            return
        for replica in _targets(job, fault):
            for folder in self._worker_folders(replica, fault.local_rank):
                self._hit_worker(fault, folder)

    def _hit_node(self, fault: Fault, now: int) -> None:
        self._tell(fault, fault.target)
        if fault.kind == "preempt":
            notice_ns = parse_duration(fault.arg)
            self._hands.operate(NodePreempted(fault.target, notice_ns))
            self._deaths.append((now + notice_ns, fault))
        else:
            self._hands.kill_node(fault.target, fault.duration_ns)

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


def _targets(job: JobState, fault: Fault) -> list[Replica]:
    """The replicas that run and are meant."""
    running = [replica for replica in job.replicas.values() if replica.phase in ("running", "ready")]
    if fault.target == "all":
        return running
    if fault.replica is not None:
        return [replica for replica in running if tuple(replica.id) == fault.replica]
    return [replica for replica in running if replica.id.role == fault.target]
