"""The report of a real run that is predicted with times that an earlier run has shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.harness import Job

pytestmark = [pytest.mark.real, pytest.mark.slow]

TOPOLOGY = """
from flowdist import Node, Restart, Topology
t = Topology("predicted", nodes=2 * [Node(cpu=1)])
t.role("trainer", script="train.py", replicas=2, cpu=1, restart=Restart("role", max_restarts=3, backoff="0s"))
"""
TRAIN = """
import time
from flowdist import worker

me, latest = worker.info(), worker.latest()
for step in range(int(latest.name) + 1 if latest is not None else 1, 61):
    time.sleep(0.05)
    worker.progress(step)
    if step % 10 == 0 and me.rank == 0:
        path = worker.checkpoint_dir() / str(step)
        path.touch()
        worker.commit(path, step=step)
"""
KILL = "trainer/1@checkpoint=trainer,2+200ms"
LOSS = "node1@checkpoint=trainer,1+200ms/1s"


def flowdist(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "flowdist", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_report_of_a_run_shows_what_was_to_be_expected_with_times_of_another_run(tmp_path: Path) -> None:
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    (tmp_path / "train.py").write_text(TRAIN)
    with Job(tmp_path, "--quiet", "--fail", KILL) as job:
        assert job.finish() == 0, job.text
        name = job.run_dir.name
    flowdist(tmp_path, "calibrate", f"runs/{name}", "-o", "workload.toml")
    with Job(tmp_path, "--quiet", "--fail", LOSS, "--fail", "trainer/0@step=trainer,44") as job:
        assert job.finish() == 0, job.text
        assert job.alive() == []
    told = flowdist(tmp_path, "report", "--workload", "workload.toml")
    values = json.loads(flowdist(tmp_path, "report", "--workload", "workload.toml", "--json"))["predicted"]
    assert "Predicted beside actual (with all faults known; times: workload.toml)" in told
    assert "1. node_lost of node1: re-formed" in told and "lost work of trainer" in told and "decisions" in told
    assert len(values["incidents"]) >= 2
    for one in values["incidents"]:
        assert one["why"] == "", told
        assert one["re_formed_ns"]["predicted"] > 0 and one["re_formed_ns"]["actual"] > 0
        assert one["next_step_ns"]["error"] is not None and one["decisions"] == [], told
    assert values["job"]["lasted_ns"]["error"] is not None and values["job"]["goodput"]["predicted"] is not None
