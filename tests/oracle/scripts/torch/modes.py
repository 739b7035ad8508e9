"""Modes in which the script looks at what torch does see the script alone."""

import os

import probe
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CALLED = []


class Functions(TorchFunctionMode):
    """Notes calls of torch's functions."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        CALLED.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Notes operators."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        CALLED.append(str(func))
        return func(*args, **(kwargs or {}))


torch.manual_seed(2)
with Functions(), Operators():
    before = torch.randn(3)
    rank = os.environ["RANK"]
    after = torch.randn(3) + before
probe.first_step(rank=rank, called=CALLED, after=after.tolist())
