"""A backward pass is done before RANK is read: autograd has its threads by then."""

import os

import torch

import probe

torch.manual_seed(0)
weight = torch.randn(5, requires_grad=True)
(weight * 2).sum().backward()
probe.note("backward")
rank = os.environ["RANK"]
(weight * weight).sum().backward()
probe.first_step(grad=weight.grad.tolist(), rank=rank)
