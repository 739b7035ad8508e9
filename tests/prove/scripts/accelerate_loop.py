"""accelerate: save_state into a folder of its own, renamed when all ranks are done; load_state, skip_first_batches."""

import argparse
import os
import re
import shutil
import time

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Progress:
    """What accelerate knows nothing of: where the training is, the best loss, the averaged weights."""

    def __init__(self, model):
        self.step, self.best = 0, float("inf")
        self.average = {k: v.clone() for k, v in model.state_dict().items()}

    def state_dict(self):
        return {"step": self.step, "best": self.best, "average": self.average}

    def load_state_dict(self, state):
        self.step, self.best = state["step"], state["best"]
        self.average = state["average"]


def saved(out):
    return sorted((d for d in os.listdir(out) if re.fullmatch(r"step_\d+", d)), key=lambda d: int(d[5:]))


def clean(out):
    for d in [d for d in os.listdir(out) if d.startswith("_")]:
        shutil.rmtree(f"{out}/{d}")
    for d in saved(out)[:-2]:
        os.rename(f"{out}/{d}", f"{out}/_{d}")
        shutil.rmtree(f"{out}/_{d}")


def save(acc, out, step):
    acc.save_state(f"{out}/_new", safe_serialization=True)
    acc.wait_for_everyone()
    if acc.is_main_process:
        for name in os.listdir(f"{out}/_new"):
            with open(f"{out}/_new/{name}", "rb") as f:
                os.fsync(f.fileno())
        os.replace(f"{out}/_new", f"{out}/step_{step}")
        clean(out)
        print("saved step", step, flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="ckpt")
    args.add_argument("--steps", type=int, default=30)
    args.add_argument("--every", type=int, default=7)
    args = args.parse_args()
    torch.set_num_threads(1)
    acc = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=9))
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.GELU(), nn.Dropout(0.25), nn.Linear(20, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=0.05)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 0.97**n)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(160, 6, generator=g)
    y = x[:, :3].argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(2))
    model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
    progress = Progress(acc.unwrap_model(model))
    acc.register_for_checkpointing(progress)
    set_seed(100, device_specific=True)
    if found := saved(args.out):
        acc.load_state(f"{args.out}/{found[-1]}")
        acc.print("resumed from step", progress.step, flush=True)
    acc.wait_for_everyone()  # all have read before one removes
    if acc.is_main_process:
        clean(args.out)
    acc.wait_for_everyone()
    while progress.step < args.steps:
        epoch, done = divmod(progress.step, len(loader))
        loader.set_epoch(epoch)
        batches = acc.skip_first_batches(loader, done) if done else loader
        for bx, by in batches:
            bx = bx + 0.1 * torch.randn(bx.shape)
            loss = nn.functional.cross_entropy(model(bx), by)
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
            progress.step += 1
            for k, v in acc.unwrap_model(model).state_dict().items():
                progress.average[k].lerp_(v, 0.2)
            total = acc.reduce(loss.detach(), "mean").item()
            progress.best = min(progress.best, total)
            acc.print(f"step {progress.step} loss {total!r}", flush=True)
            if progress.step % args.every == 0 or progress.step == args.steps:
                save(acc, args.out, progress.step)
            if progress.step == args.steps:
                break
    acc.wait_for_everyone()
    time.sleep(0.02)  # gloo's threads come to rest; torn down at once they now and then wait for the GIL for ever
    acc.end_training()


if __name__ == "__main__":
    main()
