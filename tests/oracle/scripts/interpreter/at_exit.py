"""Handlers run at exit in the order of a plain script: atexit, threads, finalizers, the interpreter's own."""

import atexit
import os
import threading
import weakref

import probe


class Ends:
    def __del__(self):
        print("deleted", flush=True)


ENDS = Ends()
atexit.register(print, "first registered", flush=True)
weakref.finalize(ENDS, print, "finalized", flush=True)
threading._register_atexit(print, "threads end")
probe.note("registered")
rank = os.environ["RANK"]
atexit.register(lambda: print("rank", rank, "registered last", flush=True))
probe.first_step(rank=rank)
print("the end", flush=True)
