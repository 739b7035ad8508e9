"""FSDP2 whose workers stay in place: those that are left keep their process, and take their shards from memory.

flowdist run examples/frameworks/memory_topology.py -p script=memory_in_place.py --fail node1@step=trainer,12
"""

from __future__ import annotations

import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from flowdist import worker

STEPS = 30


def train(state: worker.ElasticState) -> None:
    """Train from the last snapshot. What is sharded holds on to its process group, so it is made here, each time."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    inputs = torch.randn(512, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    if (found := worker.restore(mesh=mesh)) is not None:
        start, kept = found
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    if dist.get_rank() == 0:
        print(f"begins at step {start}", flush=True)
    print(f"process {os.getpid()} is rank {dist.get_rank()}", flush=True)
    for step in range(start + 1, STEPS + 1):
        x = inputs[torch.arange(dist.get_rank(), 512, dist.get_world_size())]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
        worker.snapshot(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        worker.progress(step)
    values = [value.full_tensor().detach().numpy().tobytes() for value in model.parameters()]
    if dist.get_rank() == 0:
        print(f"final {hashlib.sha256(b''.join(values)).hexdigest()}", flush=True)


if __name__ == "__main__":
    worker.elastic(train, worker.ElasticState(), backend="gloo")
