"""A log of the script's own is opened before RANK is read, written to before and after, and closed at the end."""

import os

import probe

LOG = open("own.txt", "a", buffering=1 << 16)
LOG.write("begins\n")
probe.note("opened")
rank = os.environ["RANK"]
LOG.write("goes on\n")
probe.first_step(rank=rank)
LOG.write("ends\n")
LOG.flush()
