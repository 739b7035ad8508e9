"""An unexpected exception in a process of flowdist ends that process: its supervisor acts, and names the exception.

`breaking/sitecustomize.py` raises the exception, in real processes of a real job.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.choosing import few
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

BREAKING = Path(__file__).parent / "breaking"
WORK = """
from flowdist import worker
print("at work", flush=True)
path = worker.checkpoint_dir() / "one"
path.touch()
for step in range(3):
    worker.progress(step)
assert worker.commit(path, step=2)
print("done", flush=True)
"""
TOPOLOGY = """
from flowdist import On, Restart, Topology
t = Topology("small", nodes=1)
t.role("trainer", ["python", "work.py"], {more}warm={warm}, restart=Restart(max_restarts=3, backoff="0s"))
"""
AGENT, CONTROLLER, SUPERVISOR = "agent.guardian", "controller_main", "flowdist_run"


def broken_job(
    folder: Path, process: str, where: str, call: int = 1, times: int = 1, *, warm: bool = False, ready: str = ""
) -> Job:
    """A small job in which that call of the function raises, in so many processes."""
    (folder / "work.py").write_text(WORK if process != SUPERVISOR else "import signal\nsignal.pause()\n")
    more = (f'ready_when="{ready}", ' if ready else "") + ('preload=["json"], ' if warm else "")
    (folder / "topology.py").write_text(TOPOLOGY.format(warm=warm, more=more))
    place = f"{process} {where} {call} {times} {folder}"
    return Job(folder, env={"FLOWDIST_TEST_BREAK": place, "PYTHONPATH": f"{BREAKING}:{Path.cwd()}"})


def assert_ends(job: Job, code: int, *says: str) -> None:
    assert job.finish() == code, job.text
    assert (job.folder / "broken-0").exists(), "nothing was raised"
    for text in says:
        assert text in job.text, job.text
    assert job.alive() == []


AGENTS = [
    ("flowdist.runtime.agent.agent_main:_AgentProcess._carry_out", 4),  # in the middle of the outputs of an input
    ("flowdist.control.agent.agent:Agent.handle", 3),
    ("flowdist.runtime.agent.agent_main:_AgentProcess._read_answers", 1),  # a reader of the loop
    ("flowdist.runtime.agent.agent_main:_AgentProcess._keep_connected", 1),  # a background task
    ("flowdist.runtime.agent.agent_main:_AgentProcess._set_timer", 2),
    ("flowdist.runtime.agent.worker_socket:WorkerSocket._handle_line", 1),  # a task that serves a connection
    ("flowdist.runtime.agent.readiness:LogSearch.look", 1),  # a background task
    ("flowdist.runtime.agent.workers:WorkerExits.describe", 1),
    ("flowdist.runtime.agent.workers:Workers.answer_commit", 1),
    ("flowdist.runtime.agent.worker_socket:WorkerSocket.serve", 1),
]


@pytest.mark.parametrize(("where", "call"), few(AGENTS, 3))
def test_an_agent_that_raises_dies_of_it_and_its_node_comes_back(tmp_path: Path, where: str, call: int) -> None:
    with broken_job(tmp_path, AGENT, where, call, ready="log:at work") as job:
        assert_ends(job, 0, "node0: agent started again")
        assert "flowdist: unexpected exception: RuntimeError: injected" in (job.run_dir / "node0.log").read_text()
        if "node0 lost" in job.text:  # else it had not joined
            assert "node0 lost (its agent died of RuntimeError: injected)" in job.text


@pytest.mark.slow
def test_an_agent_that_always_raises_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    with broken_job(tmp_path, AGENT, "flowdist.control.agent.agent:Agent.handle", 2, times=99) as job:
        job.until("its agent died 6 times, last of RuntimeError: injected, and is not started again")
        assert_ends(job, 70, "no node of this run is left; everything was stopped")


SPAWNERS = [
    (AGENT, "flowdist.runtime.processes.spawner:Spawner._start", False),
    (AGENT, "flowdist.runtime.processes.spawner:Children.end", False),
    (AGENT, "flowdist.runtime.processes.prefixes:Prefixes.spawn", True),
]


@pytest.mark.parametrize(("process", "where", "warm"), few(SPAWNERS, 1))
def test_a_spawner_a_fork_server_or_a_guardian_that_raises_is_replaced(
    tmp_path: Path, process: str, where: str, warm: bool
) -> None:
    with broken_job(tmp_path, process, where, warm=warm) as job:
        assert_ends(job, 0)
        assert "RuntimeError: injected" in (job.run_dir / "node0.log").read_text()


CONTROLLERS = [
    ("flowdist.control.connection.sessions:Sessions.hear", 3),  # a task that serves a connection
    ("flowdist.record.replay:Replay.decide", 3),
    ("flowdist.control.connection.sessions:Sessions.order", 1),  # the record is written
    ("flowdist.record.journal:encode_line", 2),
    ("flowdist.runtime.controller.host_registry:HostRegistry.__init__", 1),  # before there is an event loop
]


@pytest.mark.parametrize(("where", "call"), few(CONTROLLERS, 2))
def test_a_controller_that_raises_dies_of_it_and_the_next_one_takes_over(tmp_path: Path, where: str, call: int) -> None:
    with broken_job(tmp_path, CONTROLLER, where, call) as job:
        assert_ends(job, 0, "the controller died of RuntimeError: injected: another takes over from the journal")


@pytest.mark.parametrize(
    "where", ["flowdist.runtime.controller.host_registry:HostRegistry.__init__", "flowdist.record.replay:Replay.decide"]
)
@pytest.mark.slow
def test_controllers_that_always_raise_fail_the_run_with_their_last_words(tmp_path: Path, where: str) -> None:
    with broken_job(tmp_path, CONTROLLER, where, times=99) as job:
        assert_ends(job, 70, "the controller died again and again; the last died of RuntimeError: injected",
                    "everything was stopped", "help: resume it: flowdist run --resume small-")  # fmt: skip
        assert 8 <= len(list(tmp_path.glob("broken-*"))) <= 10


SUPERVISORS = [
    ("flowdist.runtime.supervisor.supervisor:Supervisor._handle_line", 3),  # a background task
    ("flowdist.runtime.supervisor.supervisor:Supervisor.guardian_ended", 1),
    ("flowdist.runtime.supervisor.local_node:LocalNode._watch", 1),
    ("flowdist.runtime.injection.injector:Injector.fire", 3),  # the main loop
    ("flowdist.runtime.run_folder.logs:Follower.read", 2),
]


@pytest.mark.parametrize(("where", "call"), few(SUPERVISORS, 1))
def test_a_supervisor_that_raises_ends_its_run_and_says_how_to_resume_it(tmp_path: Path, where: str, call: int) -> None:
    with broken_job(tmp_path, SUPERVISOR, where, call) as job:
        if "guardian" in where:
            job.until("trainer/0: starts")
            os.kill(job.named("agent.guardian")[0], signal.SIGKILL)
        assert_ends(job, 70, "flowdist itself has failed: RuntimeError: injected; everything was stopped",
                    "help: resume it: flowdist run --resume small-")  # fmt: skip
        assert 'raise RuntimeError("injected")' in (job.run_dir / "supervisor.log").read_text()
