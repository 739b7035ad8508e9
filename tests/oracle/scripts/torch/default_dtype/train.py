"""Default dtype, device, threads and determinism are set before a module is imported that makes tensors."""

import torch

import probe

torch.set_default_dtype(torch.float64)
torch.set_default_device("meta")
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.set_grad_enabled(False)
torch.set_printoptions(precision=2)
probe.note("set")
import tensors

torch.set_default_device("cpu")
probe.first_step(
    dtype=str(tensors.MADE.dtype),
    device=str(tensors.MADE.device),
    grad=torch.is_grad_enabled(),
    text=str(torch.tensor(1.23456)),
)
