"""deepspeed is imported, which sets variables and looks for accelerators; then DDP's optimizer steps over gloo."""

import deepspeed
import torch

import probe

probe.note("imported")
torch.manual_seed(1)
torch.distributed.init_process_group("gloo")
weight = torch.nn.Parameter(torch.randn(3))
optimizer = torch.optim.AdamW([weight], lr=0.1)
weight.square().sum().backward()
optimizer.step()
probe.first_step(weight=weight.tolist(), accelerator=deepspeed.get_accelerator().device_name())
torch.distributed.destroy_process_group()
