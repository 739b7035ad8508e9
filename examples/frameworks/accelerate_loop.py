"""A training loop with Accelerate that saves its state after each epoch, and goes on from there.

flowdist torchrun --nproc-per-node 2 --max-restarts 3 examples/frameworks/accelerate_loop.py
torchrun --nproc-per-node 2 examples/frameworks/accelerate_loop.py       the same file, unchanged
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    # Without a seedable sampler, the order of the data in the next epochs is not in the saved state.
    loading = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=loading)
    set_seed(1)
    inputs = torch.randn(128, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model, optimizer, scheduler, data = accelerator.prepare(model, optimizer, scheduler, data)
    for epoch in range(resume(accelerator, options.folder), options.epochs):
        data.set_epoch(epoch)
        for x, y in data:
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        save(accelerator, options.folder, epoch)
    accelerator.print("final", sum(value.double().square().sum().item() for value in model.parameters()))
    accelerator.end_training()


def resume(accelerator: Accelerator, folder: Path) -> int:
    """Load the newest checkpoint, and return the epoch that comes next."""
    epochs = [int(path.name.removeprefix("epoch-")) for path in folder.glob("epoch-*")]
    if not epochs:
        return 0
    accelerator.load_state(str(folder / f"epoch-{max(epochs)}"))
    return max(epochs) + 1


def save(accelerator: Accelerator, folder: Path, epoch: int) -> None:
    """Save under another name first: a folder that is called epoch-N is complete."""
    accelerator.save_state(str(folder / "new"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "new").rename(folder / f"epoch-{epoch}")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
