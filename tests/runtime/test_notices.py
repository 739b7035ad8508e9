"""Signals of a batch system, which every process of a job gets: SIGUSR1 is a notice, SIGTERM a cancellation."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from flowdist.control.protocol.events import NodePreempted, ReplicaExited, ReplicaProgressed
from flowdist.record.journal import Record
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

TOPOLOGY = """
from flowdist import Topology
t = Topology("work")
t.role("counter", "python count.py", replicas=2)
"""
COUNT = """
import itertools, time
import flowdist.worker as worker
for step in itertools.count():
    worker.progress(step)
    if worker.should_stop(step):
        print("saved", flush=True)
        break
    time.sleep(0.02)
"""
SLURM = {"SLURM_JOB_ID": "7"}


def start(folder: Path, script: str = COUNT) -> Job:
    (folder / "topology.py").write_text(TOPOLOGY)
    (folder / "count.py").write_text(script)
    return Job(folder, env=SLURM)


def send(job: Job, number: signal.Signals) -> None:
    """Send a signal to every process of the job, as Slurm does, the command itself last."""
    for pid in reversed(job.alive()):
        with contextlib.suppress(ProcessLookupError):  # it has ended because of one before it
            os.kill(pid, number)


def test_a_notice_to_every_process_drains_the_node_and_ends_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as job:
        job.until("counter/1: starts on")
        job.recorded(ReplicaProgressed, 2)
        send(job, signal.SIGUSR1)
        job.until("saved", times=2)
        _, lines = job.journal()
        events = [line.event for line in lines if isinstance(line, Record)]
        assert any(isinstance(event, NodePreempted) for event in events)
        assert not any(isinstance(event, ReplicaExited) and event.kind for event in events)
        assert job.process.poll() is None


def test_a_cancellation_of_every_process_is_no_failure_of_a_worker(tmp_path: Path) -> None:
    with start(tmp_path) as job:
        job.until("counter/1: starts on")
        job.recorded(ReplicaProgressed, 2)
        send(job, signal.SIGTERM)
        assert job.finish() == 130
        assert "failed on" not in job.text
        assert job.alive() == []


SAVING = """
import signal, time
import flowdist.worker as worker
def save(number, frame):
    time.sleep(0.3)
    print("saved", flush=True)
    raise SystemExit
worker.progress(1)
signal.signal(signal.SIGTERM, save)
worker.progress(2)
while True:
    time.sleep(0.02)
"""


def test_workers_that_handle_a_cancellation_have_their_time_for_it(tmp_path: Path) -> None:
    with start(tmp_path, SAVING) as job:
        job.until("counter/1: starts on")
        job.recorded(ReplicaProgressed, 4)
        send(job, signal.SIGTERM)
        assert job.finish() == 130
        assert job.text.count("saved") == 2 and "failed on" not in job.text
        assert "the controller died" not in job.text
