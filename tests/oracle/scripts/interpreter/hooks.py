"""Hooks of the interpreter are replaced before RANK is read: excepthook, displayhook, unraisablehook, threading's."""

import gc
import os
import sys
import threading

import probe


def shown(kind, error, trace):
    print("HOOK", kind.__name__, error, flush=True)


sys.excepthook = shown
sys.displayhook = lambda value: print("SHOWN", value)
sys.unraisablehook = lambda found: print("UNRAISABLE", found.exc_type.__name__)
threading.excepthook = lambda found: print("THREAD", found.exc_type.__name__)
probe.note("replaced")
rank = os.environ["RANK"]


class Broken:
    def __del__(self):
        raise ValueError("in del")


Broken()
gc.collect()
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
probe.first_step(rank=rank)
raise KeyError("at the end")
