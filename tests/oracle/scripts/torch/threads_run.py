"""torch computes with several threads before RANK is read, and after."""

import os

import torch

import probe

torch.set_num_threads(2)
torch.manual_seed(0)
matrix = torch.randn(300, 300)
first = (matrix @ matrix).double().sum().item()
probe.note("computed")
rank = os.environ["RANK"]
probe.first_step(
    first=first, again=(matrix @ matrix).double().sum().item(), rank=rank, sort=matrix.flatten().sort()[0][:2].tolist()
)
