"""torch and its late parts are imported between other modules: the order is kept."""

import probe

probe.note("first line")
import csv
import numpy

probe.note("numpy")
import torch

probe.note("torch")
import torch.distributed
import torch._dynamo

probe.note("dynamo")
import torch.nn.parallel

probe.first_step(
    dynamo=torch._dynamo.config.cache_size_limit if hasattr(torch._dynamo.config, "cache_size_limit") else None,
    csv=csv.__name__,
)
