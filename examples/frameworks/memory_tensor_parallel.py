"""Tensor parallelism over pairs of ranks, FSDP2 over the pairs, and snapshots of both in the memory of nodes.

flowdist run examples/frameworks/memory_topology.py -p script=memory_tensor_parallel.py --fail node1@step=trainer,12
torchrun --nproc-per-node 4 examples/frameworks/memory_tensor_parallel.py    the same file, unchanged, without memory
"""

from __future__ import annotations

import argparse
import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from flowdist import worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    inputs = torch.randn(512, 16)
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer, start = torch.optim.AdamW(model.parameters(), lr=1e-2), 0
    if (found := worker.restore(mesh=mesh)) is not None:  # this rank's shards, as DTensors on the same mesh again
        start, state = found
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    say(f"begins at step {start}")
    share = {"rank": mesh.get_local_rank("dp"), "ranks": mesh["dp"].size()}  # a pair computes the same samples
    samples = worker.samples(len(inputs), global_batch=32, micro_batch=16, seed=1, **share)
    for batch in samples.steps(start, options.steps):
        optimizer.zero_grad()
        x = inputs[batch.samples]
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
        step = batch.step + 1
        worker.snapshot(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})  # every 5th is kept
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
