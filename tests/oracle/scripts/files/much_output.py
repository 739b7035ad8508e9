"""Two megabytes are printed before RANK is read; nothing is lost or told twice."""

import os

import probe

for number in range(20_000):
    print(f"line {number:05} " + "y" * 90)
probe.note("printed")
print(os.environ["RANK"], flush=True)
probe.first_step()
