"""torch.manual_seed, then a module that draws weights when it is imported."""

import torch

import probe

torch.manual_seed(3)
import model

probe.note("imported")
probe.first_step(weights=model.WEIGHTS.tolist(), next=torch.randn(2).tolist())
probe.done(last=torch.rand(2).tolist())
