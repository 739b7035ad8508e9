"""The recipe of docs/slurm.md for one allocation of fixed size, on a real Slurm, as it stands there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.network import LabUnavailable
from tests.slurm.cluster import Cluster, why_unavailable

pytestmark = [pytest.mark.real, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs/slurm.md"
TRAIN = """
import itertools, os, time
import flowdist.worker as worker
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
for step in itertools.count():
    worker.progress(step)
    if worker.should_stop(step):
        print("saved at step", step, flush=True)
        break
    time.sleep(0.05)
"""


def four_nodes(folder: Path, timeout_s: int) -> Iterator[Cluster]:
    if why := why_unavailable():
        pytest.skip(f"no Slurm: {why}")
    try:
        with Cluster(folder, timeout_s=timeout_s) as made:
            yield made
    except LabUnavailable as error:
        pytest.skip(f"no Slurm: {error}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Four nodes; Slurm looks for silent ones often."""
    yield from four_nodes(tmp_path, 5)


@pytest.fixture
def slow_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Four nodes, of which Slurm notices a silent one after 5 minutes, as by default."""
    yield from four_nodes(tmp_path, 300)


def recipe() -> str:
    """Return the batch script of the page."""
    lines = PAGE.read_text().split("    #!/bin/bash\n")[1].split("\n\n")[0].splitlines()
    return "\n".join(["#!/bin/bash", *(line.removeprefix("    ") for line in lines), ""])


def submit(cluster: Cluster) -> tuple[str, Callable[..., bool]]:
    """Submit the recipe. Return the number of the job, and whether its output has these words so many times."""
    (cluster.work / "train.py").write_text(TRAIN)
    (cluster.work / "flowdist").write_text(f'#!/bin/sh\nexec {sys.executable} -m flowdist "$@"\n')
    (cluster.work / "flowdist").chmod(0o755)
    text = recipe().replace("--nproc-per-node 8", "--nproc-per-node 1")
    (cluster.work / "job.sh").write_text(text.replace("head=", f"cd {cluster.work}; PATH=$PWD:$PATH; head=", 1))
    number = cluster.call("sbatch", "--parsable", f"--output={cluster.work}/out", str(cluster.work / "job.sh")).strip()
    out = cluster.work / "out"
    return number, lambda words, count=1: out.exists() and out.read_text().count(words) >= count


@pytest.mark.timeout(240)  # srun waits half a minute for a step whose node has rebooted
def test_the_recipe_survives_a_node_that_reboots_which_then_runs_again(slow_cluster: Cluster) -> None:
    number, has = submit(slow_cluster)
    slow_cluster.until(lambda: has("of 4", 4), "four ranks run")
    slow_cluster.lab.power_off("h3")
    slow_cluster.until(lambda: has("h3 lost (not heard for 5s)"), "flowdist has lost the node")
    slow_cluster.lab.power_on("h3")
    slow_cluster.start_daemon("h3")
    slow_cluster.until(lambda: has("of 3", 3), "three ranks run")
    slow_cluster.until(lambda: has("h3 joined", 2), "the node runs again", 120)
    slow_cluster.until(lambda: has("of 4", 8), "four ranks run again")
    slow_cluster.call("scancel", number)
    slow_cluster.until(lambda: all(job[1] != "RUNNING" for job in slow_cluster.jobs().values()), "the job is over")


@pytest.mark.timeout(180)  # Slurm takes half a minute to find a node DOWN
def test_the_recipe_survives_a_silent_node_and_takes_a_notice_for_a_drain(cluster: Cluster) -> None:
    number, has = submit(cluster)
    cluster.until(lambda: has("of 4", 4), "four ranks run")
    cluster.lab.power_off("h3")
    cluster.until(lambda: has("h3 lost (not heard for 5s)"), "flowdist has lost the node")
    cluster.until(lambda: has("of 3", 3), "three ranks run")
    cluster.until(lambda: cluster.states()["h3"].startswith("down"), "Slurm has lost the node", 90)
    assert cluster.call("squeue", "--noheader", f"--jobs={number}", "--format=%T").strip() == "RUNNING"

    cluster.call("scancel", "--signal=USR1", number)  # to every process of the step, as before the time limit
    cluster.until(lambda: has("is about to be taken away (SIGUSR1)", 3), "every host has the notice")
    cluster.until(lambda: has("saved at step", 3), "all ranks have saved")
    assert cluster.call("squeue", "--noheader", f"--jobs={number}", "--format=%T").strip() == "RUNNING"
    cluster.call("scancel", number)
    cluster.until(lambda: all(state != "RUNNING" for _, state, _ in cluster.jobs().values()), "the job is over")
