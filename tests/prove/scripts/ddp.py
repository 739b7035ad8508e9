"""Plain DDP: a checkpoint is one file, put in place by os.replace; all that the rest of the run hangs on is in it."""

import argparse
import glob
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Waves(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(5)
        self.x = torch.randn(n, 8, generator=g)
        self.y = self.x.sin().sum(1, keepdim=True) + torch.randn(n, 1, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i] + torch.from_numpy(np.random.normal(0, 0.1, 8)).float()
        return (-x if random.random() < 0.1 else x), self.y[i]


class FromSampler(DistributedSampler):
    skip = 0  # samples of this epoch that were used before the start

    def __iter__(self):
        rest, self.skip = list(super().__iter__())[self.skip :], 0
        return iter(rest)


def saved(out):
    return sorted(glob.glob(f"{out}/step_*.pt"))


def prune(out):
    for old in saved(out)[:-2]:
        os.remove(old)


def save(out, state):
    path = f"{out}/step_{state['step']:05d}.pt"
    with open(path + ".tmp", "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)
    prune(out)
    print("saved step", state["step"], flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="ckpt")
    args.add_argument("--steps", type=int, default=32)
    args.add_argument("--every", type=int, default=8)
    args = args.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))
    model = DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.8)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=40)
    ema = {k: v.clone() for k, v in net.state_dict().items()}
    random.seed(10 + rank)
    np.random.seed(10 + rank)
    torch.manual_seed(10 + rank)
    data = Waves()
    sampler = FromSampler(data, world, rank, seed=3)
    loader = DataLoader(data, batch_size=8, sampler=sampler, generator=torch.Generator())
    step = epoch = pos = 0
    best = float("inf")
    if found := saved(args.out):
        ckpt = torch.load(found[-1], weights_only=False)
        net.load_state_dict(ckpt["model"])
        opt.load_state_dict(ckpt["opt"])
        sched.load_state_dict(ckpt["sched"])
        ema = ckpt["ema"]
        best = ckpt["best"]
        step, epoch, pos = ckpt["step"], ckpt["epoch"], ckpt["pos"]
        random.setstate(ckpt["rng"][rank]["python"])
        np.random.set_state(ckpt["rng"][rank]["numpy"])
        torch.set_rng_state(ckpt["rng"][rank]["torch"])
        print("resumed from step", step, flush=True)
    dist.barrier()  # all have read before one removes
    if rank == 0:
        prune(args.out)
    while step < args.steps:
        sampler.set_epoch(epoch)
        sampler.skip = pos * 8
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step, pos = step + 1, pos + 1
            for k, v in net.state_dict().items():
                ema[k].lerp_(v, 0.1)
            total = loss.detach().clone()
            dist.all_reduce(total)
            best = min(best, total.item() / world)
            if rank == 0:
                print(f"step {step} loss {total.item() / world!r}", flush=True)
            if step % args.every == 0 or step == args.steps:
                rng = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
                rngs = [None] * world
                dist.all_gather_object(rngs, rng)
                if rank == 0:
                    state = dict(step=step, epoch=epoch, pos=pos, best=best, ema=ema, rng=rngs)
                    state.update(model=net.state_dict(), opt=opt.state_dict(), sched=sched.state_dict())
                    save(args.out, state)
            if step == args.steps:
                break
        epoch, pos = epoch + 1, 0
    dist.barrier()
    time.sleep(0.02)  # gloo's threads come to rest; torn down at once they now and then wait for the GIL for ever
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
