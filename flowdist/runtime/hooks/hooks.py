"""The supervisor's side of the hook: it calls the hook for each incident that closes and for the end of the job.

What has happened is read from the supervisor's mirror of the controller. `hook_runner` runs the command in a process of
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import msgspec

from flowdist.control.job.state import Incident, JobState
from flowdist.control.protocol.effects import FinishJob
from flowdist.graph import RoleGraph
from flowdist.runtime.hooks.hook_runner import PATIENCE_S, HookConfig
from flowdist.runtime.processes.owned_processes import start_module
from flowdist.runtime.worker_env.environment import expand_command

LOG = "hooks.log"
MARGIN_S = 2.0  # for the runner to kill hooks that still run


class Hooks:
    """Caller of a job's hook, `on_incident`, if it has one; no method but `finish` waits for the command."""

    def __init__(self, graph: RoleGraph, run_dir: Path) -> None:
        self._graph, self._run_dir = graph, run_dir
        self._process: Process | None = None
        self._open: dict[int, None] = {}  # numbers of the incidents for which the hook is still to be called
        self._seen = 0  # how many incidents of the job are known here

    async def start(self) -> None:
        """Start the process that runs the hook, if the job has one."""
        if not self._graph.on_incident:
            return
        checkpoints = self._graph.checkpoint_dir or str(self._run_dir / "checkpoints")
        values = {"run_id": self._run_dir.name, "checkpoint_dir": checkpoints}
        folder = str(Path(self._graph.source).resolve().parent)
        config = HookConfig(expand_command(self._graph.on_incident, values, os.environ), folder)
        runner = "flowdist.runtime.hooks.hook_runner"
        self._process = await start_module(runner, config, self._run_dir / LOG, stdin=PIPE)

    def pids(self) -> list[int]:
        """Return the process id of the process that runs the hook, in a list; empty if there is no such process."""
        return [self._process.pid] if self._process is not None and self._process.returncode is None else []

    def observe(self, job: JobState) -> None:
        """Call the hook for each incident closed since the last call; the supervisor does so after each event."""
        for incident in job.incidents[self._seen :]:
            self._open[incident.number] = None
        self._seen = len(job.incidents)
        for number in list(self._open):
            if not job.incident(number).is_open:
                del self._open[number]
                self._send({"event": "incident_closed", **_incident(job.incident(number))})

    def skip_past(self, job: JobState) -> None:
        """Skip the incidents closed by now, in the past of a resumed run: their hooks were called at that time."""
        self._open = {incident.number: None for incident in job.incidents if incident.is_open}
        self._seen = len(job.incidents)

    async def finish(self, job: JobState, finished: FinishJob | None) -> None:
        """Call the hook for the end of the job, and wait for all calls or the end of the time for hooks.

        `finished` is the decision that ended the job; None if the controller died before it decided.
        """
        if not self.pids():
            return
        assert self._process is not None
        outcome, reason = ("failed", "the controller died") if finished is None else (finished.outcome, finished.reason)
        end = {"outcome": outcome, "reason": reason, "incidents": len(job.incidents), "duration_s": job.now / 1e9}
        self._send({"event": "job_ended", **end})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), PATIENCE_S + MARGIN_S)
        self.stop()

    def stop(self) -> None:
        """Have the runner kill the hook that runs and end. Calls that wait are dropped."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _send(self, call: dict[str, Any]) -> None:
        if self.pids() and self._process is not None and self._process.stdin is not None:
            job = {"format": 1, "job": self._graph.name, "run_dir": str(self._run_dir)}
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(msgspec.json.encode(job | call) + b"\n")


def _incident(incident: Incident) -> dict[str, Any]:
    closed_ns = incident.closed_ns
    assert closed_ns is not None, f"incident {incident.number} is open"
    return {
        "incident": incident.number,
        "kind": incident.kind,
        "root": incident.root,
        "reason": incident.reason,
        "worlds": list(incident.worlds),
        "restarted": [str(replica) for replica in incident.restarted if replica not in incident.stayed],
        "stayed_in_place": [str(replica) for replica in incident.stayed],
        "charged_to": incident.charged_to,
        "result": incident.result,
        "t_s": incident.opened_ns / 1e9,
        "duration_s": (closed_ns - incident.opened_ns) / 1e9,
    }
