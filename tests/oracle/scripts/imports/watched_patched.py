"""Functions that ask or act are replaced before RANK is read, as tracers and tests do; they stay so."""

import os
import pickle
import random
import threading
import time
from os import getppid
from time import perf_counter

import probe

CALLS = []


def _counted(holder, name):
    original = getattr(holder, name)

    def call(*args, **named):
        CALLS.append(name)
        return original(*args, **named)

    setattr(holder, name, call)


for place, own_name in [
    (time, "time"),
    (time, "sleep"),
    (random, "seed"),
    (threading.Thread, "start"),
    (os, "getpid"),
    (os, "stat"),
    (os, "urandom"),
]:
    _counted(place, own_name)
probe.note("replaced")
rank = os.environ["RANK"]
CALLS.clear()
time.time()
time.sleep(0)
random.seed(3)
thread = threading.Thread(target=os.getpid)
thread.start()
thread.join()
os.stat(".")
os.urandom(1)
called = list(CALLS)
pickled = [pickle.loads(pickle.dumps(function))() is not None for function in (getppid, perf_counter)]
probe.first_step(called=called, pickled=pickled, rank=rank)
