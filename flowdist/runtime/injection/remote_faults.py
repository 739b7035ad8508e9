"""Faults that hit a node or its workers, carried out on the host of the node.

The supervisor carries them out for its own nodes; for a node of a joined host it sends them to that host's command.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from flowdist.runtime.processes.pausing import PausedWorker, SlowedWorker
from flowdist.runtime.processes.spawn_protocol import INJECTED_EXIT, INJECTED_OOM, read_pid
from flowdist.runtime.wire.fault_messages import RemoteFault

Paused = PausedWorker | SlowedWorker


def workers_hit(run_dir: Path, fault: RemoteFault) -> list[Path]:
    """Return the folders of the workers that a fault hits: those that have a process id."""
    folders = fault.target if fault.local_rank is not None else f"{fault.target}/*"
    return sorted(file.parent for file in run_dir.glob(f"{folders}/pid") if read_pid(file.parent) is not None)


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
            case "hang" | "pause" | "slow":
                worker = PausedWorker(pid)
                paused = SlowedWorker(worker, float(fault.arg.rstrip("x"))) if fault.kind == "slow" else worker
                paused.pause()
                return paused
            case "exit":
                (folder / INJECTED_EXIT).write_text(fault.arg)
            case "oom":
                (folder / INJECTED_OOM).touch()
        os.kill(pid, signal.SIGKILL)
    return None
