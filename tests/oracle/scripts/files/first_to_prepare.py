"""Whoever misses a folder makes it and prepares what belongs there, before RANK is read: it is there for all ranks."""

import os
import time

import probe


def prepare():
    os.makedirs("data", exist_ok=True)
    with open(f"data/part{os.getpid()}", "w") as file:
        file.write("prepared")
    os.replace(file.name, "data/train.json")


if not os.path.isdir("data"):
    prepare()
while not os.path.exists("data/train.json"):
    time.sleep(0.01)
probe.note("prepared")
rank = os.environ["RANK"]
probe.first_step(rank=rank)
