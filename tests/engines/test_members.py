"""`flowdist run --on` with real members on this machine: processes of the engine `local`, jobs of a fake Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist.control.protocol.events import NodeJoined, ScaleRequested
from flowdist.graph import NODE_MEMBER, NODE_POOL
from flowdist.record.journal import Record
from tests.engines.fakes import slurm as fake_slurm
from tests.runtime.harness import Job

pytestmark = [pytest.mark.real, pytest.mark.slow]

TOPOLOGY = """
from flowdist import Topology
t = Topology("work", nodes="1:2", controller_outage="20s")
ps = t.role("ps", "python ps.py", kind="service", ready_when="call")
t.role("counter", "python count.py", replicas="1:2", apart=True, cooldown="0s", depends_on=[ps.ready()])
"""
PS = """
import time
import flowdist.worker as worker
worker.ready()
time.sleep(3600)
"""
COUNT = """
import itertools, os, time
import flowdist.worker as worker
for step in itertools.count():
    worker.progress(step)
    if worker.should_stop(step) or os.path.exists("end"):
        break
    time.sleep(0.02)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    (tmp_path / "count.py").write_text(COUNT)
    (tmp_path / "ps.py").write_text(PS)
    return tmp_path


def labels(job: Job) -> dict[str, str]:
    """Return the pool of each member that has joined, by its name."""
    _, lines = job.journal()
    specs = [line.event.spec for line in lines if isinstance(line, Record) and isinstance(line.event, NodeJoined)]
    return {dict(spec.labels)[NODE_MEMBER]: dict(spec.labels).get(NODE_POOL, "") for spec in specs}


def test_members_that_are_processes_of_this_machine_come_and_end_with_the_job(folder: Path) -> None:
    with Job(folder, "--on", "local", env={"FLOWDIST_TOKEN": "secret"}) as job:
        job.until("counter/1: starts on")
        (folder / "end").touch()
        assert job.finish() == 0
        assert job.alive() == []
        assert labels(job) == {"m1": "", "m2": ""}
        assert (job.run_dir / "token").stat().st_mode & 0o777 == 0o600


def test_roles_with_options_of_their_own_get_members_of_their_own_and_a_killed_member_is_replaced(
    folder: Path,
) -> None:
    fake_slurm.install(folder / "fake", nodes=5)
    path = f"{folder / 'fake'}:{os.environ['PATH']}"
    with Job(folder, "--on", "slurm", "-o", "ps.partition=cpu", env={"PATH": path}) as job:
        job.until("counter/1: starts on")
        assert labels(job) == {"m1": "*", "m2": "*", "m3": "ps"}

        # A member is killed: its job is over for Slurm, and another one is submitted.
        pids = {name: int((folder / f"fake/jobs/{name[1:]}.pid").read_text()) for name in ("m1", "m2")}
        os.kill(pids["m1"], signal.SIGKILL)
        job.until("m1 on h1 is over: FAILED")
        job.until("m4 is submitted")
        job.until("room for counter/")

        # SIGUSR1 drains a member: its work stops at one step, and the member ends when its node is empty.
        job.until("recovered", times=1)
        os.kill(pids["m2"], signal.SIGUSR1)
        job.until("is taken away in 1m")
        job.until("m5 is submitted")
        job.until_each("m2 is cancelled", "room for counter/")  # m5 may join before the agent of m2 has left

        # The operator scales: members without work are cancelled, and missing ones are submitted.
        job.operate(ScaleRequested("counter", 1))
        job.until("is cancelled: the job needs fewer members")
        job.operate(ScaleRequested("counter", 2))
        job.until("m6 is submitted")
        (folder / "end").touch()
        assert job.finish() == 0
        assert job.alive() == []


def flowdist(folder: Path, *words: str) -> str:
    """Return the output of another command in the folder of a run."""
    command = [sys.executable, "-m", "flowdist", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_member_that_waits_is_shown_with_slurms_reason_and_a_cancelled_one_comes_back_when_scaled(
    folder: Path,
) -> None:
    fake_slurm.install(folder / "fake", nodes=1)
    path = f"{folder / 'fake'}:{os.environ['PATH']}"
    with Job(folder, "--on", "slurm", env={"PATH": path}) as job:
        job.until("m2 waits for a machine: PENDING (Resources)")
        job.until("counter/0: starts on")
        assert "members  1 joined, 1 waiting\n  waiting m2 (2): PENDING (Resources)\n" in flowdist(folder, "status")
        (shown,) = json.loads(flowdist(folder, "status", "--json"))["members"][1:]
        assert (shown["name"], shown["phase"], shown["because"]) == ("m2", "waiting", "PENDING (Resources)")

        # Somebody cancels the member that waits. The operator wants it after all, in the size that the job has already.
        subprocess.run([folder / "fake/scancel", "2"], check=True)
        job.until("m2 was cancelled outside flowdist, and is not replaced")
        assert "scaled to 2 replicas" in flowdist(folder, "scale", "counter=2")
        job.until("m3 is submitted")
        (folder / "fake/nodes").write_text("h1 idle\nh2 idle\n")
        job.until("counter/1: starts on")
        (folder / "end").touch()
        assert job.finish() == 0
        assert job.alive() == []


def test_the_job_ends_with_the_words_of_sbatch_if_it_refuses_the_first_member(folder: Path) -> None:
    fake_slurm.install(folder / "fake")
    path = f"{folder / 'fake'}:{os.environ['PATH']}"
    with Job(folder, "--on", "slurm", "-o", "partition=closed", env={"PATH": path}) as job:
        assert job.finish() == 1  # nobody has cancelled it
        assert "invalid partition specified: closed" in job.text and "FAILED" in job.text
        assert json.loads((job.run_dir / "fleet.json").read_text())["is_given_up"]


@pytest.mark.parametrize("mode", ["644", "600"])
def test_join_reads_the_token_from_a_file_that_only_its_user_can_read(tmp_path: Path, mode: str) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n" if mode == "644" else "")
    token.chmod(int(mode, 8))
    with Job(tmp_path, "127.0.0.1:1", "--token-file", "token", verb="join") as job:
        assert job.finish() == 2
        assert ("chmod 600" if mode == "644" else "has no token") in job.text
