import torch

MADE = torch.zeros(2)
