"""A file is opened for reading and kept open: each rank has a position of its own."""

import os

import probe

FILE = open(__file__, "rb")
RAW = os.open(__file__, os.O_RDONLY)
head = FILE.readline()
os.read(RAW, 3)
probe.note("opened")
rank = os.environ["RANK"]
own = []
for _ in range(3):
    own.append([FILE.readline().decode(), FILE.tell(), os.read(RAW, 5).decode(), os.lseek(RAW, 0, os.SEEK_CUR)])
probe.first_step(head=head.decode(), own=own)
probe.done(rest=[len(FILE.read()), len(os.read(RAW, 10_000))])
