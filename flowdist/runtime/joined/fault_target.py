"""Faults of the supervisor's plan that hit the node of a joined host."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from pathlib import Path

from flowdist.control.protocol.ids import ReplicaId
from flowdist.runtime.injection.remote_faults import Paused, apply, workers_hit
from flowdist.runtime.processes.pausing import PausedNode
from flowdist.runtime.supervisor.event_printer import Show
from flowdist.runtime.supervisor.local_node import LocalNode
from flowdist.runtime.wire.fault_messages import RemoteFault


class FaultTarget:
    """Injector of the supervisor's faults on a joined host: into its node, or workers of the node.

    That gives the controller's host no new power: a host that joins a job runs the job's commands anyway.

    Args:
        node: The node of this host.
        run_dir: The folder of the run on this host, where workers are found by their pid files.
        show: Prints a line on the terminal.
    """

    def __init__(self, node: LocalNode, run_dir: Path, show: Show) -> None:
        self._node, self._run_dir, self._show = node, run_dir, show
        self._paused: list[PausedNode | Paused] = []

    def inject(self, fault: RemoteFault, started: Container[ReplicaId]) -> None:
        """Announce a fault on the terminal and inject it, unless the node does not run.

        After the fault's duration a pause or slowdown ends, and a node that was killed or has left is started again.

        Args:
            fault: The fault of the node, or of workers of one attempt. Workers that do not run are left out.
            started: The replicas that have started here. A fault of another one is not injected.
        """
        guardian = self._node.process
        if guardian is None:
            return
        self._show("warning", f"a fault hits {fault.target}: {fault.kind}")
        if fault.replica is not None:
            if fault.replica in started:
                for folder in workers_hit(self._run_dir, fault):
                    if (paused := apply(folder, fault)) is not None:  # a hang lasts until the worker is killed
                        self._pause_for(paused, fault.duration_ns if fault.kind != "hang" else None)
            return
        match fault.kind:
            case "pause":
                node = PausedNode(guardian.pid)
                node.pause()
                self._pause_for(node, fault.duration_ns)
            case "kill" | "leave":
                self._node.take_away(fault)

    def resume_all(self) -> None:
        """Resume all processes that faults have paused or slowed down. The faults end with that."""
        for paused in list(self._paused):
            self._resume(paused)

    def _pause_for(self, paused: PausedNode | Paused, duration_ns: int | None) -> None:
        self._paused.append(paused)
        if duration_ns is not None:
            asyncio.get_running_loop().call_later(duration_ns / 1e9, self._resume, paused)

    def _resume(self, paused: PausedNode | Paused) -> None:
        if paused in self._paused:
            self._paused.remove(paused)
            paused.resume()
