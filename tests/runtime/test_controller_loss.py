"""R21 on real processes: workers survive the death of the controller, and a killed run is resumed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from flowdist.control.controller import Controller
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import CancelRequested, ControllerStarted
from flowdist.graph import SECOND
from flowdist.record.journal import Header, Line, Record
from flowdist.report.record.timeline import timeline_of
from tests.runtime.harness import Deaths, Job

pytestmark = pytest.mark.real

# Steps until it is told to end; commits every fifth step, which a controller has to answer.
COUNTER = """
import json, os, sys, time
from flowdist import worker

start = json.loads(worker.latest().read_text())["step"] if worker.latest() else 0
print(f"from step {start}", flush=True)
step = start
while step < start + 30 or not os.path.exists("enough"):
    step += 1
    worker.progress(step)
    if step % 5 == 0:
        path = worker.checkpoint_dir() / f"step-{step}.json"
        path.write_text(json.dumps({"step": step}))
        print("committed" if worker.commit(path, step=step) else "refused", flush=True)
    time.sleep(0.01)
print("done", flush=True)
"""


def counter_job(folder: Path, *more: str) -> Job:
    (folder / "counter.py").write_text(COUNTER)
    return Job(folder, "counter.py", *more)


def starts_of(lines: list[Line]) -> list[str]:
    effects = [effect for line in lines if isinstance(line, Record) for effect in line.effects]
    return [f"{e.replica}#{e.attempt}" for e in effects if isinstance(e, StartReplica)]


def assert_replays(header: Header, lines: list[Line]) -> None:
    controller = Controller(header.graph, header.known_nodes)
    for line in lines:
        if isinstance(line, Record):
            assert tuple(controller.handle(line.event, line.t_ns)) == line.effects


def test_r21_a_controller_that_is_killed_again_and_again_is_noticed_by_no_worker(tmp_path: Path) -> None:
    with counter_job(tmp_path) as job:
        job.until("from step 0")
        for kill in range(4):
            job.until("committed", 1 + kill)
            os.kill(job.named("flowdist.runtime.controller.controller_main")[0], signal.SIGKILL)
            job.until("the controller is back")
        (tmp_path / "enough").touch()
        assert job.finish() == 0
        header, lines = job.journal()
        assert starts_of(lines) == ["trainer/0#1"] and "refused" not in job.text
        epochs = [
            line.event.epoch for line in lines if isinstance(line, Record) and isinstance(line.event, ControllerStarted)
        ]
        assert epochs == [2, 3, 4, 5]
        assert_replays(header, lines)
        assert job.alive() == []


def damage(journal: Path, number: int) -> bytes:
    """Change one byte of a line of the journal, which stays JSON of the same kind, and return the whole file before."""
    before = journal.read_bytes()
    lines = before.splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace(b'"t_ns":', b'"t_nz":', 1)
    with journal.open("r+b") as file:  # in place: the controller has it open
        file.write(b"".join(lines[:number]))
    return before


def test_r21_a_controller_that_cannot_take_over_ends_the_run_with_the_line_and_the_run_goes_on_from_before_it(
    tmp_path: Path,
) -> None:
    with counter_job(tmp_path) as job:
        job.until("committed")
        journal = job.run_dir / "journal.jsonl"
        number = len(journal.read_bytes().splitlines())
        damage(journal, number)
        os.kill(job.named("flowdist.runtime.controller.controller_main")[0], signal.SIGKILL)
        assert job.finish() == 70 and job.alive() == []
        assert f"no controller can take over: {journal}:{number}: " in job.text, job.text
        assert job.text.count("the controller died") == 1, "the one that was killed; no third one is tried"
    with Job(tmp_path, "--resume", "latest") as job:
        assert job.finish() == 2 and f"{journal}:{number}: " in job.text
        assert f"flowdist run --resume {journal.parent.name} --truncate-at {number}" in job.text
    (tmp_path / "enough").touch()
    with Job(tmp_path, "--resume", "latest", "--truncate-at", str(number)) as job:
        assert job.finish() == 0, job.text
        assert f"the journal is cut off before line {number} (" in job.text
        step = next(line for line in job.output if "from step" in line)
        assert not step.endswith("from step 0"), "checkpoints are on the disk, whatever the journal says"
        assert (journal.parent / f"journal.before-{number}.jsonl").exists() and job.alive() == []
        assert_replays(*job.journal())


def test_r21_a_failure_while_no_controller_runs_is_handled_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(
        "import os, signal\n"
        "print(f'attempt {os.environ[\"FLOWDIST_ATTEMPT\"]}', flush=True)\n"
        "if os.environ['FLOWDIST_ATTEMPT'] == '1':\n"
        "    signal.pause()\n"
    )
    with Job(tmp_path, "fragile.py", "--max-restarts", "1") as job:
        job.until("attempt 1")
        worker = int((job.run_dir / "trainer/0/attempt_1/0/pid").read_text())
        with Deaths([worker]) as deaths:
            os.kill(job.named("flowdist.runtime.controller.controller_main")[0], signal.SIGKILL)
            os.kill(worker, signal.SIGKILL)
            assert deaths.survivors() == []
        job.until("attempt 2")
        assert job.finish() == 0
        header, lines = job.journal()
        assert starts_of(lines) == ["trainer/0#1", "trainer/0#2"]
        assert_replays(header, lines)


def test_r21_ctrl_c_that_a_controller_did_not_read_before_it_died_reaches_the_next(tmp_path: Path) -> None:
    with counter_job(tmp_path) as job:
        job.until("committed", 1)
        controller = job.named("flowdist.runtime.controller.controller_main")[0]
        os.kill(controller, signal.SIGSTOP)  # it reads nothing more
        job.process.send_signal(signal.SIGINT)
        job.until("a second interrupt stops it at once")
        os.kill(controller, signal.SIGKILL)
        assert job.finish() == 130
        header, lines = job.journal()
        asked = [line for line in lines if isinstance(line, Record) and isinstance(line.event, CancelRequested)]
        assert len(asked) == 1 and job.alive() == []
        assert_replays(header, lines)


def test_r21_a_run_that_was_killed_resumes_from_its_last_checkpoint(tmp_path: Path) -> None:
    with counter_job(tmp_path) as job:
        job.until("committed", 3)
        with Deaths(job.alive()) as deaths:
            job.process.kill()
            assert deaths.survivors() == []
    (tmp_path / "enough").touch()
    with Job(tmp_path, "--resume", "latest") as again:
        line = again.until("from step")
        assert int(line.rpartition(" ")[2]) >= 15
        assert again.finish() == 0
        header, lines = again.journal()
        assert starts_of(lines) == ["trainer/0#1", "trainer/0#2"]
        assert_replays(header, lines)
        [(_, began), (resumed_ns, resumed)] = timeline_of(header, lines).clock
        assert (resumed - began).total_seconds() > resumed_ns / SECOND, "the clock went on while nothing ran"
    with Job(tmp_path, "--resume", "latest") as over:
        assert over.finish() == 2 and "it has succeeded" in over.text


@pytest.mark.slow
def test_r21_no_effect_is_carried_out_that_the_journal_cannot_record(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the run ends with a reason, and its journal replays."""
    (tmp_path / "loop.py").write_text("print('works', flush=True)\nraise SystemExit(1)\n")
    again = ("--max-restarts", "500", "--set", "trainer.restart.backoff=0s")
    compiles_nothing = {"PYTHONDONTWRITEBYTECODE": "1"}  # Python would leave modules that are cut off
    with Job(tmp_path, "loop.py", *again, env=compiles_nothing, before=("prlimit", "--fsize=12288")) as job:
        assert job.finish() == 70
        assert f"the journal cannot be written: is there room on the disk of {job.run_dir}?" in job.text
        assert "Traceback" not in job.text and job.alive() == []
        header, lines = job.journal()
        assert_replays(header, lines)
        told = {(e.replica, e.attempt) for line in lines if isinstance(line, Record) for e in line.effects
                if isinstance(e, StartReplica)}  # fmt: skip
        assert len(list((job.run_dir / "trainer/0").iterdir())) <= len(told)


@pytest.mark.slow
@pytest.mark.parametrize("warm", ["yes", "no"])
def test_r21_workers_that_outlived_their_run_are_killed_when_it_is_resumed(tmp_path: Path, warm: str) -> None:
    """Simulate `pkill -9 flowdist`: flowdist's own processes are killed at once.

    This worker has cleared the signal that the kernel would send it at the death of its parent (PR_SET_PDEATHSIG), as
    the children of workers are without it.
    """
    (tmp_path / "enduring.py").write_text(
        "import ctypes, signal\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nprint('works', flush=True)\nsignal.pause()\n"
    )
    (tmp_path / "topology.py").write_text(
        "from flowdist import Topology\n"
        "t = Topology('enduring')\n"
        f"t.role('trainer', ['python', 'enduring.py'], warm={warm == 'yes'})\n"
    )
    with Job(tmp_path) as job:
        job.until("works")
        worker = int((job.run_dir / "trainer/0/attempt_1/0/pid").read_text())
        ours = [pid for pid in job.alive() if pid != worker]
        with Deaths([worker]) as deaths:
            for pid in [job.process.pid, *ours]:
                os.kill(pid, signal.SIGSTOP)  # or a guardian is quicker than we are
            for pid in [job.process.pid, *ours]:
                os.kill(pid, signal.SIGKILL)
            job.process.wait(30)
            assert deaths.survivors(0.2) == [worker]
            with Job(tmp_path, "--resume", "latest") as again:
                again.until("worker processes that had outlived the run are killed: 1")
                again.until("works")
                assert deaths.survivors() == []
                again.process.send_signal(signal.SIGINT)
                again.finish()
                assert again.alive() == []


@pytest.mark.slow
def test_a_run_that_is_still_running_cannot_be_resumed(tmp_path: Path) -> None:
    with counter_job(tmp_path) as job:
        job.until("from step 0")
        with Job(tmp_path, "--resume", "latest") as second:
            assert second.finish() == 2 and "is still running" in second.text
        (tmp_path / "enough").touch()
        assert job.finish() == 0
    with Job(tmp_path, "--resume", "nothing") as missing:
        assert missing.finish() == 2 and "there is no run 'nothing'" in missing.text
