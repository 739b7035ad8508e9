"""The user's hook: told of each incident when it closes, and of the end of the job.

The supervisor's mirror of the controller says what happened; `hook_runner.py` runs the command in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import msgspec

from flowdist.control.job.state import Incident, JobState
from flowdist.control.protocol.effects import FinishJob
from flowdist.graph import RoleGraph
from flowdist.runtime.hooks.hook_runner import PATIENCE_S, HookConfig
from flowdist.runtime.worker_env.environment import argv_of

LOG = "hooks.log"
MARGIN_S = 2.0  # for the runner to kill what it has to kill


class Hooks:
    """Nothing here waits, but `finish`. Without a command it does nothing at all."""

    def __init__(self, graph: RoleGraph, run_dir: Path) -> None:
        self._graph, self._run_dir = graph, run_dir
        self._process: Process | None = None
        self._open: dict[int, None] = {}
        self._seen = 0  # incidents

    async def start(self) -> None:
        """The runner, if there is a command to run."""
        if not self._graph.on_incident:
            return
        checkpoints = self._graph.checkpoint_dir or str(self._run_dir / "checkpoints")
        values = {"run_id": self._run_dir.name, "checkpoint_dir": checkpoints}
        folder = str(Path(self._graph.source).resolve().parent)
        config = HookConfig(argv_of(self._graph.on_incident, values, os.environ), folder)
        with (self._run_dir / LOG).open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "flowdist.runtime.hooks.hook_runner",
                msgspec.json.encode(config).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Of the runner, while it runs."""
        return [self._process.pid] if self._process is not None and self._process.returncode is None else []

    def hear(self, job: JobState) -> None:
        """An event was handled: tell of each incident that it has closed."""
        for incident in job.incidents[self._seen :]:
            self._open[incident.number] = None
        self._seen = len(job.incidents)
        for number in list(self._open):
            if not job.incident(number).is_open:
                del self._open[number]
                self._tell({"event": "incident_closed", **_incident(job.incident(number))})

    def skip(self, job: JobState) -> None:
        """A run is resumed: what has closed before was told then."""
        self._open = {incident.number: None for incident in job.incidents if incident.is_open}
        self._seen = len(job.incidents)

    async def finish(self, job: JobState, finished: FinishJob | None) -> None:
        """Tell of the end, and wait for the runner as long as hooks may take then. None: nobody decided the end."""
        if not self.pids():
            return
        assert self._process is not None
        outcome, reason = ("failed", "the controller died") if finished is None else (finished.outcome, finished.reason)
        end = {"outcome": outcome, "reason": reason, "incidents": len(job.incidents), "duration_s": job.now / 1e9}
        self._tell({"event": "job_ended", **end})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), PATIENCE_S + MARGIN_S)
        self.stop()

    def stop(self) -> None:
        """Whatever hook runs is killed, and no other starts."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _tell(self, what: dict[str, Any]) -> None:
        if self.pids() and self._process is not None and self._process.stdin is not None:
            job = {"format": 1, "job": self._graph.name, "run_dir": str(self._run_dir)}
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(msgspec.json.encode(job | what) + b"\n")


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
