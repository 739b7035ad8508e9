"""Lightning's Trainer with samples that are the same with 1, 2 and 4 ranks. It saves at the end of each epoch.

flowdist torchrun --nproc-per-node 2 --max-restarts 3 examples/frameworks/samples_lightning.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flowdist import worker


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    seed_everything(1, verbose=False)
    inputs = torch.randn(128, 16)
    samples = worker.samples(len(inputs), global_batch=16, micro_batch=4, seed=1)
    last = options.folder / "last.ckpt"
    start = torch.load(last, weights_only=False)["global_step"] if last.exists() else 0
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_sampler=samples.sampler(start))
    saving = ModelCheckpoint(options.folder, save_last=True)
    trainer = Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        use_distributed_sampler=False,  # the sampler has this rank's share already
        accumulate_grad_batches=samples.accumulation,
        max_epochs=options.epochs,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, data, ckpt_path="last")  # begins anew if there is no checkpoint
    if trainer.is_global_zero:
        print("final", sum(value.double().square().sum().item() for value in model.parameters()), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
