"""torchft is imported, and a manager's parts that need no lighthouse are made; then an optimizer steps."""

import torch
import torchft
from torchft.process_group import ProcessGroupDummy

import probe

probe.note("imported")
torch.manual_seed(1)
group = ProcessGroupDummy(0, 1)
weight = torch.nn.Parameter(torch.randn(3))
optimizer = torch.optim.AdamW([weight], lr=0.1)
weight.square().sum().backward()
optimizer.step()
probe.first_step(weight=weight.tolist(), size=group.size(), names=len(dir(torchft)) > 3)
