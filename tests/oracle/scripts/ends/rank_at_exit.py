"""RANK is read for the first time at exit."""

import atexit
import os

import probe

atexit.register(lambda: print("rank", os.environ["RANK"], flush=True))
probe.note("registered")
print("the end", flush=True)
