"""Nobody seeds torch: the initial seed and the numbers of each process are its own."""

import torch

import probe

probe.note("imported")
probe.first_step(initial=torch.initial_seed(), draws=torch.randn(3).tolist(), seed=torch.Generator().initial_seed())
probe.done(last=torch.randint(0, 10**9, (3,)).tolist())
