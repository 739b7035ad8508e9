"""Faults of the supervisor's plan that hit the node of a joined host."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flowdist.control.job.state import JobState
from flowdist.runtime.injection.remote_faults import Held, RemoteFault, strike, workers_hit
from flowdist.runtime.processes.holding import Below
from flowdist.runtime.supervisor.event_printer import Show
from flowdist.runtime.supervisor.local_node import LocalNode


class FaultTarget:
    """Injects faults into the node of this host and its workers.

    That gives the controller's host no new power: a host that joins a job runs the job's commands anyway.
    """

    def __init__(self, node: LocalNode, run_dir: Path, show: Show) -> None:
        self._node, self._run_dir, self._show = node, run_dir, show
        self._held: list[Below | Held] = []  # processes that a fault has stopped or slowed down

    def inject(self, fault: RemoteFault, job: JobState) -> None:
        """Inject a fault, unless the node does not run."""
        guardian = self._node.process
        if guardian is None:
            return
        self._show("warning", f"a fault hits {fault.target}: {fault.kind}")
        if fault.replica is not None:
            if fault.replica in job.replicas:
                for folder in workers_hit(self._run_dir, fault):
                    if (held := strike(folder, fault)) is not None:  # a hang lasts until the worker is killed
                        self._hold(held, fault.duration_ns if fault.kind != "hang" else None)
            return
        match fault.kind:
            case "pause":
                below = Below(guardian.pid)
                below.stop()
                self._hold(below, fault.duration_ns)
            case "kill" | "leave":
                self._node.take_away(fault)

    def release_all(self) -> None:
        """End every fault that still holds processes up."""
        for held in list(self._held):
            self._release(held)

    def _hold(self, held: Below | Held, duration_ns: int | None) -> None:
        self._held.append(held)
        if duration_ns is not None:
            asyncio.get_running_loop().call_later(duration_ns / 1e9, self._release, held)

    def _release(self, held: Below | Held) -> None:
        if held in self._held:
            self._held.remove(held)
            held.go_on()
