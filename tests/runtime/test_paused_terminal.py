"""A run whose output nobody reads, as on a terminal after Ctrl-S or in `| less`: it hears its user all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.runtime.harness import Deaths, Job

pytestmark = pytest.mark.real

LINES = 20_000
LOUD = f"""
import os, signal
for number in range({LINES}):
    print(number, 100 * "x")
with open("said", "w") as said:
    said.write(str(os.getpid()))
signal.pause()
"""
TOPOLOGY = """
from flowdist import Topology
t = Topology("loud", nodes=1)
t.role("trainer", ["python", "-u", "loud.py"])
"""


@contextmanager
def loud(folder: Path) -> Iterator[tuple[Job, Deaths]]:
    """Yield a run whose worker has printed more than a pipe takes, and the watched worker, after one Ctrl-C."""
    (folder / "loud.py").write_text(LOUD)
    (folder / "topology.py").write_text(TOPOLOGY)
    os.mkfifo(folder / "said")
    with Job(folder) as job, Deaths([int((folder / "said").read_text())]) as worker:
        job.process.send_signal(signal.SIGINT)
        yield job, worker


def test_an_interrupt_ends_the_job_and_a_late_reader_gets_all_lines(tmp_path: Path) -> None:
    with loud(tmp_path) as (job, worker):
        assert worker.survivors() == [], "the job has ended, although nobody has read its output"
        assert job.finish() == 130 and job.alive() == []
        numbers = [int(line.split()[1]) for line in job.output if line.startswith("[trainer/0] ")]
        assert numbers == list(range(LINES))
        assert "cancelled" in job.text


def test_further_interrupts_end_the_wait_for_a_reader(tmp_path: Path) -> None:
    with loud(tmp_path) as (job, worker), Deaths([job.process.pid]) as run:
        assert worker.survivors() == []
        for _ in range(300):
            if run.survivors(0.2) == []:
                break
            job.process.send_signal(signal.SIGINT)
        assert job.process.wait() == 130 and job.alive() == []
