"""FSDP2 with torch.distributed.checkpoint: every rank saves its shards while training goes on.

flowdist torchrun --nproc-per-node 2 --max-restarts 3 examples/frameworks/fsdp2_checkpoint.py
torchrun --nproc-per-node 2 examples/frameworks/fsdp2_checkpoint.py       the same file, unchanged
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Training(Stateful):
    """Everything that a checkpoint has, in the form that torch.distributed.checkpoint saves and loads."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    savers = dist.new_group(backend="gloo")  # a saving thread must not use the group that training uses
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    if newest := newest_checkpoint(options.folder):
        dcp.load({"training": training}, checkpoint_id=str(newest))
    saving = None
    while training.step < options.steps:
        loss = train_one_step(training, device)
        if training.step % 5 == 0:
            say(f"step {training.step}: loss {loss:.4f}")
            if saving is not None:
                saving.result()  # one at a time; an error of the last one ends the run here
            folder = options.folder / f"step-{training.step}"
            saving = dcp.async_save({"training": training}, checkpoint_id=str(folder), process_group=savers)
    if saving is not None:
        saving.result()
    values = [value.full_tensor() for value in model.parameters()]
    say(f"final {sum(value.double().square().sum().item() for value in values)}")
    dist.destroy_process_group()


def train_one_step(training: Training, device: torch.device) -> float:
    """Train on a batch that follows from the step and the rank alone, so that a resumed run sees the same data."""
    number = training.step * dist.get_world_size() + dist.get_rank()
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(number)).to(device)
    loss = nn.functional.mse_loss(training.model(x), x.sum(1, keepdim=True))
    training.optimizer.zero_grad()
    loss.backward()
    training.optimizer.step()
    training.step += 1
    return loss.item()


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that is complete: .metadata is written when all ranks have saved."""
    complete = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
