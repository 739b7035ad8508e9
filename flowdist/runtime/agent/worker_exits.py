"""Interpretation of worker exits: exit code or signal, last error, and whether the worker ran out of memory."""

from __future__ import annotations

import os
from pathlib import Path

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.runtime.processes.spawn_protocol import INJECTED_OOM, injected_code, signal_name
from flowdist.runtime.worker_env.secret_values import Mask
from flowdist.runtime.worker_env.stop_notice import was_stopping
from flowdist.runtime.worker_env.worker_errors import (
    collective_timeout,
    error_line,
    is_out_of_memory,
    oom_kills,
    raised_ns,
)


class WorkerExits:
    """Interpreter of the exits of a node's workers, for the pure agent.

    The kernel does not say which process it killed for lack of memory. A worker counts as such if SIGKILL ended it, not
    from the agent, and the kernel's count of such kills has grown since the last failed worker.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._oom_kills = oom_kills()

    def describe(
        self, start: StartReplica, local_rank: int, code: int, folder: Path, was_killed: bool
    ) -> io.WorkerExited:
        """Return the input that reports the exit of a worker to the pure agent. Call this once for each exit.

        `code` is negative for a signal. An injected fault may have left another code in the worker's log `folder`.
        `was_killed`: the agent has sent SIGKILL to the attempt.
        """
        ended_by, code = signal_name(code) if code < 0 else None, injected_code(folder, code)
        stops = was_stopping(folder)
        if code == 0:
            return io.WorkerExited(start.replica, start.attempt, local_rank, was_stopping=stops)
        name = ended_by if code < 0 else None
        detail = error_line(folder, self._mask, ended_by)
        timed_out = collective_timeout(folder, self._mask, aborted=name == "ABRT")
        if timed_out not in detail:  # the last line of stderr is one of a stack trace
            detail = timed_out
        was_oom_killed = self._has_oom_kill(folder) and name == "KILL" and not was_killed
        return io.WorkerExited(
            start.replica,
            start.attempt,
            local_rank,
            max(code, 0),
            name,
            "oom" if was_oom_killed or is_out_of_memory(detail) else None,
            detail,
            raised_ns(folder),
            "collective_timeout" if timed_out else "",
            stops,
        )

    def _has_oom_kill(self, folder: Path) -> bool:
        """Return whether the kernel, or an injected fault, has killed for lack of memory since the last call."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        return self._oom_kills > before or os.path.exists(folder / INJECTED_OOM)  # noqa: PTH110  # raises nothing
