"""SIGSTOP of processes of flowdist: it is seen, and a node that cannot kill its workers does not outlive its lease."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from flowdist.errors import FlowdistError
from flowdist.runtime.run_folder.runs import describe
from tests.runtime.harness import Deaths, Job, children

pytestmark = pytest.mark.real
GUARDIAN, CONTROLLER = "flowdist.runtime.agent.guardian", "flowdist.runtime.controller.controller_main"
TOPOLOGY = """
from flowdist import Restart, Topology

t = Topology("still", nodes=1)
t.role("trainer", "sh -c 'echo pid $$ works; sleep 600'", restart=Restart(max_restarts=9))
"""


def still_job(folder: Path) -> Job:
    (folder / "topology.py").write_text(TOPOLOGY)
    return Job(folder)


def spawner_of(job: Job) -> int:
    """The guardian forks the spawner first, then the agent."""
    return children(job.named(GUARDIAN)[0])[0]


def test_a_spawner_and_a_guardian_that_are_stopped_are_named_until_they_go_on(tmp_path: Path) -> None:
    with still_job(tmp_path) as job:
        job.until("works")
        for pid, name in ((spawner_of(job), "spawner"), (job.named(GUARDIAN)[0], "guardian")):
            os.kill(pid, signal.SIGSTOP)
            job.until(f"its {name} (pid {pid}) is stopped, by SIGSTOP or a debugger; nothing new is placed there")
            os.kill(pid, signal.SIGCONT)
            job.until("node0: no process of flowdist is stopped any more")
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130, job.text


def test_a_worker_that_is_stopped_is_named_until_it_goes_on(tmp_path: Path) -> None:
    """Its role has no hang_after: nothing restarts, but the status said that all is well."""
    with still_job(tmp_path) as job:
        worker = int(job.until("works").split(" works")[0].rpartition(" ")[2])
        os.kill(worker, signal.SIGSTOP)
        job.until("node0: a worker of trainer/0 is stopped, by SIGSTOP or a debugger")
        os.kill(worker, signal.SIGCONT)
        job.until("node0: no worker is stopped any more")
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130, job.text


def test_who_asks_a_controller_that_is_stopped_is_told_so(tmp_path: Path) -> None:
    """The answer once was, after half a minute, that it does not answer."""
    with still_job(tmp_path) as job:
        job.until("works")
        [controller] = job.named(CONTROLLER)
        os.kill(controller, signal.SIGSTOP)
        with pytest.raises(FlowdistError, match=rf"\(pid {controller}\) is stopped, by SIGSTOP") as told:
            describe(job.run_dir)
        assert told.value.help == f"let it go on: kill -CONT {controller}"
        os.kill(controller, signal.SIGCONT)
        assert describe(job.run_dir).state == "running"
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130, job.text


def test_r19_workers_do_not_outlive_the_lease_of_a_node_whose_spawner_is_stopped(tmp_path: Path) -> None:
    with still_job(tmp_path) as job:
        line = job.until("works")
        worker = int(line.split(" works")[0].rpartition(" ")[2])
        controller = job.named(CONTROLLER)[0]
        with Deaths([worker]) as deaths:
            os.kill(spawner_of(job), signal.SIGSTOP)
            os.kill(controller, signal.SIGSTOP)  # the lease is not renewed any more
            assert deaths.survivors(15) == [], "3 s after the last answer, and not when they count as unkillable"
        os.kill(controller, signal.SIGCONT)
        job.until("works")
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130, job.text
        assert "is stopped, and cannot kill workers" in job.text
