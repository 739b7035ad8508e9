"""Lightning: a checkpoint at the end of each epoch, written under another name, then renamed; fit goes on from it."""

import argparse
import glob
import logging
import os
import random
import warnings

import lightning as L
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Points(Dataset):
    def __init__(self, n=112):
        self.x = torch.randn(n, 5, generator=torch.Generator().manual_seed(19))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        return x + random.gauss(0, 0.1), (x.sum() > 0).long()


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 2))
        self.best = float("inf")

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        self.best = min(self.best, mean.item() / dist.get_world_size())
        if self.global_rank == 0:
            print(f"step {self.global_step + 1} loss {mean.item() / dist.get_world_size()!r}", flush=True)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
        sched = torch.optim.lr_scheduler.StepLR(opt, 5, gamma=0.8)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint):  # all ranks come here, rank 0 writes
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, (random.getstate(), torch.get_rng_state()))
        checkpoint["random"] = states
        checkpoint["best"] = self.best

    def on_load_checkpoint(self, checkpoint):
        self.random = checkpoint["random"][dist.get_rank()]
        self.best = checkpoint["best"]
        print("resumed from step", checkpoint["global_step"], flush=True)

    def on_train_start(self):
        if hasattr(self, "random"):
            random.setstate(self.random[0])
            torch.set_rng_state(self.random[1])


class Keep(L.Callback):
    def __init__(self, out):
        self.out = out

    def on_train_epoch_end(self, trainer, module):
        path = f"{self.out}/step_{trainer.global_step:05d}.ckpt"
        trainer.save_checkpoint(path + ".tmp")
        if trainer.is_global_zero:
            with open(path + ".tmp", "rb") as f:
                os.fsync(f.fileno())
            os.replace(path + ".tmp", path)
            prune(self.out)
            print("saved step", trainer.global_step, flush=True)


def prune(out):
    for old in sorted(glob.glob(f"{out}/step_*.ckpt"))[:-2]:
        os.remove(old)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="ckpt")
    args.add_argument("--steps", type=int, default=28)
    args = args.parse_args()
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        prune(args.out)
    found = sorted(glob.glob(f"{args.out}/step_*.ckpt"))
    loader = DataLoader(Points(), batch_size=8, shuffle=True, generator=torch.Generator())
    epochs = args.steps // (len(loader) // world)  # with max_steps Lightning 2.6 goes on wrongly from an epoch's end
    torch.manual_seed(8)
    model = Model()
    random.seed(70 + rank)
    torch.manual_seed(70 + rank)
    trainer = L.Trainer(
        accelerator="cpu", strategy="ddp", devices=world, max_epochs=epochs, callbacks=[Keep(args.out)],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader, ckpt_path=found[-1] if found else None, weights_only=False)


if __name__ == "__main__":
    main()
