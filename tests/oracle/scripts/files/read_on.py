"""A file is opened after RANK is read, and read on when the rank has begun to act: a restart reads the same of it."""

import os

import probe

rank = os.environ["RANK"]
file = open(__file__, "rb", buffering=0)  # noqa: SIM115
first, copy = file.readline(), os.dup(file.fileno())
sum(range(40_000_000))
open(f"acts{rank}", "w").close()
probe.note("read on")
probe.first_step(rank=rank, first=len(first), rest=[os.read(copy, 5).decode(), file.read().count(b"\n")])
