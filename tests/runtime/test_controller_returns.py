"""A controller that hosts reach over TCP dies: its standby takes over, and connections wait at the open port (R21)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.harness import Job
from tests.runtime.hosts import Hosts

pytestmark = [pytest.mark.real, pytest.mark.slow]

CONTROLLER = "flowdist.runtime.controller.controller_main"
WAITER = """
import os, time
from pathlib import Path

print(f"worker {os.environ['RANK']} of generation {os.environ['FLOWDIST_GENERATION']}", flush=True)
while not Path("../end").exists():
    time.sleep(0.05)
"""
TOPOLOGY = """
from flowdist import Topology

t = Topology("hosts", nodes="1:2", lease="1m")  # a busy machine may be late
t.role("trainer", ["python", "wait.py"], replicas=2, apart=True, join_window="60s")
"""


def controllers(job: Job, count: int) -> list[int]:
    """Wait until so many controller processes run, and return them: the one that serves, then its standbys."""
    while len(found := job.named(CONTROLLER)) != count:
        assert job.process.poll() is None, job.text
        time.sleep(0.05)
    return found


def test_the_standby_takes_over_and_one_that_has_died_is_replaced(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        for number in (1, 2):
            (tmp_path / f"host{number}").mkdir()
            (tmp_path / f"host{number}/wait.py").write_text(WAITER)
        (tmp_path / "host1/topology.py").write_text(TOPOLOGY)
        first = hosts.start(1, "run", "topology.py", "--listen", hosts.endpoint)
        first.until("joined")
        second = hosts.start(2, "join", hosts.endpoint, "--workdir", str(tmp_path / "host2"))
        second.until("worker 1 of generation 1")

        serving, standby, other = controllers(first, 3)
        os.kill(serving, signal.SIGKILL)
        first.until("the controller is back, as epoch 2")
        assert controllers(first, 3)[:2] == [standby, other]

        for pid in reversed(controllers(first, 3)):
            os.kill(pid, signal.SIGKILL)
        first.until("the controller is back, as epoch 3")

        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0] and "generation 2" not in hosts.text, hosts.text


def test_no_other_program_gets_the_port_between_two_controllers_and_hosts_that_connect_wait(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        (tmp_path / "host1").mkdir()
        (tmp_path / "host1/wait.py").write_text(WAITER)
        (tmp_path / "host1/topology.py").write_text(TOPOLOGY.replace("replicas=2", "replicas=1").replace('"1:2"', "1"))
        first = hosts.start(1, "run", "topology.py", "--listen", hosts.endpoint)
        first.until("worker 0 of generation 1")
        processes = controllers(first, 3)
        host, _, port = hosts.endpoint.rpartition(":")
        first.process.send_signal(signal.SIGSTOP)  # it starts no other
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(OSError, match="in use"), socket.create_server((host, int(port))):
            pass
        with socket.create_connection((host, int(port)), 10):
            pass
        first.process.send_signal(signal.SIGCONT)
        first.until("the controller is back, as epoch 2")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0], hosts.text


def test_no_worker_is_restarted_when_the_controller_is_killed_again_and_again() -> None:
    """Beside few busy processes, as other tests run meanwhile; docs/hosts_failures.md has numbers beside 8 of them."""
    program = Path(__file__).parents[2] / "benchmarks/controller_returns.py"
    command = [sys.executable, str(program), "--times", "3", "--load", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "controllers killed: 3; workers restarted: 0" in done.stdout
