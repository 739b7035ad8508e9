import torch

WEIGHTS = torch.randn(3)
