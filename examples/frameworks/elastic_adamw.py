"""`worker.elastic` with AdamW, a learning rate scheduler and a DataLoader: survivors keep their process and memory.

flowdist torchrun --nproc-per-node 2 --max-restarts 3 examples/frameworks/elastic_adamw.py
torchrun --nproc-per-node 2 examples/frameworks/elastic_adamw.py       the same file, unchanged, without recovery
"""

from __future__ import annotations

import argparse
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from flowdist import worker


def train(state: worker.ElasticState) -> None:
    """Train from the last commit on, in the process group of this generation."""
    model = DistributedDataParallel(state.model)
    sampler: DistributedSampler = DistributedSampler(state_data(), seed=1)
    data = DataLoader(sampler.dataset, batch_size=8, sampler=sampler)
    while state.step < state.steps:
        epoch, done = divmod(state.step, len(data))
        sampler.set_epoch(epoch)
        for x, y in islice(data, done, min(len(data), done + state.steps - state.step)):
            loss = nn.functional.mse_loss(model(x), y)
            state.optimizer.zero_grad()
            loss.backward()
            state.optimizer.step()
            state.scheduler.step()
            state.step += 1
            worker.progress(state.step)
            if state.step % 5 == 0:
                state.commit()  # in memory: a re-formation goes on from here
                say(f"step {state.step}: loss {loss.item():.4f}")
    say(f"final {sum(value.double().square().sum().item() for value in state.model.parameters())}")


def state_data() -> TensorDataset:
    inputs = torch.randn(128, 16, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    state = worker.ElasticState(model=model, optimizer=optimizer, scheduler=scheduler, step=0, steps=options.steps)
    worker.elastic(train, state, backend="gloo")


if __name__ == "__main__":
    main()
