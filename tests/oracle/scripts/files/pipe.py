"""Pipes, an eventfd and a memfd made before RANK is read: each rank reads what it has written itself."""

import os

import probe

READ, WRITE = os.pipe()
EVENTS = os.eventfd(0)
MEMORY = os.memfd_create("own")
probe.note("made")
rank = int(os.environ["RANK"])
os.write(WRITE, bytes([65 + rank]) * 3)
os.eventfd_write(EVENTS, 1 + rank)
os.pwrite(MEMORY, bytes([65 + rank]), rank)
probe.first_step(rank=rank)
os.set_blocking(READ, False)
probe.done(got=os.read(READ, 100).decode(), events=os.eventfd_read(EVENTS), memory=os.pread(MEMORY, 9, 0).hex())
