"""Two real runs that want one folder of checkpoints, or one id: the second is refused, and no work is overwritten."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from flowdist.cli.run import hosts
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.runtime.run_folder.owner_file import OWNER
from flowdist.torchrun.rendezvous import Rendezvous
from tests.runtime.far_host import JOB, RUN, LoneController
from tests.runtime.harness import Job
from tests.runtime.hosts import Hosts, free_port

pytestmark = pytest.mark.real

SAVER = """
import json, time
from pathlib import Path
from flowdist import worker

step = 0
while not Path("enough").exists():
    step += 1
    path = worker.checkpoint_dir() / f"{worker.info().run_id}-{step}.json"
    path.write_text(json.dumps({"step": step}))
    print(f"saved {worker.commit(path, step=step)}", flush=True)
    time.sleep(0.1)
"""


WAITER = """
import sys, time
from pathlib import Path

print("up", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
GRAPH = RoleGraph("other", (RoleSpec("trainer", ("true",)),))


def saver(folder: Path, name: str) -> Job:
    """A run in a folder of its own, which saves in the same folder of checkpoints as every other."""
    (folder / name).mkdir(exist_ok=True)
    (folder / "saved").mkdir(exist_ok=True)
    (folder / name / "save.py").write_text(SAVER)
    (folder / name / "topology.py").write_text(
        "from flowdist import Topology\n"
        f"t = Topology({name!r}, nodes=1, checkpoint_dir={str(folder / 'saved')!r})\n"
        "t.role('trainer', ['python', 'save.py'])\n"
    )
    return Job(folder / name, "topology.py")


def owner_of(folder: Path) -> str:
    run: str = json.loads((folder / "saved" / OWNER).read_text())["run"]
    return run


def test_the_second_run_of_one_checkpoint_folder_is_refused_with_both_names(tmp_path: Path) -> None:
    with saver(tmp_path, "first") as first:
        first.until("saved True", 2)
        name = first.run_dir.name
        assert owner_of(tmp_path) == name
        with saver(tmp_path, "second") as second:
            assert second.finish() == 2, second.text
            assert f"the checkpoint folder {tmp_path / 'saved'} belongs to run {name} on " in second.text
            assert "this would be a new run on " in second.text and "Traceback" not in second.text
            assert not (tmp_path / "second/runs").exists(), "a run that is refused leaves no folder"
        first.until("saved True", 2)
        (tmp_path / "first/enough").touch()
        assert first.finish() == 0, first.text
    assert not (tmp_path / "saved" / OWNER).exists(), "it is given back at the end"


@pytest.mark.slow
def test_the_folder_of_a_run_that_was_killed_is_taken_over_at_once_with_a_line(tmp_path: Path) -> None:
    with saver(tmp_path, "first") as first:
        first.until("saved True")
        name = first.run_dir.name
        first.kill()
    with saver(tmp_path, "second") as second:
        second.until(f"was owned by run {name} on ")
        second.until("saved True")
        (tmp_path / "second/enough").touch()
        assert second.finish() == 0, second.text


@pytest.mark.slow
def test_a_run_that_stood_still_for_too_long_has_lost_its_folder_and_publishes_nothing_there_any_more(
    tmp_path: Path,
) -> None:
    with saver(tmp_path, "first") as first:
        first.until("saved True", 2)
        name = first.run_dir.name
        paused = [pid for pid in first.alive() if pid != os.getpid()]
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        with saver(tmp_path, "second") as second:
            second.until(f"was owned by run {name} on ")
            second.until("saved True")
            for pid in paused:
                os.kill(pid, signal.SIGCONT)
            assert first.finish() == 70, first.text
            assert f"was taken over by run {second.run_dir.name} on " in first.text
            after = first.text.partition("was taken over by")[2]
            assert "saved True" not in after, first.text
            second.until("saved True", 3)
            pointer = json.loads((tmp_path / "saved/trainer/latest.json").read_text())
            assert Path(pointer["path"]).name.startswith(second.run_dir.name)
            (tmp_path / "second/enough").touch()
            assert second.finish() == 0, second.text


@pytest.mark.slow
def test_a_worker_that_saves_in_the_folder_of_another_run_fails_with_both_names(tmp_path: Path) -> None:
    with saver(tmp_path, "first") as first:
        first.until("saved True")
        claim = json.loads((tmp_path / "saved" / OWNER).read_text())
        theirs = {**claim, "run": "other-1", "host": "host9", "token": "another"}
        first.process.send_signal(signal.SIGSTOP)  # it would find out at its next renewal, and end the run
        (tmp_path / "saved" / OWNER).write_text(json.dumps(theirs))
        (log,) = first.run_dir.glob("trainer/0/attempt_1/0/stderr.log")
        while "RuntimeError: commit(" not in log.read_text():
            time.sleep(0.05)
        first.process.send_signal(signal.SIGCONT)
        assert first.finish() in (1, 70), first.text
        assert "the folder belongs to run other-1 on host9" in log.read_text()


@pytest.mark.slow
def test_a_killed_run_that_is_resumed_at_once_owns_its_folder_again(tmp_path: Path) -> None:
    with saver(tmp_path, "first") as first:
        first.until("saved True", 2)
        name = first.run_dir.name
        first.kill()
    with Job(tmp_path / "first", "--resume", name) as again:
        again.until("saved True")
        claim = json.loads((tmp_path / "saved" / OWNER).read_text())
        assert (claim["run"], claim["epoch"]) == (name, 2)
        (tmp_path / "first/enough").touch()
        assert again.finish() == 0 and "was owned" not in again.text, again.text


@pytest.mark.slow
def test_a_second_controller_for_the_id_of_a_job_that_runs_is_refused_with_both_names(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(WAITER)
    script, end = str(tmp_path / "w.py"), str(tmp_path / "end")
    words = ["--nnodes", "1:2", "--log-dir", str(tmp_path / "logs"), "--rdzv-id", "job1"]
    words += ["--rdzv-conf", "is_host=1,last_call_timeout=1"]
    with Hosts(tmp_path) as all_hosts:
        first = all_hosts.start(1, "torchrun", *words, "--rdzv-endpoint", all_hosts.endpoint, script, end)
        first.until("up")
        endpoint = f"127.0.0.1:{free_port()}"
        second = all_hosts.start(2, "torchrun", *words, "--rdzv-endpoint", endpoint, script, end)
        assert second.finish() == 2, second.text
        assert "job 'job1' belongs to run job1_" in second.text and "this would be a new run on " in second.text
        (tmp_path / "end").touch()
        assert first.finish() == 0, first.text


def test_is_host_on_a_host_that_the_endpoint_does_not_name_is_refused_if_a_controller_answers_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "is_this_machine", lambda host: False)  # as on any other host
    with LoneController(tmp_path, GRAPH, "hush") as controller:
        controller.host("of another")  # it listens
        place = Rendezvous(controller.endpoint.address, True, JOB, "hush", 1.0, "", 2)
        with pytest.raises(FlowdistError, match=f"cannot run the controller.*{JOB}.* has begun: {RUN}"):
            hosts._check_endpoint(place)
    hosts._check_endpoint(place)
    assert "is no address of this host" in capsys.readouterr().err
