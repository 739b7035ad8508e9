"""Snapshots of real gangs (R24): state that is in no file survives a worker and a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.control.protocol.events import CopyHeld
from tests.runtime.harness import Job
from tests.runtime.hosts import Hosts

pytestmark = pytest.mark.real

TOPOLOGY = """
from flowdist import Node, Restart, Snapshots, Topology

t = Topology("memory", nodes=3 * [Node(cpu=1)])
again = Restart("role", max_restarts=3)
kept = Snapshots(copies=2, every=5)
t.role("trainer", ["python", "train.py"], replicas=2, cpu=1, restart=again, snapshots=kept)
"""
# Each rank sums numbers of its own. A step waits for nobody, so that the ranks meet before a fault may come.
TRAIN = """
import sys, time
from pathlib import Path
from flowdist import worker

rank = worker.info().rank
step, total = worker.restore() or (0, 0)
print(f"rank {rank} begins at {step} with {total}", flush=True)
while step < 40:
    total += (rank + 1) * step
    step += 1
    assert worker.snapshot(step, total) == (step % 5 == 0)
    worker.progress(step)
    while step == 20 and worker.info().generation == 1:
        time.sleep(0.01)  # until the fault comes
Path(f"end-{rank}").write_text(str(total))
"""


@pytest.mark.parametrize(
    ("fault", "lost"), [("trainer/1@step=trainer,20", "trainer/1 failed"), ("node1@step=trainer,20", "node1 lost")]
)
def test_a_gang_goes_on_from_memory_after_a_worker_or_a_node_has_died(tmp_path: Path, fault: str, lost: str) -> None:
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    (tmp_path / "train.py").write_text(TRAIN)
    with Job(tmp_path, "topology.py", "--fail", fault) as job:
        assert job.finish() == 0, job.text
        assert job.alive() == []
    logs = [(tmp_path / f"runs/latest/node{number}.log").read_text() for number in range(3)]
    assert [log.count("has come to its split") for log in logs] == [1, 1, 1]  # on the node that was free, too
    assert lost in job.text
    begun = [line.split("begins at ")[1] for line in job.output if "begins at" in line]
    assert begun[:2] == ["0 with 0"] * 2
    steps = {line.split()[0] for line in begun[2:]}
    assert len(steps) == 1 and steps <= {"15", "20"}, job.text  # the newest that was whole
    assert [int((tmp_path / f"end-{rank}").read_text()) for rank in (0, 1)] == [780, 1560]


ENDING = """
import os, signal, sys, time
from flowdist import worker

generation = worker.info().generation
node = os.path.basename(os.environ["FLOWDIST_VAULT"]).partition(".")[0]
def vault():
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        words = open(f"/proc/{pid}/cmdline").read() if os.path.exists(f"/proc/{pid}/cmdline") else ""
        if "vault_main" in words and os.environ["FLOWDIST_RUN_ID"] in words and f'"node":"{node}"' in words:
            return int(pid)

begun = worker.restore()
if generation == 1:
    while not worker.snapshot(5, "a") or vault() is None:
        time.sleep(0.01)
    os.kill(vault(), signal.SIGKILL)
    while not worker.snapshot(10, "b"):  # the next vault has its own memory, and nothing in it
        time.sleep(0.01)
    print("taken again", flush=True)
    worker.progress(10)
    while True:
        time.sleep(0.01)
print("begins with", begun, flush=True)
"""


def test_a_vault_that_is_killed_is_started_again_and_has_nothing_of_before(tmp_path: Path) -> None:
    (tmp_path / "topology.py").write_text(TOPOLOGY.replace("replicas=2", "replicas=1").replace("copies=2", "copies=1"))
    (tmp_path / "train.py").write_text(ENDING)
    with Job(tmp_path, "topology.py", "--fail", "trainer/0@step=trainer,10") as job:
        job.until("taken again")
        job.until("begins with (10, 'b')")
        assert job.finish() == 0 and job.alive() == []


ON_HOSTS = """
from flowdist import Restart, Snapshots, Topology

t = Topology("hosts", nodes="1:2")
t.role("trainer", "python train.py", replicas="1:2", apart=True, cooldown="0s", join_window="20s",
       restart=Restart("role", max_restarts=1), snapshots=Snapshots(copies=2, every=10))
"""
# With one rank left, that rank reads both shards: its own, and that of the rank whose host is gone.
ON_BOTH = """
import time
from flowdist import worker

me = worker.info()
if me.generation == 1:
    for step in range(1, 11):
        worker.snapshot(step, [me.rank, step])
        worker.progress(step)
    while True:
        time.sleep(0.02)
else:
    print("found", [worker.restore(rank=rank) for rank in range(2)], flush=True)
"""


def test_a_host_reads_the_shard_of_another_host_that_is_gone(tmp_path: Path) -> None:
    token = {"FLOWDIST_TOKEN": "t" * 32}  # the vaults prove that they know it, and send over TLS
    (tmp_path / "train.py").write_text(ON_BOTH)
    (tmp_path / "topology.py").write_text(ON_HOSTS)
    with Hosts(tmp_path) as hosts:
        first = hosts.start(1, "run", str(tmp_path / "topology.py"), "--listen", hosts.endpoint, env=token)
        first.until("joined")
        second = hosts.start(2, "join", hosts.endpoint, env=token)
        first.recorded(CopyHeld, 4)
        second.kill()
        first.until("found [(10, [0, 10]), (10, [1, 10])]")
        assert first.finish() == 0, hosts.text
