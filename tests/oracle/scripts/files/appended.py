"""A line is appended to a file before RANK is read: two ranks and two attempts write four lines."""

import os

import probe

with open("log.txt", "a") as file:
    file.write("started\n")
probe.note("appended")
rank = os.environ["RANK"]
probe.first_step(rank=rank)
