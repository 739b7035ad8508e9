"""Jobs that torchrun 2.13 loses, or holds up for minutes: what it does with them stands in docs/torchrun.md.

Gloo gangs over several nodes, each with an agent of its own. A rank that has summed over its whole world says so.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import ReplicaExited
from flowdist.record.journal import Line, Record
from tests.runtime.harness import Deaths, Job, children, is_guardian_of
from tests.runtime.test_run import replayed

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

SUMMING = """
import os, signal, sys, time, torch, torch.distributed as dist
from flowdist import worker

info = worker.info()
if os.environ.get("STUBBORN") == info.replica:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
print("generation", info.generation, "sums to", int(total), "of", info.world_size, flush=True)
while os.environ.get("STUBBORN") == info.replica and info.generation == 1:
    signal.pause()
if os.environ.get("EARLY") == info.replica:
    dist.destroy_process_group()
    sys.exit(0)
step = 0
while "EARLY" not in os.environ:
    step += 1
    worker.progress(step)
    is_enough = torch.tensor([int(os.path.exists("enough"))])
    dist.all_reduce(is_enough, op=dist.ReduceOp.MAX)
    if is_enough:
        break
    time.sleep(0.02)
if "EARLY" in os.environ and info.generation == 1:
    signal.pause()
dist.destroy_process_group()
"""
TOPOLOGY = """
from flowdist import Node, Restart, Topology

t = Topology("summing", nodes=NODES * [Node(cpu=1)])
t.role("trainer", ["python", "summing.py"], replicas="REPLICAS", cooldown="0s",
       restart=Restart("role", max_restarts=10, backoff="0s"))
"""


def summing(folder: Path, nodes: int, replicas: str, *options: str, env: dict[str, str] | None = None) -> Job:
    (folder / "summing.py").write_text(SUMMING)
    (folder / "topology.py").write_text(TOPOLOGY.replace("NODES", str(nodes)).replace("REPLICAS", replicas))
    return Job(folder, *options, env=env)


def finish(job: Job) -> list[Line]:
    """Let it end; its journal, which replays, and after which nothing is left."""
    (job.folder / "enough").touch()
    assert job.finish() == 0, job.text
    assert job.alive() == []
    replayed(job)
    return job.journal()[1]


def starts(lines: list[Line]) -> list[StartReplica]:
    return [e for line in lines if isinstance(line, Record) for e in line.effects if isinstance(e, StartReplica)]


def kill_worker(job: Job, replica: str, attempt: int) -> None:
    os.kill(int((job.run_dir / replica / f"attempt_{attempt}/0/pid").read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_a_hot_spare_stays_one_when_a_worker_dies(tmp_path: Path) -> None:
    with summing(tmp_path, 3, "1:2") as job:
        for generation in range(1, 4):
            job.until(f"generation {generation} sums to 2 of 2", 2)
            kill_worker(job, "trainer/1", generation)
        job.until("generation 4 sums to 2 of 2", 2)
        ordered = starts(finish(job))
        assert Counter(start.generation for start in ordered) == {1: 2, 2: 2, 3: 2, 4: 2}


@pytest.mark.slow
def test_the_node_of_rank_0_and_of_the_store_is_lost(tmp_path: Path) -> None:
    with summing(tmp_path, 3, "2:3", "--fail", "node0@step=trainer,5") as job:
        job.until("generation 1 sums to 3 of 3", 3)
        job.until("generation 2 sums to 2 of 2", 2)
        lines = finish(job)
        first, second = (
            [start for start in starts(lines) if start.generation == number and start.rank == 0] for number in (1, 2)
        )
        assert first[0].node == "node0" and second[0].node != "node0"
        assert first[0].master_port != second[0].master_port  # nothing of a dead generation can be read


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aaa", "zzz"])
def test_a_node_of_any_name_joins_a_running_job(tmp_path: Path, name: str) -> None:
    with summing(tmp_path, 2, "2:3", "--fail", f"{name}@step=trainer,3:add") as job:
        job.until("generation 2 sums to 3 of 3", 3)
        newest = {
            str(start.replica): (start.node, start.rank) for start in starts(finish(job)) if start.generation == 2
        }
        assert newest["trainer/2"] == (name, 2)  # whoever was there keeps its rank


@pytest.mark.slow
def test_a_worker_that_ignores_sigterm_delays_a_restart_by_its_stop_grace_only(tmp_path: Path) -> None:
    with summing(tmp_path, 2, "2", env={"STUBBORN": "trainer/0"}) as job:
        job.until("generation 1 sums to 2 of 2", 2)
        kill_worker(job, "trainer/1", 1)
        job.until("generation 2 sums to 2 of 2", 2)
        lines = finish(job)
        died = next(x.t_ns for x in lines if isinstance(x, Record) and isinstance(x.event, ReplicaExited))
        again = next(line.t_ns for line in lines if any(s.generation == 2 for s in starts([line])))
        assert 2 <= (again - died) / 1e9 < 15  # SIGKILL after 2 s; torchrun waits 30 s, whatever it is told


@pytest.mark.slow
def test_the_failure_of_a_worker_beside_a_finished_one_restarts_both_at_once(tmp_path: Path) -> None:
    with summing(tmp_path, 2, "2", env={"EARLY": "trainer/0"}) as job:
        job.until("trainer/0: finished")
        kill_worker(job, "trainer/1", 1)
        job.until("generation 2 sums to 2 of 2", 2)
        assert Counter(str(start.replica) for start in starts(finish(job))) == {"trainer/0": 2, "trainer/1": 2}


@pytest.mark.slow
def test_no_worker_outlives_its_agent(tmp_path: Path) -> None:
    with summing(tmp_path, 2, "1:2") as job:
        job.until("generation 1 sums to 2 of 2", 2)
        worker = int((job.run_dir / "trainer/1/attempt_1/0/pid").read_text())
        own = job.named("flowdist.runtime.agent.guardian")
        guardian = next(pid for pid in own if is_guardian_of(pid, "node1"))
        _, agent = [pid for pid in children(guardian) if pid in own][:2]
        with Deaths([worker, guardian]) as deaths:
            os.kill(agent, signal.SIGKILL)
            assert deaths.survivors() == []
        job.until("sums to 2 of 2", 2)  # the node is taken back
        finish(job)
