"""Locks, values and shared memory of multiprocessing are made before RANK is read: each rank has its own."""

import multiprocessing
import os

import probe

LOCK = multiprocessing.Lock()
VALUE = multiprocessing.Value("i", 0)
ARRAY = multiprocessing.RawArray("i", 4)
QUEUE = multiprocessing.SimpleQueue()
probe.note("made")
rank = int(os.environ["RANK"])
with LOCK:
    VALUE.value += 1 + rank
    ARRAY[rank] += 1
QUEUE.put(rank)
probe.first_step(rank=rank)
probe.done(value=VALUE.value, array=list(ARRAY), got=QUEUE.get(), free=LOCK.acquire(timeout=5))
