"""A block of shared memory is made before RANK is read, and removed by the rank that made it."""

import os
from multiprocessing import shared_memory

import probe

BLOCK = shared_memory.SharedMemory(create=True, size=16)
BLOCK.buf[0] = 5
probe.note("made")
rank = int(os.environ["RANK"])
BLOCK.buf[1] += 1 + rank
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    value = BLOCK.buf[1]
    BLOCK.close()
    BLOCK.unlink()
    probe.first_step(value=value)
else:
    probe.first_step(value=BLOCK.buf[1], name=BLOCK.name)
    BLOCK.close()
    BLOCK.unlink()
