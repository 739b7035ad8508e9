"""A loop by hand, without DDP: batches from a seeded permutation, gradients summed by all_reduce, a loss scale with
growth and backoff. A checkpoint is a folder of two files, complete when it has its name."""

import argparse
import os
import re
import shutil
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

N, BATCH = 144, 6


def saved(out):
    return sorted(d for d in os.listdir(out) if re.fullmatch(r"step_\d{5}", d))


def tidy(out):
    shutil.rmtree(f"{out}/new", ignore_errors=True)
    for old in saved(out)[:-2]:
        os.rename(f"{out}/{old}", f"{out}/old")
        shutil.rmtree(f"{out}/old")


def write(path, writer):
    with open(path, "wb") as f:
        writer(f)
        f.flush()
        os.fsync(f.fileno())


def save(out, weights, rest):
    os.mkdir(f"{out}/new")
    write(f"{out}/new/weights.npz", lambda f: np.savez(f, **weights))
    write(f"{out}/new/rest.pt", lambda f: torch.save(rest, f))
    os.replace(f"{out}/new", f"{out}/step_{rest['step']:05d}")
    tidy(out)
    print("saved step", rest["step"], flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="ckpt")
    args.add_argument("--steps", type=int, default=36)
    args.add_argument("--every", type=int, default=7)
    args = args.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    os.makedirs(args.out, exist_ok=True)
    g = torch.Generator().manual_seed(4)
    data = torch.randn(N, 6, generator=g)
    target = (data[:, :1] * data[:, 1:2]).tanh() + data[:, 2:3]
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 1))
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    noise = np.random.default_rng([8, rank])
    torch.manual_seed(20 + rank)
    step, scale, good, lr_drops, worst = 0, 256.0, 0, 0, 0.0
    if found := saved(args.out):
        with np.load(f"{args.out}/{found[-1]}/weights.npz") as f:
            model.load_state_dict({k: torch.from_numpy(f[k]) for k in f.files})
        rest = torch.load(f"{args.out}/{found[-1]}/rest.pt", weights_only=False)
        opt.load_state_dict(rest["opt"])
        step, worst, lr_drops = rest["step"], rest["worst"], rest["lr_drops"]
        scale, good = rest["scale"], rest["good"]
        noise.bit_generator.state = rest["noise"][rank]
        torch.set_rng_state(rest["torch"][rank])
        print("resumed from step", step, flush=True)
    dist.barrier()  # all have read before one removes
    if rank == 0:
        shutil.rmtree(f"{args.out}/old", ignore_errors=True)
        tidy(args.out)
    per_epoch = N // (BATCH * world)
    while step < args.steps:
        epoch, i = divmod(step, per_epoch)
        order = torch.randperm(N, generator=torch.Generator().manual_seed(100 + epoch))
        mine = order[rank::world][i * BATCH : (i + 1) * BATCH]
        x = data[mine] + torch.from_numpy(noise.normal(0, 0.05, (BATCH, 6))).float()
        loss = nn.functional.mse_loss(model(x), target[mine])
        opt.zero_grad()
        (loss * scale).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        peak = max(p.grad.abs().max().item() for p in model.parameters())
        if peak < 2000:  # what a half float would bear, made small
            for p in model.parameters():
                p.grad.div_(scale * world)
            opt.step()
            good += 1
            if good % 4 == 0:
                scale *= 2
        else:
            scale, good = scale / 2, 0
        step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        worst = max(worst, total.item() / world)
        if step % 12 == 0:
            lr_drops += 1
            opt.param_groups[0]["lr"] = 0.02 * 0.7**lr_drops
        if rank == 0:
            print(f"step {step} loss {total.item() / world!r}", flush=True)
        if step % args.every == 0 or step == args.steps:
            states = [None] * world
            dist.all_gather_object(states, (noise.bit_generator.state, torch.get_rng_state()))
            if rank == 0:
                rest = dict(step=step, scale=scale, good=good, worst=worst, lr_drops=lr_drops, opt=opt.state_dict())
                rest.update(noise=[s[0] for s in states], torch=[s[1] for s in states])
                save(args.out, {k: v.numpy() for k, v in model.state_dict().items()}, rest)
    dist.barrier()
    time.sleep(0.02)  # gloo's threads come to rest; torn down at once they now and then wait for the GIL for ever
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
