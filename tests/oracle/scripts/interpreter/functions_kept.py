"""Functions of os and time that the script keeps under names of its own are these functions, also in what it saves."""

import io
import os
import pickle
import time
from os import getpid, stat
from time import perf_counter, sleep

import probe

CLOCKS = {"fast": perf_counter, "slow": time.time}
LOOKS = [stat, getpid]
rank = os.environ["RANK"]
from time import monotonic  # noqa: E402


class Pickles:
    """Pickles the function that a task would call."""

    def __init__(self, function):
        self.function = function


with open(os.devnull, "w") as file:
    file.write(rank)
os.makedirs(f"out{rank}")
SAME = [sleep is time.sleep, monotonic is time.monotonic, stat is os.stat, type(getpid).__name__]
HELD = [CLOCKS["fast"] is perf_counter, CLOCKS["slow"] is time.time, LOOKS == [os.stat, os.getpid]]
saved = io.BytesIO()
pickle.dump([CLOCKS, LOOKS, Pickles(sleep)], saved)
probe.first_step(rank=rank, same=SAME, held=HELD, saved=saved.getvalue().hex())
