"""Interpretation of worker exits: exit code or signal, last error, and whether the worker ran out of memory."""

from __future__ import annotations

from pathlib import Path

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.runtime.processes.exit_status import signal_name
from flowdist.runtime.processes.spawn_protocol import INJECTED_OOM, injected_code
from flowdist.runtime.worker_env.secret_values import Mask
from flowdist.runtime.worker_env.worker_errors import error_line, is_out_of_memory, oom_kills, raised_ns


class WorkerExits:
    """Describes the exits of a node's workers for the pure agent.

    The kernel does not say which process it killed for lack of memory. A worker counts as such if SIGKILL ended it, the
    agent did not send that signal, and the kernel's count of such kills has grown since the last failed worker.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._killed: dict[tuple[ReplicaId, int], None] = {}  # attempts that the agent sent SIGKILL
        self._oom_kills = oom_kills()

    def note_kill(self, replica: ReplicaId, attempt: int) -> None:
        """Remember that the agent sends SIGKILL to the attempt."""
        self._killed[replica, attempt] = None

    def forget(self, replica: ReplicaId, attempt: int) -> None:
        """Drop what is kept about an attempt that is over."""
        self._killed.pop((replica, attempt), None)

    def describe(self, start: StartReplica, local_rank: int, code: int, folder: Path) -> io.WorkerExited:
        """Return the event for the exit of a worker.

        Args:
            start: The order by which the worker was started.
            local_rank: Its rank within the replica.
            code: Its exit code as `subprocess` has it: negative for a signal. An injected fault may replace it.
            folder: Its log folder.
        """
        code = injected_code(folder, code)
        if code == 0:
            return io.WorkerExited(start.replica, start.attempt, local_rank)
        name = signal_name(code) if code < 0 else None
        detail = error_line(folder, self._mask)
        was_oom_killed = self._was_oom_killed(start, folder, name)
        return io.WorkerExited(
            start.replica,
            start.attempt,
            local_rank,
            max(code, 0),
            name,
            "oom" if was_oom_killed or is_out_of_memory(detail) else None,
            detail,
            raised_ns(folder),
        )

    def _was_oom_killed(self, start: StartReplica, folder: Path, signal: str | None) -> bool:
        before, self._oom_kills = self._oom_kills, oom_kills()
        is_injected = (folder / INJECTED_OOM).exists()
        is_ours = (start.replica, start.attempt) in self._killed
        return signal == "KILL" and not is_ours and (is_injected or self._oom_kills > before)
