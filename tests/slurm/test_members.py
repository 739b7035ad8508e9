"""`flowdist run --on slurm` on a real Slurm of four nodes: members that are lost, drained and over are replaced."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.network import LabUnavailable
from tests.runtime.harness import Job
from tests.slurm.cluster import Cluster, why_unavailable
from tests.slurm.scripts import undisturbed, write

pytestmark = [pytest.mark.real, pytest.mark.slow]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Four nodes, of which Slurm notices a silent one after 5 minutes, as by default."""
    if why := why_unavailable():
        pytest.skip(f"no Slurm: {why}")
    try:
        with Cluster(tmp_path) as made:
            write(made.work)
            yield made
    except LabUnavailable as error:
        pytest.skip(f"no Slurm: {error}")


COUNTING = """
from flowdist import Topology
t = Topology("work", nodes="1:2", controller_outage="20s")
t.role("counter", "python count.py", replicas="1:2", apart=True, cooldown="0s", join_window="10s")
"""
COUNT = """
import itertools, os, time
import flowdist.worker as worker
for step in itertools.count():
    worker.progress(step)
    if worker.should_stop(step) or os.path.exists("end"):
        break
    time.sleep(0.05)
"""


class Followed:
    """A command whose output is read all the time, so that a test can look at Slurm meanwhile."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for _ in self.job.lines():
            with self._changed:
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def until(self, text: str, times: int = 1, seconds: float = 60.0) -> str:
        """Wait for the n-th line with the text and return it."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self._with(text)) >= times or self._is_over(), seconds)
        lines = self._with(text)
        assert found and len(lines) >= times, f"{text!r} never came {times} times:\n{self.job.text}"
        return lines[times - 1]

    def _with(self, text: str) -> list[str]:
        return [line for line in list(self.job.output) if text in line]

    def _is_over(self) -> bool:
        return not self._thread.is_alive()

    def finish(self, seconds: float = 90.0) -> int:
        """Return the exit code of the command."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), self.job.text
        return self.job.process.wait()


def at(line: str) -> float:
    """Return the time of a line of flowdist, in seconds since the start of the job."""
    return float(line.split()[1].removesuffix("s"))


@needs_torch
@pytest.mark.timeout(300)  # three workers import torch six times over, on nodes that share two cores
def test_a_job_on_four_nodes_survives_what_slurm_does_to_its_members(cluster: Cluster) -> None:
    steps = 900
    options = ["-o", "cpus=4", "-o", "notice=50s", "-p", f"steps={steps}"]
    run = Followed(cluster.start("run", "--on", "slurm", "--nodes", "2:3", *options))
    run.until("trainer/2: starts on")
    cluster.until(lambda: "begins at step 0" in cluster.logs(), "the trainers begin", 60)
    first = cluster.jobs()
    assert sorted(first) == ["train-m1", "train-m2", "train-m3"]  # names that people recognise in squeue
    assert sorted(node for _, _, node in first.values()) == ["h1", "h2", "h3"]

    # A node dies silently. Slurm still shows it as running; flowdist replaces the member on another node.
    cluster.lab.power_off("h2")
    lost = run.until("h2 lost")
    assert cluster.states()["h2"] in ("allocated", "allocated*")
    submitted = run.until("m4 is submitted")
    assert submitted.endswith("not on h2") and at(submitted) - at(lost) < 10
    run.until("h4 joined")
    cluster.until(lambda: cluster.jobs()["train-m4"][1:] == ("RUNNING", "h4"), "m4 runs on h4")
    run.until("incident 2: recovered")

    # SIGUSR1, which Slurm sends before the time limit, drains the member; it ends once its node is empty.
    member, (number, _, node) = next((name, job) for name, job in cluster.jobs().items() if job[2] == "h3")
    cluster.call("scancel", "--batch", "--signal=USR1", number)
    run.until(f"{node} is taken away in 50s")
    run.until("every rank stops at step")
    cluster.until(lambda: "saved and stops at step" in cluster.logs(), "the trainers have saved")
    run.until(f"{member.removeprefix('train-')} is cancelled: {node} is taken away", seconds=90)

    assert run.finish() == 0, run.job.text
    assert (cluster.work / "result").read_text() == str(undisturbed(steps))
    cluster.until(lambda: all(job[1] != "PENDING" for job in cluster.jobs().values()), "no member waits any more")


@needs_torch
@pytest.mark.timeout(
    420
)  # a member lives for two minutes: with less, a loaded machine takes no step between two notices
def test_the_time_limit_drains_a_member_and_its_successor_goes_on(cluster: Cluster) -> None:
    steps = 1900
    (cluster.work / "hold").touch()
    options = ["-o", "cpus=4", "-o", "time=2", "-o", "notice=30s", "-p", f"steps={steps}", "-p", "replicas=1"]
    run = Followed(cluster.start("run", "--on", "slurm", "-p", "nodes=1", *options))
    run.until("is taken away in 30s", seconds=180)
    run.until("m2 is submitted")
    run.until("m1 is cancelled", seconds=90)
    (cluster.work / "hold").unlink()
    assert run.finish(240) == 0, run.job.text
    assert (cluster.work / "result").read_text() == str(undisturbed(steps))
    assert "charged to" not in run.job.text  # a time limit is no failure of the job
    assert "TIMEOUT" not in cluster.call("squeue", "--noheader", "--states=all", "--format=%T")


SAVING = """
import itertools, os, time
import flowdist.worker as worker
found = worker.latest()
first = int(found.read_text()) if found else 0
print("rank", worker.info().rank, "begins at step", first, flush=True)
for step in itertools.count(first + 1):
    time.sleep(0.05)
    stops = worker.should_stop(step)
    if stops and worker.info().rank == 0:
        (worker.checkpoint_dir() / str(step)).write_text(str(step))
        worker.commit(worker.checkpoint_dir() / str(step), step=step)
    worker.progress(step)
    if stops or (first and step > first + 20):
        break
"""


@pytest.mark.timeout(240)  # members live for a minute, and Slurm looks at time limits twice in it
def test_members_that_end_together_are_followed_by_others_from_one_checkpoint(tmp_path: Path) -> None:
    if why := why_unavailable():
        pytest.skip(f"no Slurm: {why}")
    with Cluster(tmp_path, nodes=2) as cluster:  # none is free: the successors wait in the queue
        topology = COUNTING.replace('"1:2"', "2").replace('"work",', f'"work", checkpoint_dir="{tmp_path}/kept",')
        (cluster.work / "topology.py").write_text(topology)
        (cluster.work / "count.py").write_text(SAVING)
        run = Followed(cluster.start("run", "--on", "slurm", "-o", "cpus=4", "-o", "time=1", "-o", "notice=30s"))
        step = run.until("every rank stops at step", seconds=120).split("stops at step ")[1].split()[0]
        run.until("waiting up to 30d for room")
        run.until("m4 is submitted")
        assert run.finish() == 0, run.job.text
        assert run.job.text.count("every rank stops at step") == 1 and "charged to" not in run.job.text
        assert all(f"rank {rank} begins at step {step}\n" in cluster.logs() for rank in (0, 1))


@pytest.mark.timeout(180)  # the controller is started twice, and members five times
def test_drained_nodes_are_emptied_and_a_controller_that_was_killed_is_resumed(cluster: Cluster) -> None:
    (cluster.work / "topology.py").write_text(COUNTING)
    (cluster.work / "count.py").write_text(COUNT)
    run = Followed(cluster.start("run", "--on", "slurm", "-o", "cpus=4"))
    run.until("counter/1: starts on")

    # An administrator drains a node: its work moves to another one, and then the member ends.
    cluster.call("scontrol", "update", "NodeName=h1", "State=DRAIN", "Reason=memory")
    member = next(name for name, job in cluster.jobs().items() if job[2] == "h1").removeprefix("work-")
    run.until(f"{member} on h1 is to be replaced: h1 is drained by its administrator")
    run.until("h1 is drained by the operator")
    run.until(f"{member} is cancelled: h1 is drained by its administrator")
    cluster.until(lambda: cluster.states()["h1"] == "drained", "h1 is drained")

    # Somebody cancels a member: that is no failure, and flowdist does not fight against it.
    name, (number, _, _) = next((name, job) for name, job in cluster.jobs().items() if job[1] == "RUNNING")
    cluster.call("scancel", number)
    run.until(f"{name.removeprefix('work-')} on")
    run.until("was cancelled outside flowdist, and is not replaced")
    run.until(" left")  # in order: Slurm has sent SIGTERM to every process of the member

    # The controller's command is killed and resumed: the run has its members again, and ends.
    run.job.process.kill()
    folder = run.job.run_dir
    resumed = Followed(cluster.start("run", "--resume", folder.name))
    resumed.until("is submitted")
    resumed.until(" joined")
    resumed.until("starts on")
    (cluster.work / "end").touch()
    assert resumed.finish() == 0
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    token = (folder / "token").read_text().strip()
    shown = [path.read_text() for path in (cluster.folder).glob("spool.*/job*/slurm_script")]
    assert token and token not in cluster.logs() + "".join(shown) + resumed.job.text


@pytest.mark.timeout(180)  # the controller's job and its members are started twice
def test_a_controller_in_a_job_of_its_own_is_requeued_and_resumes(cluster: Cluster) -> None:
    (cluster.work / "topology.py").write_text(COUNTING)
    (cluster.work / "count.py").write_text(COUNT)
    submitted = Followed(cluster.start("run", "--on", "slurm", "-o", "controller=job", "-o", "cpus=4"))
    assert submitted.finish() == 0, submitted.job.text
    log = cluster.work / "runs/work-controller-1.out"
    cluster.until(lambda: log.exists() and "counter/1: starts on" in log.read_text(), "the job runs")
    (number, _, host), _ = cluster.jobs()["work-controller"], None

    # Its time limit comes: it is requeued, resumes the run, and has members again.
    cluster.call("scancel", "--batch", "--signal=USR1", number)
    cluster.until(lambda: "the controller is back, as epoch 2" in log.read_text(), "the run is resumed", 150)
    cluster.until(lambda: log.read_text().count("counter/0: starts on") >= 2, "the job runs again")
    assert host
    (cluster.work / "end").touch()
    cluster.until(lambda: "SUCCEEDED" in log.read_text(), "the job is over")
    cluster.until(lambda: cluster.jobs()["work-controller"][1] == "COMPLETED", "its Slurm job is over")


@pytest.mark.timeout(180)  # Slurm lets a requeued job wait until its old credential is over
def test_a_member_that_slurm_requeues_joins_again(cluster: Cluster) -> None:
    (cluster.work / "topology.py").write_text(COUNTING)  # without a policy: a failure would end the job
    (cluster.work / "count.py").write_text(COUNT)
    run = Followed(cluster.start("run", "--on", "slurm", "-o", "cpus=4", "-o", "requeue=yes"))
    run.until("counter/1: starts on")
    (number, _, _) = cluster.jobs()["work-m2"]
    cluster.call("scontrol", "requeue", number)
    run.until(" left")
    run.until("room for counter/", seconds=90)
    assert cluster.jobs()["work-m2"][:2] == (number, "RUNNING")  # the same job, and no other one
    assert sorted(cluster.jobs()) == ["work-m1", "work-m2"]
    (cluster.work / "end").touch()
    assert run.finish() == 0, run.job.text


@pytest.mark.timeout(180)  # members start on nodes that share two cores
def test_members_have_all_that_the_options_ask_for_and_one_that_waits_says_for_what(cluster: Cluster) -> None:
    (cluster.work / "topology.py").write_text(COUNTING)
    (cluster.work / "count.py").write_text(
        COUNT.replace("for step", "print('it is', os.environ['COLOUR'], flush=True)\nfor step")
    )
    words = [
        "nodelist=h3,h4",
        "licenses=solver:1",
        "gres=disk:2",
        "setup=export COLOUR=red",
        "sbatch=--comment=at night",
    ]
    options = [word for each in ("cpus=4", "mail-type=FAIL", "mail-user=nobody", *words) for word in ("-o", each)]
    run = Followed(cluster.start("run", "--on", "slurm", *options))
    run.until("m2 waits for a machine: PENDING (Licenses)")  # there is one
    run.until("counter/0: starts on")
    cluster.until(lambda: "it is red" in cluster.logs(), "the set-up lines have run")
    number, _, node = cluster.jobs()["work-m1"]
    assert node in ("h3", "h4")
    asked = cluster.call("scontrol", "show", "job", number)
    for part in ("Comment=at night", "Licenses=solver:1", "ExcNodeList=h[1-2]", "MailType=", "TresPerNode=gres:disk:2"):
        assert part in asked, asked

    # Somebody cancels the member that waits, and the operator wants it back in the size that the job has already.
    cluster.call("scancel", cluster.jobs()["work-m2"][0])
    run.until("m2 was cancelled outside flowdist, and is not replaced")
    assert cluster.start("scale", "counter=2").finish() == 0
    run.until("m3 is submitted")
    (cluster.work / "end").touch()
    assert run.finish() == 0, run.job.text
