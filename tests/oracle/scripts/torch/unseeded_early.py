"""Numbers of torch are drawn before RANK is read, and nobody has seeded."""

import torch

import probe

WEIGHTS = torch.nn.Linear(3, 1).weight.tolist()
SEED = torch.random.seed()
ORDER = torch.randperm(9).tolist()
probe.note("drawn")
probe.first_step(weights=WEIGHTS, order=ORDER, seed=SEED)
