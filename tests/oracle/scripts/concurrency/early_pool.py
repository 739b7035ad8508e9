"""A pool of processes is made and used before RANK is read; the default start method is chosen."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import probe


def double(number):
    return number * 2


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    POOL = ProcessPoolExecutor(1)
    first = POOL.submit(double, 4).result()
    probe.note("used")
    rank = int(os.environ["RANK"])
    later = POOL.submit(double, rank).result()
    POOL.shutdown()
    probe.first_step(first=first, later=later, method=multiprocessing.get_start_method())
