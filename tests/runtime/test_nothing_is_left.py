"""No process, socket or temporary folder outlives a run, whichever of its processes is killed."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from flowdist.report.live.status import status_text
from flowdist.runtime.processes.reaper import descendants
from flowdist.runtime.run_folder.runs import describe, state_of
from tests.choosing import slow
from tests.runtime.harness import Deaths, Job, children, is_guardian_of

pytestmark = pytest.mark.real

# A worker with a child in its own group, as DataLoader has them, and a grandchild that has forked twice and made a
# session of its own. All of them ignore SIGTERM.
STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    signal.pause()
is_there, say = os.pipe()
between = os.fork()
if between == 0:
    os.setsid()
    if os.fork() == 0:
        with open(f"{os.environ['FLOWDIST_REPLICA'].replace('/', '-')}.daemon", "w") as file:
            file.write(str(os.getpid()))
        os.write(say, b"x")
        signal.pause()
    os._exit(0)
os.waitpid(between, 0)
os.read(is_there, 1)
print("set free", flush=True)
while True:
    signal.pause()
"""


COLD = ("--cold",)


def stubborn_job(folder: Path, *more: str) -> Job:
    (folder / "stubborn.py").write_text(STUBBORN)
    job = Job(folder, "stubborn.py", "--replicas", "1:2", "--nodes", "2", "--set", "trainer.cpu=8", *more)
    job.until("set free", 2)
    return job


@pytest.mark.parametrize("how", [COLD, ()], ids=["cold", "warm"])
def test_sigkill_of_the_run_itself(tmp_path: Path, how: tuple[str, ...]) -> None:
    with stubborn_job(tmp_path, *how) as job, Deaths(job.alive()) as deaths:
        daemons = [int(file.read_text()) for file in tmp_path.glob("*.daemon")]
        assert len(daemons) == 2 and set(daemons) <= set(job.alive())
        job.process.kill()
        assert deaths.survivors() == []
        assert job.alive() == []


def test_sigkill_of_a_run_whose_sockets_are_in_its_own_folder() -> None:
    """Their paths are short enough for that in a folder of /tmp, and too long in those of pytest."""
    with (
        tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder,
        stubborn_job(Path(folder)) as job,
        Deaths(job.alive()) as deaths,
    ):
        before = {path.name for path in job.run_dir.iterdir() if path.is_socket()}
        assert {"control.sock", "node0.agent.sock", "node1.agent.sock"} <= before
        job.process.kill()
        assert deaths.survivors() == []
        assert [path.name for path in job.run_dir.iterdir() if path.is_socket()] == []


def test_sigkill_of_a_run_whose_sockets_are_in_a_temporary_folder(tmp_path: Path) -> None:
    """The sockets are in a temporary folder, because the path of the run is too long for them."""
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    with stubborn_job(folder) as job, Deaths(job.alive()) as deaths:
        sockets = (job.run_dir / "control.sock").readlink().parent
        assert sockets != job.run_dir and sorted(path.name for path in sockets.iterdir())[0] == "control.sock"
        job.process.kill()
        assert deaths.survivors() == []
        assert not sockets.exists() and not (job.run_dir / "control.sock").is_symlink()


@pytest.mark.parametrize("how", [pytest.param(COLD, id="cold"), pytest.param((), id="warm", marks=pytest.mark.slow)])
@pytest.mark.parametrize("victim", ["guardian", *slow(["agent", "spawner"])])
def test_sigkill_of_a_process_of_a_node(tmp_path: Path, victim: str, how: tuple[str, ...]) -> None:
    """Every process of the node ends; the node joins again and the job continues."""
    with stubborn_job(tmp_path, *how) as job:
        guardian = job.named("flowdist.runtime.agent.guardian")[0]
        spawner, agent = [pid for pid in children(guardian) if pid in job.named("flowdist.runtime.agent.guardian")][:2]
        below = descendants(spawner)
        adopted = [pid for pid in children(guardian) if pid not in (spawner, agent)]
        assert len(below) >= (2 if how else 3) and len(adopted) == 1  # warm: the template, too
        with Deaths([guardian, spawner, agent, *below, *adopted]) as deaths:
            os.kill({"agent": agent, "spawner": spawner, "guardian": guardian}[victim], signal.SIGKILL)
            assert deaths.survivors() == []
        job.until("agent started again")
        job.until("set free", 2)
        job.process.send_signal(signal.SIGINT)
        job.until("a second interrupt stops it at once")
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130
        assert job.alive() == []


@pytest.mark.parametrize("how", [pytest.param(COLD, id="cold"), pytest.param((), id="warm", marks=pytest.mark.slow)])
def test_sigkill_of_everything_that_watches_workers(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Supervisor, guardian and spawner are killed at one moment: the kernel alone is left to end the workers."""
    (tmp_path / "waits.py").write_text("import signal\nprint('up', flush=True)\nwhile True:\n    signal.pause()\n")
    with Job(tmp_path, "waits.py", "--replicas", "2", *how) as job:
        job.until("up", 2)
        guardian = job.named("flowdist.runtime.agent.guardian")[0]
        workers = [int(file.read_text()) for file in job.run_dir.glob("trainer/*/attempt_1/0/pid")]
        assert len(workers) == 2
        parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in workers}
        spawner = next(pid for pid in children(guardian) if {pid, *children(pid)} & parents)
        watchers = [job.process.pid, guardian, spawner]
        with Deaths(job.alive()) as deaths:
            assert {*watchers, *workers} <= set(deaths.pids)
            for number in (signal.SIGSTOP, signal.SIGKILL):  # one that stands still sees no other die
                for pid in watchers:
                    os.kill(pid, number)
            assert deaths.survivors() == []


@pytest.mark.slow
def test_sigkill_of_a_template_is_a_failure_of_its_workers(tmp_path: Path) -> None:
    """The workers end with their template; their successors are forked from a new one."""
    with stubborn_job(tmp_path, "--max-restarts", "3") as job:
        worker = int(next(job.run_dir.glob("trainer/*/attempt_1/0/pid")).read_text())
        server = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        below = descendants(server)
        assert len(below) >= 2
        with Deaths([server, *below]) as deaths:
            os.kill(server, signal.SIGKILL)
            assert deaths.survivors() == []
        job.until("signal SIGKILL")
        job.until("set free", 2)
        job.process.send_signal(signal.SIGINT)
        job.until("a second interrupt stops it at once")
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130
        assert job.alive() == []


@pytest.mark.parametrize("when", ["as soon as it has a folder", "as soon as it is told"])
def test_ctrl_c_before_anything_runs_cancels_the_job(tmp_path: Path, when: str) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with Job(tmp_path, "stubborn.py") as job:
        if when == "as soon as it is told":
            job.until(f"run {tmp_path}")
        while not (tmp_path / "runs/latest/checkpoints").exists():
            assert job.process.poll() is None
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130
        assert any("CANCELLED" in line for line in job.output) and job.alive() == []
    end = state_of(job.run_dir)
    assert end.state == "cancelled" and end.reason.startswith("interrupted")


@pytest.mark.parametrize("how", [(), ("--detach",)], ids=["", "detached"])
@pytest.mark.parametrize("when", ["folder", "import", "loop"])
def test_ctrl_c_at_any_moment_before_it_runs_cancels_the_job(tmp_path: Path, when: str, how: tuple[str, ...]) -> None:
    """Interrupt it while its folder is made, during an import that loses exceptions, and before it handles signals."""
    (tmp_path / "works.py").write_text("print('works', flush=True)\n")
    interrupting = (sys.executable, str(Path(__file__).with_name("interrupting.py")), when)
    with Job(tmp_path, "works.py", *how, before=interrupting) as job:
        assert job.finish() == 130, job.text
        assert "Traceback" not in job.text and "works" not in job.output and job.alive() == []
        log = job.text if not how else (job.run_dir / "supervisor.log").read_text()
        assert "CANCELLED" in log
    end = state_of(job.run_dir)
    assert end.state == "cancelled" and end.reason.startswith("interrupted")


def test_ctrl_c_stops_in_order_and_a_second_one_at_once(tmp_path: Path) -> None:
    (tmp_path / "polite.py").write_text(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'goodbye\\n'), sys.exit(0)))\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    with Job(tmp_path, "polite.py", "--replicas", "2") as job:
        job.until("up", 2)
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130
        assert job.text.count("goodbye") == 2 and job.alive() == []
    with stubborn_job(tmp_path) as job:
        job.process.send_signal(signal.SIGINT)
        job.until("a second interrupt stops it at once")
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130 and job.alive() == []


def test_a_worker_that_ends_takes_its_group_with_it(tmp_path: Path) -> None:
    """The group is killed before its leader is reaped: until then no other process can get its process id."""
    (tmp_path / "leader.py").write_text(
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    print('child up', flush=True)\n"
        "    signal.pause()\n"
        "os.read(os.open('go', os.O_RDONLY), 1)\n"
    )
    os.mkfifo(tmp_path / "go")
    with Job(tmp_path, "leader.py") as job:
        job.until("child up")
        worker = int((job.run_dir / "trainer/0/attempt_1/0/pid").read_text())
        with Deaths([worker, *children(worker)]) as deaths:
            (tmp_path / "go").write_text("x")
            assert deaths.survivors() == []
        assert job.finish() == 0


def test_no_socket_and_no_temporary_folder_is_left(tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 20)
    deep.mkdir()
    (deep / "x.py").write_text("print('short')")
    with Job(deep, "x.py", env={"TMPDIR": str(tmp_path)}) as job:
        assert job.finish() == 0
        left = [path for path in tmp_path.rglob("*") if path.is_socket() or path.name.startswith("flowdist-")]
        assert left == []


@pytest.mark.slow
def test_an_agent_that_dies_repeatedly_is_given_up_and_status_says_why(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import signal\nprint('up', flush=True)\nsignal.pause()\n")
    with Job(tmp_path, "waits.py", "--nodes", "2") as job:
        job.until("node1 joined")
        for death in range(6):
            node1 = next(pid for pid in job.named("flowdist.runtime.agent.guardian") if is_guardian_of(pid, "node1"))
            os.kill(node1, signal.SIGKILL)
            job.until("agent started again" if death < 5 else "is not started again (see node1.log)")
            if death < 5:
                job.until("node1 joined")
        status = status_text(describe(job.run_dir))
        assert "  x lost node1: its agent died 6 times and is not started again (see node1.log)\n" in status
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130 and job.alive() == []
