"""A run in the background, looked after from outside: nothing but the verbs, and nothing left in the end."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from pathlib import Path

import pytest

from flowdist.control.protocol.events import ReplicaStarted
from flowdist.runtime.gpus.devices import machine_cpus
from tests.report.terminal import Terminal
from tests.runtime.harness import MARK, Deaths, Job, marked
from tests.runtime.hosts import free_port
from tests.runtime.test_metrics import read

pytestmark = pytest.mark.real

# Steps until there is a file named `enough`; leaves at the step that all agree on.
STEPPER = """
import os, time
from flowdist import worker

me = worker.info()
print(f"generation {me.generation}: rank {me.rank} of {me.world_size}", flush=True)
step = 0
while not os.path.exists("enough"):
    if worker.should_stop(step):
        print("leaves in order", flush=True)
        break
    step += 1
    worker.progress(step)
    time.sleep(0.02)
"""
THREE = ("--replicas", "2:3", "--nodes", "3", "--set", "trainer.cpu=8", "--max-restarts", "3")


def stepper(folder: Path, *more: str) -> Job:
    (folder / "stepper.py").write_text(STEPPER)
    return Job(folder, "stepper.py", *more)


def detached(folder: Path, *more: str) -> Job:
    """A run in the background whose `run` has ended."""
    job = stepper(folder, "--detach", *more)
    assert job.finish() == 0, job.text
    return job


def verb(job: Job, *arguments: str, code: int = 0) -> str:
    """What the verb prints, on stdout and stderr."""
    run = [sys.executable, "-m", "flowdist", *arguments]
    done = subprocess.run(run, cwd=job.folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def status(job: Job) -> dict:  # type: ignore[type-arg]
    told: dict = json.loads(verb(job, "status", "--json"))  # type: ignore[type-arg]
    return told


@pytest.mark.slow
def test_a_run_in_the_background_is_watched_scaled_drained_and_cancelled(tmp_path: Path) -> None:
    with detached(tmp_path, *THREE) as job, Job(tmp_path, "-f", "trainer", verb="logs") as follow:
        name = job.run_dir.name
        assert name in job.output and f"  flowdist logs -f --run {name}" in job.output
        job.recorded(ReplicaStarted, 3)
        told = status(job)
        assert (told["state"], told["run"], told["roles"][0]["phases"]) == ("running", name, {"running": 3})
        follow.until(" of 3", times=3)
        assert "[trainer/2] generation 1: rank 2 of 3" in follow.text

        assert "trainer: scaled to 2 replicas by the operator" in (scaled := verb(job, "scale", "trainer=2", "--wait"))
        assert scaled.endswith("done\n")
        follow.until("[trainer/0] generation 2: rank 0 of 2")
        assert "trainer  2/2  2 running" in verb(job, "status", name[:-2])
        assert "scale trainer=9 is refused: trainer has replicas=2:3" in verb(job, "scale", "trainer=9", code=1)
        assert "did you mean 'trainer'?" in verb(job, "scale", "trianer=2", code=1)
        assert "help: known: trainer\n" in verb(job, "scale", "node=2", code=1)
        assert "help: the nodes are node0, node1, node2\n" in verb(job, "drain", "node7", code=1)

        assert "node1 is drained by the operator" in verb(job, "drain", "node1", "--wait")
        follow.until("leaves in order")
        assert "nothing changes: the run is in that state already" in verb(job, "drain", "node1")
        refused = verb(job, "drain", "node0", code=1)
        assert "drain node0 is refused: without it, trainer/2 needs 8 cpu" in refused
        assert "~ leaving node1: node1 is drained by the operator" in verb(job, "status")
        assert "node1 is used again" in verb(job, "uncordon", "node1")
        assert "node2 is cordoned: by the operator" in verb(job, "cordon", "node2")
        assert json.loads(verb(job, "drain", "node2", "--undo", "--json"))["said"][0]["text"] == "node2 is used again"

        assert name in verb(job, "list", "--state", "running")
        with Deaths(job.alive()) as deaths:
            assert "the job is cancelled: enough" in verb(job, "cancel", "--reason", "enough", "--wait")
            assert deaths.survivors() == [] and job.alive() == []
        assert follow.finish() == 0, "it ends with the run"
        assert status(job)["state"] == "cancelled" and "cancelled  " in verb(job, "list")
        report = verb(job, "report")
        assert "CANCELLED" in report and "node1 is drained by the operator" in report and "started 20" in report
        assert "is over: it was cancelled" in verb(job, "scale", "trainer=3", code=2)
        assert "generation 1: rank 0 of 3" in verb(job, "logs", "trainer/0", "--attempt", "1")
        events = [json.loads(line) for line in verb(job, "logs", "--events", "-f").splitlines()]
        assert events[0]["type"] == "header" and events[-1]["n"] == len(events) - 1
        assert not [path for path in job.run_dir.iterdir() if path.is_socket()]


def test_a_supervisor_in_the_background_has_no_terminal(tmp_path: Path) -> None:
    with detached(tmp_path) as job:
        lead = job.alive()[0]
        assert os.getsid(lead) == lead, "a session of its own"
        files = [Path(f"/proc/{lead}/fd/{number}").readlink() for number in range(3)]
        assert files == [Path("/dev/null"), *2 * [job.run_dir / "supervisor.log"]]
        with Deaths(job.alive()) as deaths:
            (tmp_path / "enough").touch()
            assert deaths.survivors() == []
        assert "SUCCEEDED" in (job.run_dir / "supervisor.log").read_text()
        assert json.loads((job.run_dir / "environment.json").read_text())["starts"][0]["argv"][-2:] == [
            "stepper.py",
            "--detach",
        ]


def test_neither_ctrl_c_nor_the_end_of_the_terminal_reaches_a_run_in_the_background(tmp_path: Path) -> None:
    (tmp_path / "stepper.py").write_text(STEPPER)
    shell = [sys.executable, "-m", "flowdist", "run", "stepper.py", "--detach"]
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, shell, {**os.environ, MARK: tmp_path.name})
    told = b"".join(iter(lambda: _read(master), b""))
    assert os.waitpid(pid, 0)[1] == 0 and b"the run is in the background" in told, told
    os.close(master)
    with Job(tmp_path, "--watch", verb="status") as watch:
        watch.until("running: trainer 1/1 step ", 2)
        assert "the job is cancelled" in verb(watch, "cancel", "--now", "--wait")
        assert watch.finish() == 0
        assert any(line.startswith("stepper-") and "  cancelled  " in line for line in watch.output)
    with Deaths(marked(tmp_path.name)) as deaths:
        assert deaths.survivors() == []


@pytest.mark.slow
def test_a_verb_waits_for_the_next_controller(tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 20)  # the socket cannot be there: a link is
    deep.mkdir()
    with detached(deep, *THREE) as job:
        assert (job.run_dir / "control.sock").is_symlink()
        assert (job.run_dir / "control.sock").stat().st_mode & 0o777 == 0o600
        for count in (2, 3, 2):
            os.kill(job.named("flowdist.runtime.controller.controller_main")[0], signal.SIGKILL)
            assert f"trainer: scaled to {count} replicas" in verb(job, "scale", f"trainer={count}")
        assert status(job)["epoch"] == 4
        socket = (job.run_dir / "control.sock").readlink()
        with Deaths(job.alive()) as deaths:
            verb(job, "cancel", "--now", "--wait")
            assert deaths.survivors() == []
        assert not socket.parent.exists() and not (job.run_dir / "control.sock").is_symlink()


@pytest.mark.slow
def test_a_run_that_was_killed_is_told_to_have_died_with_the_command_that_goes_on(tmp_path: Path) -> None:
    with detached(tmp_path) as job:
        with Job(tmp_path, "-f", verb="logs") as follow:
            follow.until("rank 0 of 1")
        with Deaths(job.alive()) as deaths:
            os.kill(job.alive()[0], signal.SIGKILL)
            assert deaths.survivors() == []
        command = f"flowdist run --resume {job.run_dir.name}"
        assert "  died  after" in (told := verb(job, "status")) and command in told
        assert "has died: nothing of it runs" in (told := verb(job, "drain", "node0", code=2)) and command in told
        assert "died  " in verb(job, "list") and command in verb(job, "report")
        assert "rank 0 of 1" in verb(job, "logs", "-f"), "there is nothing to wait for"
        (tmp_path / "enough").touch()
        assert "SUCCEEDED" in verb(job, "run", "--resume", job.run_dir.name)
        assert len(json.loads((job.run_dir / "environment.json").read_text())["starts"]) == 2


@pytest.mark.slow
def test_what_goes_wrong_before_the_job_has_started_is_told_in_the_foreground(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    with Job(tmp_path, "bad.py", "--detach") as job:
        assert job.finish() in (0, 1), job.text  # it may have been seen to run
        with Deaths(job.alive()) as deaths:
            assert deaths.survivors() == []
        assert status(job)["state"] == "failed"
    with detached(tmp_path) as going, Job(tmp_path, "--resume", "latest", "--detach") as second:
        assert second.finish() == 2 and "is still running" in second.text
        assert len(json.loads((going.run_dir / "environment.json").read_text())["starts"]) == 1
        verb(going, "cancel", "--now", "--wait")


@pytest.mark.slow
def test_a_job_that_cannot_start_yet_gives_the_shell_back_all_the_same(tmp_path: Path) -> None:
    each = min(machine_cpus(), 8)
    count = str(machine_cpus() // each + 1)  # one more than there is room for on this host
    size = ("--nodes", count, "--replicas", count, "--set", f"trainer.cpu={each}")
    with detached(tmp_path, "--listen", f"127.0.0.1:{free_port()}", *size) as job:
        assert "the run is in the background, and waits for " in job.text
        assert "cancelled" in verb(job, "cancel", "--wait")
        with Deaths(job.alive()) as deaths:
            assert deaths.survivors() == []


@pytest.mark.slow
def test_metrics_are_there_for_as_long_as_the_run_and_survive_the_controller(tmp_path: Path) -> None:
    with stepper(tmp_path, "--metrics-port", "0", *THREE) as job:
        address = job.until("metrics at").rpartition(" ")[2]
        job.until("generation 1", 3)
        job.recorded(ReplicaStarted, 3)
        for _ in range(2):
            with urllib.request.urlopen(address, timeout=60) as answer:
                samples, _ = read(answer.read().decode())
            assert samples["flowdist_replicas", (("role", "trainer"), ("state", "running"))] == 3
            assert 0 <= samples["flowdist_job_seconds", ()] < 300
            os.kill(job.named("flowdist.runtime.controller.controller_main")[0], signal.SIGKILL)
        job.until("the controller is back", 2)
        (tmp_path / "enough").touch()
        assert job.finish() == 0 and job.alive() == []


@pytest.mark.slow
def test_on_a_terminal_a_picture_stays_below_what_workers_print(tmp_path: Path) -> None:
    tmp_path = _wrapped_before_the_name(tmp_path, 100)
    (tmp_path / "talker.py").write_text(
        "import os, sys\n"
        "for number in range(300):\n"
        "    print(f'{number}%\\r{number} is said', flush=True)\n"
        "open(f'said-{os.environ[\"RANK\"]}', 'w').close()\n"
        "open(f'go-{os.environ[\"RANK\"]}', 'r').read()\n"
    )
    for rank in range(2):
        os.mkfifo(tmp_path / f"go-{rank}")  # one each: who opens one that two wait for lets both go
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", MARK: f"picture-{os.getpid()}"}
    run = [sys.executable, "-m", "flowdist", "run", "talker.py", "--replicas", "2"]
    process = subprocess.Popen(run, cwd=tmp_path, env=env, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    terminal, released = Terminal(100, 30), False
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for data in iter(lambda: _read(master), b""):
            terminal.write(decode(data).replace("\r\n", "\n"))
            if not released and _said(terminal) == 600 and _shows_both_running(terminal):
                for rank in range(2):
                    (tmp_path / f"go-{rank}").write_text("on")
                released = True
        assert process.wait(timeout=60) == 0, terminal.seen
    finally:
        print(*terminal.seen, sep="\n")  # with a failure, pytest shows it
        for pid in marked(env[MARK]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    os.close(master)
    assert released and _said(terminal) == 600 and terminal.shows_cursor
    assert any(row.startswith("SUCCEEDED") for row in terminal.seen)
    assert not any(row.startswith("nodes  ") for row in terminal.seen), "the picture is gone"


def _wrapped_before_the_name(folder: Path, columns: int) -> Path:
    """Return a folder in whose run the first line of output wraps before the run's name, which then begins a row."""
    before = len(f"flowdist    0.00s | run {folder}//runs/")
    below = folder / ("x" * (columns - before % columns))
    below.mkdir()
    return below


def _shows_both_running(terminal: Terminal) -> bool:
    """Whether the picture is drawn in full: what is read may end in the middle of a row."""
    picture = [row for row in terminal.seen if row.startswith("talker-") and "running" in row]
    return len(picture) == 1 and any("2 running" in row for row in terminal.seen)


def _said(terminal: Terminal) -> int:
    return sum(row.startswith("[trainer/") and row.endswith(" is said") for row in terminal.seen)


def _read(fd: int) -> bytes:
    """Return what the terminal gets next, or nothing at the end of the run or when 60 s pass without any output."""
    try:
        if not select.select([fd], [], [], 60)[0]:
            return b""
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
