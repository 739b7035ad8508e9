"""A pool of threads is made and used before RANK is read."""

import os
from concurrent.futures import ThreadPoolExecutor

import probe

POOL = ThreadPoolExecutor(2)
EMPTY = ThreadPoolExecutor(2)
first = list(POOL.map(abs, [-1, -2]))
probe.note("used")
rank = int(os.environ["RANK"])
probe.first_step(first=first, later=[*POOL.map(abs, [-rank, -5]), *EMPTY.map(abs, [-7])])
