"""What a fault does to workers of one node. Who has them does it: the supervisor, or the command of another host."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import msgspec

from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.runtime.processes.holding import Group, Slow
from flowdist.runtime.processes.spawning import INJECTED_EXIT, INJECTED_OOM, read_pid

Held = Group | Slow


class RemoteFault(msgspec.Struct, frozen=True, tag=True):
    """A fault that is due, for the node itself or for workers of an attempt that runs there.

    `kind` and `arg` are those of the fault. `duration_ns` is how long a node stays away, or somebody is held up; None:
    for good. `local_rank` is that of the one worker that is meant; None: all of the replica.
    """

    node: NodeName
    kind: str
    arg: str = ""
    duration_ns: int | None = None
    replica: ReplicaId | None = None
    attempt: int = 0
    local_rank: int | None = None

    @property
    def target(self) -> str:
        """The folder of whom it hits in that of the run; the node, if it is that."""
        if self.replica is None:
            return self.node
        rank = f"/{self.local_rank}" if self.local_rank is not None else ""
        return f"{self.replica}/attempt_{self.attempt}{rank}"


def workers_hit(run_dir: Path, blow: RemoteFault) -> list[Path]:
    """The folders of the workers that are meant."""
    assert blow.replica is not None
    base = run_dir / blow.replica.role / str(blow.replica.index) / f"attempt_{blow.attempt}"
    ranks = "*" if blow.local_rank is None else str(blow.local_rank)
    return sorted(file.parent for file in base.glob(f"{ranks}/pid") if read_pid(file.parent) is not None)


def strike(folder: Path, blow: RemoteFault) -> Held | None:
    """Hit the worker whose logs are in the folder, if it is still there. Returns what holds it up."""
    pid = read_pid(folder)
    if pid is None:
        return None
    with contextlib.suppress(ProcessLookupError):
        match blow.kind:
            case "hang" | "pause":
                return _stopped(Group(pid))
            case "slow":
                return _stopped(Slow(Group(pid), float(blow.arg.rstrip("x"))))
            case "exit":
                (folder / INJECTED_EXIT).write_text(blow.arg)
            case "oom":
                (folder / INJECTED_OOM).touch()
        os.kill(pid, signal.SIGKILL)
    return None


def _stopped(held: Held) -> Held:
    held.stop()
    return held
