"""torchdata's StatefulDataLoader: the loader itself tells and takes back its position, one state for each rank."""

import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


class Rows(Dataset):
    def __init__(self):
        self.table = np.random.default_rng(12).normal(size=(120, 9)).astype("float32")

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        return torch.from_numpy(self.table[i, :8]), torch.tensor(float(self.table[i, :3].prod()))


def save(path, state):
    with open(path + ".part", "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".part", path)
    print("saved step", state["step"], flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="ckpt")
    args.add_argument("--steps", type=int, default=32)
    args.add_argument("--every", type=int, default=8)
    args.add_argument("--workers", type=int, default=0)
    args = args.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    os.makedirs(args.out, exist_ok=True)
    data = Rows()
    sampler = StatefulDistributedSampler(data, world, rank, shuffle=True, seed=6)
    loader = StatefulDataLoader(
        data, batch_size=6, sampler=sampler, num_workers=args.workers, generator=torch.Generator()
    )
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Dropout(0.3), nn.Linear(12, 1))
    model = DistributedDataParallel(net)
    opt = torch.optim.RMSprop(model.parameters(), lr=0.02, momentum=0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=2)
    torch.manual_seed(60 + rank)
    path, step, epoch, recent = f"{args.out}/last.pt", 0, 0, []
    if os.path.exists(path):
        state = torch.load(path, weights_only=False)
        net.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        plateau.load_state_dict(state["plateau"])
        step, epoch, recent = state["step"], state["epoch"], state["recent"]
        loader.load_state_dict(state["ranks"][rank]["loader"])
        torch.set_rng_state(state["ranks"][rank]["torch"])
        print("resumed from step", step, flush=True)
    dist.barrier()
    while step < args.steps:
        sampler.set_epoch(epoch)
        loader.generator.manual_seed(epoch * world + rank)  # the workers' seeds
        for x, y in loader:
            x = x + 0.05 * torch.randn(x.shape)
            loss = nn.functional.smooth_l1_loss(model(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            total = loss.detach().clone()
            dist.all_reduce(total)
            recent = [*recent[-3:], total.item() / world]
            plateau.step(sum(recent) / len(recent))
            if rank == 0:
                print(f"step {step} loss {total.item() / world!r}", flush=True)
            if step % args.every == 0 or step == args.steps:
                ranks = [None] * world
                dist.all_gather_object(ranks, {"loader": loader.state_dict(), "torch": torch.get_rng_state()})
                if rank == 0:
                    state = dict(step=step, epoch=epoch, recent=recent, ranks=ranks, model=net.state_dict())
                    save(path, {**state, "opt": opt.state_dict(), "plateau": plateau.state_dict()})
            if step == args.steps:
                break
        epoch += 1
    dist.barrier()
    time.sleep(0.02)  # gloo's threads come to rest; torn down at once they now and then wait for the GIL for ever
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
