"""FSDP2 with a distributed checkpoint, which the restart loads: losses to the digit."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import probe

probe.note("imported")
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "saved")
loads = os.path.exists(os.path.join(FOLDER, ".metadata"))
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
if loads:
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id=FOLDER)
    set_model_state_dict(model, state)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
losses = []
for step in range(3):
    torch.manual_seed(step + 10 * dist.get_rank())
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 0:
        dcp.save(get_model_state_dict(model), checkpoint_id=FOLDER)
        probe.first_step(loss=losses[0], loads=loads)
probe.done(losses=losses)
dist.destroy_process_group()
