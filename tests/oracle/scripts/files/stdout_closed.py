"""stdin is closed, and stdout reopened, before RANK is read."""

import os
import sys

import probe

os.close(0)
sys.stdout = open(1, "w", buffering=1, closefd=False)
print("reopened")
taken = os.open(os.devnull, os.O_RDONLY)
probe.note("closed", taken=taken)
probe.first_step(taken=taken, rank=os.environ["RANK"])
