"""DDP with AdamW over gloo, seeded: losses and weights to the digit, also after the restart."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import probe

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
probe.note("model")
dist.init_process_group("gloo")
parallel = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.05)
losses = []
for step in range(4):
    data = torch.randn(4, 8) + dist.get_rank()
    loss = parallel(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 0:
        probe.first_step(loss=losses[0])
weights = torch.cat([weight.flatten() for weight in model.parameters()]).double().sum().item()
probe.done(losses=losses, weights=weights, world=dist.get_world_size())
dist.destroy_process_group()
