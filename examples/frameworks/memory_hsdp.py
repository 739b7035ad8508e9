"""FSDP2 that shards over pairs of ranks and replicates over the pairs (HSDP), with its checkpoints in memory by DCP.

flowdist run examples/frameworks/memory_topology.py --fail node1@step=trainer,12
flowdist run examples/frameworks/memory_topology.py -p ranks=2:4 -p nodes=2 --fail node1@step=trainer,12
torchrun --nproc-per-node 4 examples/frameworks/memory_hsdp.py       the same file, unchanged, without memory
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from flowdist import worker


class Training(Stateful):
    """Everything that a snapshot has, in the form that torch.distributed.checkpoint saves and loads."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    torch.manual_seed(1)
    inputs = torch.randn(512, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("replicate", "shard")))
    training, start = Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2)), 0
    if (reader := worker.memory_reader()) is not None:  # this generation goes on from memory
        dcp.load({"training": training}, storage_reader=reader)
        start = reader.step
    say(f"begins at step {start} with {ranks} ranks")
    samples = worker.samples(len(inputs), global_batch=32, micro_batch=8, seed=1)
    for batch in samples.steps(start, options.steps):
        training.optimizer.zero_grad()
        for part in batch:
            x = inputs[part.samples]
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            (loss * ranks / samples.parts).backward()  # FSDP2 averages over the ranks
        training.optimizer.step()
        step = batch.step + 1
        if step % 5 == 0:
            dcp.save({"training": training}, storage_writer=worker.memory_writer(step))
        worker.progress(step)
    values = [value.full_tensor() for value in model.parameters()]
    digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in values)).hexdigest()
    say(f"final {sum(value.double().square().sum().item() for value in values)} {digest}")
    dist.destroy_process_group()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
