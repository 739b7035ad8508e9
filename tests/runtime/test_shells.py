"""Runs as shells start and leave them: without stdout, under nohup, in a terminal that closes, in a removed folder."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist.control.protocol.events import CancelRequested
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

WAIT = """
import os, signal, sys, time
def end(*_):
    time.sleep(0.5)  # a checkpoint, for which a second interrupt leaves no time
    open("saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("started", flush=True)
while not os.path.exists("end"):
    time.sleep(0.02)
print("finished", flush=True)
"""
TOPOLOGY = """
from flowdist import Topology
t = Topology("shells", nodes=1)
t.role("trainer", ["python", "worker.py"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "job"
    path.mkdir()
    (path / "worker.py").write_text(WAIT)
    (path / "topology.py").write_text(TOPOLOGY)
    return path


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_run_without_some_standard_streams_succeeds_and_prints_on_the_others(folder: Path, closed: str) -> None:
    (folder / "end").touch()
    with Job(folder, before=("sh", "-c", f'exec "$@" {closed}', "sh")) as job:
        assert job.finish() == 0, job.text
        assert ("[trainer/0] started" in job.text) == (">&-" not in closed.split())
        assert ("SUCCEEDED" in job.text) == ("2>&-" not in closed)
        assert "Traceback" not in job.text and job.alive() == []


def test_a_hang_up_ends_the_run_in_order_and_a_further_one_is_no_second_interrupt(folder: Path) -> None:
    with Job(folder) as job:
        job.until("started")
        job.process.send_signal(signal.SIGHUP)
        job.until("stopping the job")
        job.process.send_signal(signal.SIGHUP)
        assert job.finish() == 130
        assert (folder / "saved").exists(), "the worker had the time of its grace"
        _, lines = job.journal()
        events = [line.event for line in lines if hasattr(line, "event")]
        assert [event.now for event in events if isinstance(event, CancelRequested)] == [False]


def test_a_run_under_nohup_outlives_its_terminal(folder: Path) -> None:
    with Job(folder, before=("nohup",)) as job:
        job.until("started")
        job.process.send_signal(signal.SIGHUP)
        (folder / "end").touch()
        assert job.finish() == 0, job.text
        assert "[trainer/0] finished" in job.text


def test_a_run_whose_folder_is_removed_goes_on_and_is_cancelled_as_ever(folder: Path) -> None:
    with Job(folder) as job:
        job.until("started")
        shutil.rmtree(folder)
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130, job.text
        assert "the summary cannot be written into" in job.text and "Traceback" not in job.text
        assert "CANCELLED" in job.text and job.alive() == []


def test_stdout_that_cannot_be_written_is_said_on_stderr(folder: Path) -> None:
    (folder / "end").touch()
    command = [sys.executable, "-m", "flowdist", "run", "--json", "--quiet"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0 and "stdout could not be written" in done.stderr and "No space left" in done.stderr
    summary = json.loads((folder / "runs/latest/summary.json").read_text())
    assert summary["outcome"] == "succeeded", "the summary is in the folder of the run all the same"


def test_a_run_in_which_every_warning_is_an_error_prints_none(folder: Path) -> None:
    (folder / "end").touch()
    with Job(folder, env={"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"}) as job:
        assert job.finish() == 0, job.text
        assert "Warning" not in job.text and "Traceback" not in job.text
