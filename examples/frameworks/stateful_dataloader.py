"""torchdata's StatefulDataLoader: a run that is interrupted in the middle of an epoch goes on with the next batch.

flowdist torchrun --nproc-per-node 2 --max-restarts 3 examples/frameworks/stateful_dataloader.py
torchrun --nproc-per-node 2 examples/frameworks/stateful_dataloader.py       the same file, unchanged
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    inputs = torch.randn(128, 16)
    sampler = StatefulDistributedSampler(TensorDataset(inputs, inputs.sum(1, keepdim=True)), seed=1)
    data = StatefulDataLoader(sampler.dataset, batch_size=8, sampler=sampler, num_workers=1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    newest = options.folder / "newest.pt"
    first, step = resume(newest, model, optimizer, data) if newest.exists() else (0, 0)
    ddp = DistributedDataParallel(model)
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        for x, y in data:
            loss = nn.functional.mse_loss(ddp(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 3 == 0:
                say(f"step {step}: loss {loss.item():.4f}")
                save(newest, {"model": model, "optimizer": optimizer}, data, {"epoch": epoch, "step": step})
    say(f"final {sum(value.double().square().sum().item() for value in model.parameters())}")
    dist.destroy_process_group()


def save(path: Path, parts: dict[str, Any], data: StatefulDataLoader, position: dict[str, int]) -> None:
    """Save the parts once and the position in the data of every rank; the file is complete when it has its name."""
    positions: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(positions, data.state_dict())
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, **position, "data": positions}, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)


def resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, data: StatefulDataLoader) -> tuple[int, int]:
    """Load the checkpoint, and return the epoch and the step of it."""
    saved = torch.load(path, weights_only=False)  # the position is a tree of Python objects
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    data.load_state_dict(saved["data"][dist.get_rank()])
    return saved["epoch"], saved["step"]


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
