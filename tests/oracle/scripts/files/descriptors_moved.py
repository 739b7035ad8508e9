"""File descriptor 1 leads to a file before RANK is read, and back afterwards."""

import os
import sys

import probe

SAVED = os.dup(1)
FILE = os.open(os.devnull, os.O_WRONLY)
print("before", flush=True)
os.dup2(FILE, 1)
print("hidden", flush=True)
probe.note("moved")
rank = os.environ["RANK"]
os.dup2(SAVED, 1)
os.close(SAVED)
print("after", rank, flush=True)
probe.first_step(rank=rank)
