"""torch is changed before a module is imported that keeps what it finds: a class, a function, a method."""

import torch

import probe


class Own(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 7


torch.nn.Linear = Own
torch.relu = torch.sigmoid
torch.optim.SGD.step = lambda self, closure=None: "own step"
torch.manual_seed(1)
probe.note("patched")
import model

probe.first_step(out=model.run(), step=torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0).step())
