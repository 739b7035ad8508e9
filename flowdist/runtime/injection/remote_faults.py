"""Faults that hit a node or its workers, carried out on the host of the node.

The supervisor carries them out for its own nodes. A fault of a joined host's node is sent to the foreground process of
that host, which carries it out there.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from flowdist.runtime.processes.pausing import PausedWorker, SlowedWorker
from flowdist.runtime.processes.spawn_protocol import INJECTED_EXIT, INJECTED_OOM, read_pid
from flowdist.runtime.wire.frames import RemoteFault

Paused = PausedWorker | SlowedWorker


def workers_hit(run_dir: Path, fault: RemoteFault) -> list[Path]:
    """Return the log folders of the workers that a fault hits. Workers whose process id is not known are left out."""
    folders = fault.target if fault.local_rank is not None else f"{fault.target}/*"
    return sorted(file.parent for file in run_dir.glob(f"{folders}/pid") if read_pid(file.parent) is not None)


def apply(folder: Path, fault: RemoteFault) -> Paused | None:
    """Carry out a fault on the worker of this folder; return it if paused or slowed, for the caller to resume.

    A worker that has ended is left alone. `exit` and `oom` kill it, and leave a file by which its end is reported with
    that exit code, or as the kernel's kill for want of memory.
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
            case "kill":
                pass
            case _:
                raise AssertionError(f"nothing carries out {fault.kind} of a worker")
        os.kill(pid, signal.SIGKILL)
    return None
