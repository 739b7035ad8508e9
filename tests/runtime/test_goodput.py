"""Goodput of real jobs: what a kill has cost is in the report, and it adds up to the nanosecond."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.record.journal import Record
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

# Rank 0 saves at step 5; rank 1 works on from there, and is killed. What comes next has only to finish.
WORKER = """
import os, signal, time
from flowdist import worker

rank, again = int(os.environ["RANK"]), os.environ["FLOWDIST_GENERATION"] != "1"
for step in range(6, 8) if again else range(1, 6):
    time.sleep(0.05)
    worker.progress(step)
if not again and rank == 0:
    with open("saved", "w") as file:
        file.write("5")
    assert worker.commit("saved", step=5)
    signal.pause()
if not again:
    while worker.latest() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_after_a_checkpoint_costs_the_work_since_and_the_re_formation(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKER)
    with Job(tmp_path, "train.py", "--replicas", "2x1", "--max-restarts", "1") as job:
        assert job.finish() == 0, job.text
        assert job.alive() == []
        line = next(line for line in job.output if line.startswith("goodput "))
        report = json.loads(_report(tmp_path, "--json"))
        told = _report(tmp_path)
        lines = [line for line in job.journal()[1] if isinstance(line, Record)]
    (spent,) = report["time_ns"].values()
    assert sum(spent.values()) == 2 * lines[-1].t_ns == 2 * round(report["lasted_s"] * 1e9)
    assert min(spent.values()) > 0 and set(spent) >= {"productive", "start-up", "lost work", "re-formation"}
    (saved,) = [line.t_ns for line in lines if isinstance(line.event, ev.CheckpointOffered)]
    (killed,) = [line.t_ns for line in lines if isinstance(line.event, ev.ReplicaExited) and line.event.kind]
    (started,) = [line.t_ns for line in lines if _starts(line, 2)]
    assert spent["lost work"] == 2 * (killed - saved) >= 2 * 250_000_000
    assert spent["re-formation"] == 2 * (started - killed)
    assert f"{line}\n\nWhere the time went\n" in told and "lost work" in line and report["not_reported"] == {}


def _report(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "flowdist", "report", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def _starts(line: Record, attempt: int) -> bool:
    return any(isinstance(effect, StartReplica) and effect.attempt == attempt for effect in line.effects)
