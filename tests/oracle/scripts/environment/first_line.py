import os

rank = int(os.environ["RANK"])  # noqa
"""RANK is read on the first line of the script."""
import probe

probe.note("first line", rank=rank)
probe.first_step(rank=rank)
