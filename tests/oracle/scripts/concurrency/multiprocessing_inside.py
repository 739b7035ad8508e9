"""multiprocessing by fork, spawn and forkserver inside of a rank; children import the main script anew."""

import multiprocessing
import os
import random
import sys

import probe

random.seed(4)
DRAWN = random.random()


def work(number):
    return [
        number * 2,
        os.environ["RANK"],
        DRAWN,
        sys.modules["__main__"].__name__,
        len(sys.argv),
        os.getcwd() == START,
    ]


START = os.getcwd()
if __name__ == "__main__":
    probe.note("first line")
    found = {}
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            found[method] = pool.map(work, [1, 2])
    probe.first_step(found=found, method=multiprocessing.get_start_method())
