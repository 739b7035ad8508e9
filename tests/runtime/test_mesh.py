"""Meshes on real processes: of the sizes that a generation has, and all_to_all with its gradient."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flowdist
from flowdist.errors import FlowdistError
from tests.runtime.harness import Job
from tests.runtime.hosts import free_port

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

TRAINER = """
import torch, torch.distributed as dist
from flowdist import worker

mesh = worker.mesh()
assert worker.mesh() is mesh
sizes = dict(zip(mesh.mesh_dim_names, mesh.mesh.shape))
ones = torch.ones(1)
dist.all_reduce(ones, group=mesh["dp"].get_group())
print("mesh", sizes, "sum over dp", int(ones), flush=True)
dist.barrier()
worker.progress(1)
if worker.info().generation == 1:
    open("never").read()
"""
TOPOLOGY = """
from flowdist import Node, Topology
t = Topology("mesh", nodes=4 * [Node(cpu=1)])
t.role("trainer", ["python", "trainer.py"], replicas="2:4", cpu=1, parallel={"pp": 2, "dp": "elastic"})
"""


@pytest.mark.slow
def test_the_elastic_dimension_shrinks_and_half_a_pipeline_is_never_formed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    with Job(tmp_path, "--fail", "node1@step=trainer,1") as job:
        assert job.finish() == 0, job.text
        assert job.alive() == []
    meshes = re.findall(r"mesh (\{.*?\}) sum over dp (\d)", job.text)
    assert meshes == [("{'pp': 2, 'dp': 2}", "2")] * 4 + [("{'pp': 2, 'dp': 1}", "1")] * 2


def exchange(uneven: bool) -> tuple[list[list[float]], list[list[float]]]:
    """What a rank receives of its neighbours, and the gradient of a sum that weighs it with its place there."""
    import torch

    from flowdist.worker.device_mesh import all_to_all, mesh

    made = mesh(backends={"ep": "gloo"})
    rank = made.get_local_rank("ep")
    rows = 3 if uneven else 4
    own = (torch.arange(rows * 2.0).reshape(rows, 2) + 10 * rank).requires_grad_()
    splits = {"input_splits": [1, 2] if rank == 0 else [2, 1]} if uneven else {"scatter": 0, "gather": 1}
    received = all_to_all(own, made, "ep", **splits)
    weights = torch.arange(received.numel() * 1.0).reshape(received.shape) + 100 * rank
    (received * weights).sum().backward()
    assert own.grad is not None
    return received.tolist(), own.grad.tolist()


@pytest.mark.slow
def test_all_to_all_of_equal_pieces_and_its_gradient(tmp_path: Path) -> None:
    results = flowdist.launch(exchange, (False,), procs=4, parallel={"dp": "elastic", "ep": 2}, runs=tmp_path)
    (first, gradient), (second, _) = results[:2]
    # rank 0 keeps rows 0 and 1 of its own four and gets those of rank 1 beside them
    assert first == [[0, 1, 10, 11], [2, 3, 12, 13]]
    assert second == [[4, 5, 14, 15], [6, 7, 16, 17]]
    # the gradient of each number is the weight of the place that it went to
    assert gradient == [[0, 1], [4, 5], [100, 101], [104, 105]]
    assert results[2:] == results[:2], "the other copy of the dimension is a group of its own"


@pytest.mark.slow
def test_all_to_all_of_uneven_pieces_and_its_gradient(tmp_path: Path) -> None:
    results = flowdist.launch(exchange, (True,), procs=2, parallel={"ep": 2}, runs=tmp_path, start="spawn")
    (first, gradient), (second, other) = results
    assert first == [[0, 1], [10, 11], [12, 13]] and second == [[2, 3], [4, 5], [14, 15]]
    assert gradient == [[0, 1], [100, 101], [102, 103]] and other == [[2, 3], [4, 5], [104, 105]]


ENDING = """
import atexit, os, sys, time
from flowdist.worker.device_mesh import mesh

def threads():
    return len(os.listdir("/proc/self/task"))

def say():
    while "fail" not in sys.argv and threads() > before:
        time.sleep(0.01)
    print("ended" if threads() < during else "left")

atexit.register(say)
before = threads()
held = mesh({"dp": "elastic", "tp": 1})
during = threads()
assert "fail" not in sys.argv
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code", "groups"), [("well", 0, "ended"), ("fail", 1, "left")])
def test_the_groups_of_a_mesh_end_with_a_script_but_an_exception_waits_for_nobody(
    how: str, code: int, groups: str
) -> None:
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-c", ENDING, how]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stdout) == (code, f"{groups}\n"), run.stderr


@pytest.mark.slow
def test_one_process_is_a_mesh_too_and_what_forms_none_is_refused(tmp_path: Path) -> None:
    assert flowdist.launch(mesh_names, parallel={"dp": "elastic", "tp": 1}) == [("dp", "tp")]
    with pytest.raises(FlowdistError, match="forms no mesh of one process"):
        flowdist.launch(mesh_names, parallel={"tp": 2})
    with pytest.raises(FlowdistError, match="start='fork' is no way"):
        flowdist.launch(mesh_names, procs=2, start="fork")  # type: ignore[arg-type]
    with pytest.raises(FlowdistError, match="1 error in the topology"):
        flowdist.launch(mesh_names, procs=3, parallel={"tp": 2}, runs=tmp_path)


def mesh_names() -> tuple[str, ...]:
    import torch.distributed as dist

    from flowdist.worker.device_mesh import mesh

    try:
        return tuple(mesh().mesh_dim_names or ())
    finally:
        dist.destroy_process_group()
