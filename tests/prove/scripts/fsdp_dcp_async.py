"""FSDP2 with dcp.async_save: the file `latest` names the newest step_N whose write is done; what it does not know of is
no checkpoint."""

import argparse
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(10, 20), nn.Linear(20, 20)])
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(20, 4)

    def forward(self, x):
        for layer in self.body:
            x = self.drop(layer(x).tanh())
        return self.head(x)


def latest(out):
    try:
        with open(f"{out}/latest") as f:
            return int(f.read())
    except FileNotFoundError:
        return None


def clean(out, keep):
    for d in sorted(os.listdir(out)):
        if d.startswith("step_") and d not in [f"step_{k}" for k in keep]:
            shutil.rmtree(f"{out}/{d}")


def finish(out, pending):
    """Waits for the write and makes it the one to start from."""
    step, future = pending
    future.result()
    dist.barrier()
    if dist.get_rank() == 0:
        with open(f"{out}/latest.tmp", "w") as f:
            f.write(str(step))
            f.flush()
            os.fsync(f.fileno())
        os.replace(f"{out}/latest.tmp", f"{out}/latest")
        clean(out, [step])
        print("saved step", step, flush=True)


def everything(model, opt, sched, progress, rank):
    weights, moments = get_state_dict(model, opt)
    return {
        "model": weights,
        "opt": moments,
        "sched": sched.state_dict(),
        "progress": dict(progress),
        f"rng{rank}": torch.get_rng_state(),
    }


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="ckpt")
    args.add_argument("--steps", type=int, default=24)
    args.add_argument("--every", type=int, default=6)
    args = args.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    writers = dist.new_group(backend="gloo")  # the writing threads talk here, the training does not
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(6)
    model = Net()
    mesh = init_device_mesh("cpu", (world,))
    for part in (*model.body, model):
        fully_shard(part, mesh=mesh)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=60)
    g = torch.Generator().manual_seed(12)
    x = torch.randn(120, 10, generator=g)
    y = (x[:, :4] + 0.3 * torch.randn(120, 4, generator=g)).argmax(1)
    torch.manual_seed(40 + rank)
    progress = {"step": 0, "epoch": 0, "batch": 0, "best": 1e9}
    if (start := latest(args.out)) is not None:
        state = everything(model, opt, sched, progress, rank)
        dcp.load(state, checkpoint_id=f"{args.out}/step_{start}")
        set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["opt"])
        sched.load_state_dict(state["sched"])
        progress = state["progress"]
        torch.set_rng_state(state[f"rng{rank}"])
        print("resumed from step", progress["step"], flush=True)
    dist.barrier()  # all have read before one removes
    if rank == 0:
        clean(args.out, [start])
    dist.barrier()
    pending = None
    while progress["step"] < args.steps:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(50 + progress["epoch"]))
        mine = order.view(-1, world, 6)[progress["batch"], rank]
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        progress["best"] = min(progress["best"], total.item() / world)
        progress["step"] += 1
        progress["batch"] += 1
        if progress["batch"] == len(x) // (6 * world):
            progress["epoch"], progress["batch"] = progress["epoch"] + 1, 0
        if rank == 0:
            print(f"step {progress['step']} loss {total.item() / world!r}", flush=True)
        if pending and progress["step"] - pending[0] == 3:
            finish(args.out, pending)
            pending = None
        if progress["step"] % args.every == 0:
            state = everything(model, opt, sched, progress, rank)
            path = f"{args.out}/step_{progress['step']}"
            pending = progress["step"], dcp.async_save(state, checkpoint_id=path, process_group=writers)
    if pending:
        finish(args.out, pending)
    dist.barrier()
    time.sleep(0.02)  # gloo's threads come to rest; torn down at once they now and then wait for the GIL for ever
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
