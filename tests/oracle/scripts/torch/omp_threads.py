"""OMP_NUM_THREADS is set before torch is imported."""

import os

import probe

os.environ["OMP_NUM_THREADS"] = "3"
os.environ["MKL_NUM_THREADS"] = "2"
probe.note("set")
import torch

probe.first_step(threads=torch.get_num_threads())
