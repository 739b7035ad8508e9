"""The first SIGTERM or Ctrl-C ends a run, whatever its processes do; a second one hastens the end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.runtime.harness import Deaths, Job
from tests.runtime.test_loud import BREAKING

pytestmark = pytest.mark.real

# Says whether it was asked to end, or killed at once.
PATIENT = """
import signal, sys

def end(number, frame):
    print("asked to end", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
print("at work", flush=True)
while True:
    signal.pause()
"""
STUBBORN = PATIENT.replace("sys.exit(0)", "pass")
TOPOLOGY = """
from flowdist import Topology
t = Topology("small", nodes=1)
t.role("trainer", ["python", "work.py"], grace="{grace}", warm=False)
"""
CONTROLLER = "flowdist.runtime.controller.controller_main"


def job_of(folder: Path, work: str, grace: str = "5s", env: dict[str, str] | None = None) -> Job:
    (folder / "work.py").write_text(work)
    (folder / "topology.py").write_text(TOPOLOGY.format(grace=grace))
    return Job(folder, env=env)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_as_the_run_starts_cancels_it(tmp_path: Path, number: signal.Signals) -> None:
    with job_of(tmp_path, PATIENT) as job:
        job.until("run ")
        job.process.send_signal(number)
        assert job.finish() == 130 and job.alive() == []


@pytest.mark.slow
def test_an_interrupt_while_the_controller_stands_still_ends_the_workers_in_order(tmp_path: Path) -> None:
    with job_of(tmp_path, PATIENT) as job:
        job.until("at work")
        os.kill(job.named(CONTROLLER)[0], signal.SIGSTOP)
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 130 and job.alive() == []
        assert "the controller does not answer: the workers are stopped without a controller" in job.text
        assert "asked to end" in job.text and "interrupted before it could end in order; resume it: " in job.text


@pytest.mark.slow
def test_a_second_interrupt_while_the_controller_stands_still_ends_stubborn_workers_at_once(tmp_path: Path) -> None:
    with job_of(tmp_path, STUBBORN, grace="10m") as job:
        job.until("at work")
        os.kill(job.named(CONTROLLER)[0], signal.SIGSTOP)
        job.process.send_signal(signal.SIGTERM)
        job.until("asked to end")
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 130 and job.alive() == []


@pytest.mark.slow
def test_an_interrupt_while_controllers_die_again_and_again_ends_the_workers_in_order(tmp_path: Path) -> None:
    place = f"controller_main flowdist.control.connection.sessions:Sessions.take_over 1 99 {tmp_path}"
    env = {"FLOWDIST_TEST_BREAK": place, "PYTHONPATH": f"{BREAKING}:{Path.cwd()}"}
    with job_of(tmp_path, PATIENT, env=env) as job:
        job.until("at work")
        os.kill(job.named(CONTROLLER)[0], signal.SIGKILL)
        job.until("the controller died of RuntimeError: injected: another takes over from the journal")
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 130 and job.alive() == []
        assert "the workers are stopped without a controller" in job.text and "asked to end" in job.text
        assert len(list(tmp_path.glob("broken-*"))) <= 5


def test_workers_that_ignore_sigterm_are_killed_after_their_grace(tmp_path: Path) -> None:
    with job_of(tmp_path, STUBBORN, grace="1s") as job:
        job.until("at work")
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 130 and job.alive() == []
        assert "asked to end" in job.text and "cancelled" in job.text


def test_a_second_interrupt_kills_workers_that_ignore_sigterm_at_once(tmp_path: Path) -> None:
    with job_of(tmp_path, STUBBORN, grace="10m") as job:
        job.until("at work")
        job.process.send_signal(signal.SIGTERM)
        job.until("asked to end")
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 130 and job.alive() == []


@pytest.mark.slow
@pytest.mark.parametrize("process", ["agent", "spawner", "guardian"])
def test_an_interrupt_ends_a_run_in_which_a_process_of_a_node_stands_still(tmp_path: Path, process: str) -> None:
    with job_of(tmp_path, PATIENT, grace="1s") as job:
        job.until("at work")
        guardian, *children = job.named("flowdist.runtime.agent.guardian")  # its spawner is forked first
        pid = {"guardian": guardian, "spawner": children[0], "agent": children[1]}[process]
        os.kill(pid, signal.SIGSTOP)
        with Deaths([job.process.pid]) as deaths:
            job.process.send_signal(signal.SIGTERM)
            assert job.finish() == 130 and job.alive() == []
            assert deaths.survivors() == []
