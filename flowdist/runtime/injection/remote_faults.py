"""Faults that hit a node or its workers, carried out on the host of the node.

The supervisor carries them out for its own nodes; for a node of a joined host it sends them to that host's command.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import msgspec

from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.runtime.processes.pausing import PausedWorker, SlowedWorker
from flowdist.runtime.processes.spawn_protocol import INJECTED_EXIT, INJECTED_OOM, read_pid

Paused = PausedWorker | SlowedWorker


class RemoteFault(msgspec.Struct, frozen=True, tag=True):
    """A fault that is due, for the node itself or for workers of an attempt that runs there."""

    node: NodeName
    kind: str  # as in the fault grammar
    arg: str = ""
    duration_ns: int | None = None  # how long a node stays away or a worker is paused; None: for good
    replica: ReplicaId | None = None  # None: the node itself is hit
    attempt: int = 0
    local_rank: int | None = None  # of the only worker that is hit; None: all workers of the replica

    @property
    def target(self) -> str:
        """Return what is hit: the node, or the folder of the workers relative to that of the run."""
        if self.replica is None:
            return self.node
        rank = f"/{self.local_rank}" if self.local_rank is not None else ""
        return f"{self.replica}/attempt_{self.attempt}{rank}"


def workers_hit(run_dir: Path, fault: RemoteFault) -> list[Path]:
    """Return the folders of the workers that a fault hits: those that have a process id."""
    assert fault.replica is not None
    base = run_dir / fault.replica.role / str(fault.replica.index) / f"attempt_{fault.attempt}"
    ranks = "*" if fault.local_rank is None else str(fault.local_rank)
    return sorted(file.parent for file in base.glob(f"{ranks}/pid") if read_pid(file.parent) is not None)


def apply(folder: Path, fault: RemoteFault) -> Paused | None:
    """Carry out a fault on the worker with this folder, if the worker still runs.

    Returns:
        What has to be resumed when the fault is over; None if nothing has to.
    """
    pid = read_pid(folder)
    if pid is None:
        return None
    with contextlib.suppress(ProcessLookupError):
        match fault.kind:
            case "hang" | "pause":
                return _paused(PausedWorker(pid))
            case "slow":
                return _paused(SlowedWorker(PausedWorker(pid), float(fault.arg.rstrip("x"))))
            case "exit":
                (folder / INJECTED_EXIT).write_text(fault.arg)
            case "oom":
                (folder / INJECTED_OOM).touch()
        os.kill(pid, signal.SIGKILL)
    return None


def _paused(worker: Paused) -> Paused:
    worker.pause()
    return worker
