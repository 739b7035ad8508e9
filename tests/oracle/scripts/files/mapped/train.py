"""A file is mapped before RANK is read: privately, and for reading."""

import mmap
import os

import probe

FILE = open("data.bin", "rb")
MAP = mmap.mmap(FILE.fileno(), 0, access=mmap.ACCESS_READ)
COPY = mmap.mmap(FILE.fileno(), 0, access=mmap.ACCESS_COPY)
ANONYMOUS = mmap.mmap(-1, 16)
MAP.read(3)
COPY[0] = 90
probe.note("mapped")
rank = int(os.environ["RANK"])
ANONYMOUS[rank] = 65 + rank
COPY[1] = 65 + rank
probe.first_step(read=MAP.read(3).decode(), copy=COPY[:4].decode(), position=MAP.tell())
probe.done(own=ANONYMOUS[:4].hex())
