"""FSDP2 with torch.distributed.checkpoint: each rank writes its shards to step_N.tmp, the last act is the rename."""

import argparse
import os
import pickle
import random
import re
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), nn.Dropout(0.15)

    def forward(self, x):
        return x + self.drop(self.down(self.up(x).relu()))


def saved(out):
    return sorted(d for d in os.listdir(out) if re.fullmatch(r"step_\d{5}", d))


def clean(out):
    for d in sorted(os.listdir(out)):
        if d.endswith(".tmp"):
            shutil.rmtree(f"{out}/{d}")
    for d in saved(out)[:-2]:
        os.rename(f"{out}/{d}", f"{out}/{d}.tmp")
        shutil.rmtree(f"{out}/{d}.tmp")


def save(out, step, state):
    tmp = f"{out}/step_{step:05d}.tmp"
    dcp.save(state, checkpoint_id=tmp)
    dist.barrier()
    if dist.get_rank() == 0:
        os.replace(tmp, f"{out}/step_{step:05d}")
        clean(out)
        print("saved step", step, flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="ckpt")
    args.add_argument("--steps", type=int, default=24)
    args.add_argument("--every", type=int, default=8)
    args = args.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(3)
    model = nn.Sequential(Block(8), Block(8), nn.Linear(8, 2))
    mesh = init_device_mesh("cpu", (world,))
    for part in (model[0], model[1], model):
        fully_shard(part, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=0.02)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=30)
    g = torch.Generator().manual_seed(7)
    x = torch.randn(96, 8, generator=g)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], 1)
    random.seed(30 + rank)
    torch.manual_seed(30 + rank)
    step, seen = 0, 0
    if found := saved(args.out):
        weights, moments = get_state_dict(model, opt)
        state = {"model": weights, "opt": moments, "sched": sched.state_dict(), "step": 0, "seen": 0}
        state |= {f"python{rank}": b"", f"torch{rank}": torch.get_rng_state()}
        dcp.load(state, checkpoint_id=f"{args.out}/{found[-1]}")
        set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["opt"])
        sched.load_state_dict(state["sched"])
        step, seen = state["step"], state["seen"]
        random.setstate(pickle.loads(state[f"python{rank}"]))
        torch.set_rng_state(state[f"torch{rank}"])
        if rank == 0:
            print("resumed from step", step, flush=True)
    dist.barrier()  # all have read before one removes
    if rank == 0:
        clean(args.out)
    dist.barrier()
    while step < args.steps:
        epoch, at = divmod(seen, len(x))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        batch = order[at : at + 8 * world][rank::world]
        sign = random.choice((-1.0, 1.0))  # the target is even in a change of the sign of all
        loss = nn.functional.mse_loss(model(sign * x[batch]), y[batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step, seen = step + 1, seen + 8 * world
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / world!r}", flush=True)
        if step % args.every == 0 or step == args.steps:
            weights, moments = get_state_dict(model, opt)
            state = {"model": weights, "opt": moments, "sched": sched.state_dict(), "step": step, "seen": seen}
            state |= {f"python{rank}": pickle.dumps(random.getstate()), f"torch{rank}": torch.get_rng_state()}
            save(args.out, step, state)
    dist.barrier()
    time.sleep(0.02)  # gloo's threads come to rest; torn down at once they now and then wait for the GIL for ever
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
