"""ElasticState: committed values are restored, and sent to other ranks. With torch where tensors are needed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowdist import worker

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_values_are_attributes_and_come_back_as_they_were_committed() -> None:
    state = worker.ElasticState(step=0, seen=[1, {"a": 2}])
    state.step, state.seen[1]["a"] = 5, 3
    state.commit()
    state.step, state.seen[1]["a"] = 7, 4
    state.restore()
    assert (state.step, state.seen) == (5, [1, {"a": 3}])
    state.seen.append(9)  # what was restored is a copy, too
    state.restore()
    assert state.seen == [1, {"a": 3}]


def test_before_the_first_commit_it_is_as_it_was_made() -> None:
    state = worker.ElasticState(step=3)
    state.step = 4
    state.restore()
    assert state.step == 3


def test_a_value_that_comes_later_is_kept_from_its_first_commit() -> None:
    state = worker.ElasticState(step=0)
    state.best = 0.5
    state.commit()
    state.best = 0.1
    state.restore()
    assert state.best == 0.5


class Counter:
    """A value that is kept by its state_dict, without torch."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_a_state_dict_is_not_restored_to_what_cannot_load_it() -> None:
    state = worker.ElasticState(step=0, counter=Counter())
    state.counter, state.step = None, 1
    with pytest.raises(TypeError, match=r"ElasticState.counter is None, .* build it before ElasticState\(counter="):
        state.restore()
    assert state.step == 1  # nothing is restored in part
    del state.counter
    with pytest.raises(TypeError, match=r"ElasticState.counter is None"):
        state.restore()


def test_a_value_that_was_built_after_the_commit_is_again_what_it_was() -> None:
    state = worker.ElasticState(counter=None)
    state.counter = Counter()
    state.restore()
    assert state.counter is None


@pytest.mark.parametrize("name", ["commit", "restore", "sync", "_kept"])
def test_names_that_are_taken_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"cannot hold a value of the name '{name}': choose another"):
        worker.ElasticState(**{name: 1})


def test_without_a_process_group_sync_does_nothing() -> None:
    state = worker.ElasticState(step=1)
    state.sync()
    assert state.step == 1


@pytest.mark.slow
@needs_torch
def test_modules_and_optimizers_are_kept_by_their_state() -> None:
    import torch

    class Versioned(torch.nn.Linear):
        """A layer that has to know in which version of itself its values were saved."""

        _version = 2

        def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
            assert metadata["version"] == 2
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    model = torch.nn.Sequential(Versioned(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    state = worker.ElasticState(model=model, optimizer=optimizer)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()

    train()
    state.commit()
    kept = [value.clone() for value in model.state_dict().values()]
    moments = [entry["exp_avg"].clone() for entry in optimizer.state_dict()["state"].values()]
    for _ in range(2):  # the second time shows that training on did not change what was kept
        train()
        state.restore()
        assert state.model is model
        assert all(map(torch.equal, model.state_dict().values(), kept))
        assert all(map(torch.equal, (e["exp_avg"] for e in optimizer.state_dict()["state"].values()), moments))


TWO = """
import json, os, sys
import torch, torch.distributed as dist
from flowdist import worker

rank = 0
if os.fork() == 0:
    rank = 1
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)

def show(text):
    os.write(1, f"{name}|{rank}: {text}\\n".encode())

def show_state():
    show(f"{state.name} {state.step} {state.big.sum()} {state.half.sum()} {state.small}")

for name, script in json.load(open("scripts.json")).items():
    big = torch.full((1000,), float(rank))
    state = worker.ElasticState(big=big, half=big[:600].half(), small=torch.tensor([rank]), name=f"of {rank}", step=0)
    exec(script)
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    os.wait()
"""
SCRIPTS = {
    "rank 1 has committed": "if rank == 1:\n    state.step = 8\n    state.commit()\nstate.sync()\nshow_state()",
    "none has committed": "state.sync()\nshow_state()",
    "both have committed": "state.commit()\nstate.sync()\nshow_state()",
    "rank 0 has committed twice": """
if rank == 0:
    state.commit()
    state.commit()
state.sync()
state.name = f"new {rank}"
state.commit()
state.sync()
show_state()
""",
    "shards": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,))
state.big = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
try:
    state.commit()
    state.sync()
except TypeError:
    show(f"refused, {state.big.to_local().tolist()}")
""",
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What two ranks have printed in each of the scripts, in order of rank. They import torch once for all of them."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "two.py").write_text(TWO)
    (folder / "scripts.json").write_text(json.dumps(SCRIPTS))
    command = [sys.executable, "two.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=True)
    lines = [line.partition("|") for line in sorted(done.stdout.splitlines())]
    return {name: [text for of, _, text in lines if of == name] for name in SCRIPTS}


@pytest.mark.slow
@needs_torch
def test_the_rank_with_most_commits_tells_the_other(shown: dict[str, list[str]]) -> None:
    assert shown["rank 1 has committed"] == [
        "0: of 1 8 1000.0 600.0 tensor([1])",
        "1: of 1 8 1000.0 600.0 tensor([1])",
    ]


@pytest.mark.slow
@needs_torch
def test_of_several_the_lowest_rank_does(shown: dict[str, list[str]]) -> None:
    assert shown["none has committed"] == ["0: of 0 0 0.0 0.0 tensor([0])", "1: of 0 0 0.0 0.0 tensor([0])"]


@pytest.mark.slow
@needs_torch
def test_nothing_travels_where_all_have_as_many_commits(shown: dict[str, list[str]]) -> None:
    assert shown["both have committed"] == ["0: of 0 0 0.0 0.0 tensor([0])", "1: of 1 0 1000.0 600.0 tensor([1])"]


@pytest.mark.slow
@needs_torch
def test_the_number_of_commits_travels_too(shown: dict[str, list[str]]) -> None:
    lines = shown["rank 0 has committed twice"]
    assert [line.split(" ")[1:3] for line in lines] == [["new", "0"], ["new", "1"]]


@pytest.mark.slow
@needs_torch
def test_no_shard_of_one_rank_reaches_another(shown: dict[str, list[str]]) -> None:
    assert shown["shards"] == ["0: refused, [0.0, 1.0]", "1: refused, [2.0, 3.0]"]


SHARDED = """
import os
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import Linear, Sequential
from flowdist import worker

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))

def optimizer(model):
    return torch.optim.Adam(model.parameters())

def tensor(placement):
    return distribute_tensor(torch.ones(4, 2), mesh, [placement])

def fsdp(**options):
    return FullyShardedDataParallel(Linear(2, 2), device_id=torch.device("cpu"), **options)

split = Sequential(Linear(2, 2))
fully_shard(split, mesh=mesh)
values = {
    "shard": tensor(Shard(0)),
    "whole": tensor(Replicate()),  # its mesh is gone with the process group
    "deep": {"a": [1, tensor(Shard(0))]},
    "split": split,
    "its_optimizer": optimizer(split),
    "columns": parallelize_module(Sequential(Linear(2, 2)), mesh, {"0": ColwiseParallel()}),
    "wrapped": fsdp(),
    "inside": Sequential(fsdp()),
    "flat": optimizer(fsdp()),
    "original": optimizer(fsdp(use_orig_params=True)),
    "zero": ZeroRedundancyOptimizer(Linear(2, 2).parameters(), torch.optim.Adam),
}
for name, value in values.items():
    try:
        worker.ElasticState(**{name: value})
    except TypeError as error:
        print(name, "|", str(error).partition(" cannot hold ")[2].partition(":")[0], flush=True)
state = worker.ElasticState(step=0, model=torch.nn.parallel.DistributedDataParallel(Linear(2, 2)))
state.commit()
state.late = tensor(Shard(0))
try:
    state.commit()
except TypeError as error:
    print(error, flush=True)
os._exit(0)
"""


@pytest.mark.slow
@needs_torch
def test_what_is_sharded_over_the_ranks_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "sharded.py").write_text(SHARDED)
    command = [sys.executable, "-W", "ignore", "sharded.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    *refused, late = done.stdout.splitlines()
    assert refused == [
        "shard | shard, a DTensor",
        "whole | whole, a DTensor",
        "deep | deep['a'][1], a DTensor",
        "split | split.0.weight, a DTensor",
        "its_optimizer | a parameter of its_optimizer, a DTensor",
        "columns | columns.0.weight, a DTensor",
        "wrapped | wrapped, a FullyShardedDataParallel",
        "inside | inside.0, a FullyShardedDataParallel",
        "flat | a parameter of flat, a part of a parameter that FSDP has split",
        "original | a parameter of original, a part of a parameter that FSDP has split",
        "zero | zero, a ZeroRedundancyOptimizer",
    ]
    assert late.startswith("ElasticState(late=...) cannot hold late, a DTensor: its shards are on all ranks")
    assert "Build it in the function that elastic() calls, keep it with worker.snapshot() in a role with" in late
