"""The fault plan against real processes. Control is never told: it has to notice.

A replica or worker is killed by its process id, a node by its guardian. `exit=3` is a SIGKILL that the spawner is told
to report as exit code 3, because nobody can make a foreign process exit by itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from flowdist.control.history import Record
from flowdist.control.milestones import has_come
from flowdist.control.state import JobState, Replica
from flowdist.faults import Fault, check_targets, refuse_unsupported
from flowdist.graph import RoleGraph
from flowdist.runtime.spawner import INJECTED_EXIT

KINDS = ("kill", "exit")


def check_faults(faults: Sequence[Fault], graph: RoleGraph) -> None:
    """FaultError for a fault that `run` cannot carry out, or whose target is not there."""
    refuse_unsupported(faults, KINDS, "flowdist run")
    check_targets(faults, graph, [node.name for node in graph.cluster.nodes])


class Injector:
    """Decides from the records when a fault is due; `kill_node(name, back_after_ns)` is the supervisor's."""

    def __init__(
        self,
        faults: Sequence[Fault],
        run_dir: Path,
        kill_node: Callable[[str, int | None], None],
        note: Callable[[Fault, str], None],
    ) -> None:
        self._run_dir, self._kill_node, self._note = run_dir, kill_node, note
        self._waiting: list[Fault] = []  # for their event
        self._due: list[tuple[int, Fault]] = []
        self.fired: dict[str, None] = {}
        self._faults = list(faults)
        for fault in faults:
            if fault.when.at_ns is not None:
                self._due.append((fault.when.at_ns + fault.offset_ns, fault))
            elif fault.when.every_ns is not None:
                self._due.append((fault.when.every_ns + fault.offset_ns, fault))
            else:
                self._waiting.append(fault)

    def next_ns(self) -> int | None:
        """When the next fault is due, in time of the job."""
        return min((at for at, _ in self._due), default=None)

    def hear(self, job: JobState, record: Record) -> None:
        """A record was written: a fault may wait for what it says."""
        for fault in list(self._waiting):
            when = fault.when
            if when.event is not None and has_come(job, record.event, when.event, when.role, when.number):
                self._waiting.remove(fault)
                self._due.append((record.t_ns + fault.offset_ns, fault))

    def fire(self, job: JobState, now: int) -> None:
        """Carry out what is due."""
        for at, fault in sorted(self._due, key=lambda due: due[0]):
            if at <= now:
                self._due.remove((at, fault))
                if fault.when.every_ns is not None:
                    self._due.append((at + fault.when.every_ns, fault))
                self._carry_out(job, fault)

    def never_fired(self) -> list[Fault]:
        return [fault for fault in self._faults if fault.spec not in self.fired]

    def _carry_out(self, job: JobState, fault: Fault) -> None:
        if fault.target in job.nodes:
            if job.nodes[fault.target].usable:
                self._tell(fault, fault.target)
                self._kill_node(fault.target, fault.duration_ns)
            return
        for replica in _targets(job, fault):
            for folder in self._worker_folders(replica, fault.local_rank):
                self._kill_worker(fault, folder)

    def _worker_folders(self, replica: Replica, local_rank: int | None) -> list[Path]:
        base = self._run_dir / replica.id.role / str(replica.id.index) / f"attempt_{replica.attempt}"
        ranks = "*" if local_rank is None else str(local_rank)
        return sorted(file.parent for file in base.glob(f"{ranks}/pid"))

    def _kill_worker(self, fault: Fault, folder: Path) -> None:
        if fault.kind == "exit":
            (folder / INJECTED_EXIT).write_text(fault.arg)
        self._tell(fault, str(folder.relative_to(self._run_dir)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)

    def _tell(self, fault: Fault, target: str) -> None:
        self.fired[fault.spec] = None
        self._note(fault, target)


def _targets(job: JobState, fault: Fault) -> list[Replica]:
    """The replicas that run and are meant."""
    running = [replica for replica in job.replicas.values() if replica.phase in ("running", "ready")]
    if fault.target == "all":
        return running
    if fault.replica is not None:
        return [replica for replica in running if tuple(replica.id) == fault.replica]
    return [replica for replica in running if replica.id.role == fault.target]
