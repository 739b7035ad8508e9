"""The process makes a group of its own, becomes a reaper and asks for its parent before RANK is read."""

import ctypes
import os

import probe

PARENT = os.getppid()
OWN = os.getpid()
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
probe.note("asked")
rank = os.environ["RANK"]
probe.first_step(
    same_parent=PARENT == os.getppid(), same=OWN == os.getpid(), shared_parent=os.getppid(), pid=OWN, rank=rank
)
